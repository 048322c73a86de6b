"""Models whose branches or sizes depend on values: drafts from the example, and advice."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("torch")

import torch

from placewright.errors import GraphError
from placewright.frontends.pytorch import capture
from placewright.frontends.pytorch.frontend import from_torch

torch.set_num_threads(1)
nn = torch.nn


class Upsampler(nn.Module):
    """Makes as many rows as the durations say, as a speech synthesizer does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, durations):
        count = durations.sum().item()
        return self.layer(torch.ones(count, 4))


def test_sizes_without_a_limit_are_those_of_the_example(caplog):
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = from_torch(Upsampler(), torch.tensor([2, 3, 1]))
    (linear,) = [op for op in graph.ops if op.name == "layer.linear"]
    assert linear.flops == 2 * 6 * 4 * 4 + 6 * 4
    assert caplog.records[0].getMessage() == (
        "model 'Upsampler' depends on values: its branches and sizes are those of the example"
    )


def test_a_size_without_a_limit_is_named_if_the_model_is_too_large_to_run(monkeypatch):
    monkeypatch.setattr(capture, "MAX_DRAFT_BYTES", 0)
    with pytest.raises(GraphError) as caught:
        from_torch(Upsampler(), torch.tensor([2, 3, 1]))
    assert "makes a tensor whose size depends on values and has no limit: limit it in the" in str(
        caught.value
    )


def test_a_limit_in_the_model_needs_no_example(caplog):
    class Limited(Upsampler):
        def forward(self, durations):
            count = durations.sum().item()
            torch._check(count >= 0)
            torch._check(count <= 10)
            return self.layer(torch.ones(count, 4))

    with caplog.at_level(logging.WARNING, "placewright"):
        graph = from_torch(Limited(), torch.tensor([2, 3, 1]))
    (linear,) = [op for op in graph.ops if op.name == "layer.linear"]
    assert linear.flops == 2 * 10 * 4 * 4 + 10 * 4
    assert "depends on values:" not in caplog.text


def test_sizes_that_depend_on_random_numbers_are_drafted_alike_each_time():
    class Noisy(Upsampler):
        def forward(self, durations):
            return super().forward((durations * (1 + 9 * torch.rand(3))).ceil().long())

    model, states = Noisy(), torch.random.get_rng_state()
    graphs = [from_torch(model, torch.tensor([20, 30, 10])) for _ in range(2)]
    first, second = ([op.flops for op in graph.ops] for graph in graphs)
    assert first == second
    assert torch.equal(torch.random.get_rng_state(), states)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_vits_of_transformers_has_the_sizes_of_its_example():
    # It indexes by one mask several times, and makes as many frames as its durations say.
    transformers = pytest.importorskip("transformers")
    config = transformers.VitsConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        flow_size=32,
        spectrogram_bins=33,
        upsample_initial_channel=32,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=2,
        posterior_encoder_num_wavenet_layers=2,
        duration_predictor_num_flows=2,
        duration_predictor_filter_channels=32,
        depth_separable_num_layers=2,
    )
    torch.manual_seed(5)
    model = transformers.VitsModel(config).eval()
    model.noise_scale = model.noise_scale_duration = 0.0
    tokens = torch.arange(1, 13).reshape(1, 12)
    graph = from_torch(model, (), {"input_ids": tokens})
    with torch.no_grad():
        waveform = model(input_ids=tokens).waveform
    sizes = [graph.ops[position].outputs[output] for position, output in graph.outputs]
    assert waveform.nbytes in sizes


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return {"0": self.body(x)}


class Detector(nn.Module):
    """As torchvision's: a list of images in, boxes out."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, images):
        return self.backbone(torch.stack(images))["0"].numpy()


@pytest.mark.parametrize("training", [False, True])
def test_a_detector_of_torchvision_is_refused_before_anything_is_exported(monkeypatch, training):
    monkeypatch.setattr(Detector, "__module__", "torchvision.models.detection.retinanet")
    monkeypatch.setattr(Backbone, "__module__", "torchvision.models.detection.backbone_utils")
    monkeypatch.setattr(torch.export, "export", None)  # would fail if it were called

    class Own(Detector):
        pass

    for model in (Detector(), Own()):
        with pytest.raises(GraphError) as caught:
            from_torch(model, ([torch.zeros(3, 8, 8)],), training=training)
        assert str(caught.value).endswith(
            "selects boxes by their values, so its sizes are not known before it runs: place its "
            "backbone alone, with pw.from_torch(model.backbone, model.transform(images)[0].tensors)"
        )
    monkeypatch.undo()
    monkeypatch.setattr(Backbone, "__module__", "torchvision.models.detection.backbone_utils")
    graph = from_torch(Detector().backbone, torch.zeros(1, 3, 8, 8), training=training)
    assert any(op.name.startswith("body.") for op in graph.ops)


def test_a_model_that_needs_values_and_cannot_run_is_told_to_place_a_part(monkeypatch):
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.ModuleDict({"backbone": nn.Linear(4, 4)})

        def forward(self, x):
            y = self.net["backbone"](x)
            if y.sum() > 1e9:
                return y
            raise ValueError("too small")

    tail = "place the part that does not alone, such as pw.from_torch(model.net.backbone, example)"
    with pytest.raises(GraphError, match="model 'Picky' cannot be exported: ") as caught:
        from_torch(Picky(), torch.zeros(2, 4))
    assert str(caught.value).endswith(
        f"; it depends on values, and to run it on the example did not help: {tail}"
    )
    monkeypatch.setattr(capture, "MAX_DRAFT_BYTES", 0)
    with pytest.raises(GraphError) as caught:
        from_torch(Picky(), torch.zeros(2, 4))
    assert str(caught.value).endswith(
        f"; it depends on values, and it is too large to run on the example: {tail}"
    )
    assert "\n" not in str(caught.value)
