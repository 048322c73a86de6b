"""A model under a plan behaves as before."""

from __future__ import annotations

import numpy as np
import pytest
from fake_cuda import fake_gpus
from models import Branches, Cached, capture, nn, plans, torch, twin

import placewright as pw
from placewright import Plan
from placewright.errors import ExecutionError, FileError, PlanError
from placewright.runtime.program.optimizer_step import OptimizerRule

safetensors = pytest.importorskip("safetensors.torch")


def split(problem: pw.Problem) -> Plan:
    return plans(problem, 1, seed=3)[0]


def test_a_model_behaves_as_before(tmp_path):
    model, x = Branches().eval(), torch.randn(4, 8)
    _, problem = capture(model, x)
    expected, names = model(x), list(model.state_dict())
    pw.save(split(problem), tmp_path / "plan.json")
    placed = pw.apply(tmp_path / "plan.json", model)
    assert placed is model
    for _ in range(2):
        made = model(x)
        assert list(made) == ["made", "sum"]
        assert torch.equal(made["made"], expected["made"])
    (graph,) = model.placed.graphs
    assert not graph.reason
    text = "PlacedModel(Branches: 1.094 KiB of weights on cpu; 1 graph compiled)"
    assert repr(model.placed) == text
    assert list(model.state_dict()) == names
    assert [name for name, _ in model.named_parameters()] == names
    with pytest.raises(PlanError, match="already"):
        pw.apply(split(problem), model)
    assert model.placed.remove() is model
    assert not hasattr(model, "placed")
    assert torch.equal(model(x)["made"], expected["made"])


def test_loaded_weights_are_used_whether_copied_or_assigned():
    model, other, x = Branches().eval(), Branches().eval(), torch.randn(4, 8)
    _, problem = capture(model, x)
    pw.apply(split(problem), model)
    model(x)
    for assign in (False, True):
        state = {name: value + 0.1 * assign for name, value in other.state_dict().items()}
        model.load_state_dict(state, assign=assign)
        other.load_state_dict(state)
        assert torch.equal(model(x)["made"], other(x)["made"])
    model.double()
    assert torch.allclose(model(x.double())["made"], other.double()(x.double())["made"])


def test_one_symbolic_graph_serves_all_other_shapes():
    model, x = Branches().eval(), torch.randn(4, 8)
    _, problem = capture(model, x)
    reference = twin(model)
    pw.apply(split(problem), model)
    with torch.no_grad():
        model(x)
        for count, graphs in ((7, 2), (7, 2), (9, 2), (8, 2), (4, 2), (1, 3), (1, 3)):
            other = torch.randn(count, 8)
            assert torch.equal(model(other)["made"], reference(other)["made"])
            assert len(model.placed.graphs) == graphs
    assert [graph.is_symbolic for graph in model.placed.graphs] == [False, True, False]


def test_a_cache_that_grows_and_arguments_of_any_kind_never_fail():
    class Cache:
        def __init__(self) -> None:
            self.rows = []

    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x, cache=None):
            rows = self.inner(x)
            if cache is not None:
                cache.rows.append(rows)
                rows = torch.cat(cache.rows)
            return rows.sum(0)

    model, x = Grows().eval(), torch.randn(2, 8)
    _, problem = capture(model, x)
    reference = twin(model)
    pw.apply(split(problem), model)
    mine, theirs = Cache(), Cache()
    with torch.no_grad():
        for _ in range(5):
            assert torch.equal(model(x, cache=mine), reference(x, cache=theirs))
        assert torch.equal(model(x), reference(x))
    assert not model.placed.eager_calls


def test_a_model_whose_branches_depend_on_values_is_right_for_all_values():
    class Chooses(Branches):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -2 * x)["made"]

    model, x = Chooses().eval(), torch.ones(4, 8)
    _, problem = capture(model, x)
    reference = twin(model)
    pw.apply(split(problem), model)
    with torch.no_grad():
        for given in (x, -x, x):
            assert torch.allclose(model(given), reference(given))


def test_gradients_flow_in_training_mode():
    model, x = Branches().train(), torch.randn(4, 8)
    _, problem = capture(model, x)
    reference = twin(model)
    pw.apply(split(problem), model)
    model(x)["made"].sum().backward()
    reference(x)["made"].sum().backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad)


def test_a_training_plan_runs_whole_steps():
    model, x = Branches(), torch.randn(4, 8)
    _, problem = capture(model, x, training=True)
    reference = twin(model)
    pw.apply(split(problem), model, optimizer=OptimizerRule("sgd", 0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = reference(x)["made"].sum()
        loss.backward()
        optimizer.step()
        assert model.placed.train_step(x).item() == pytest.approx(loss.item(), rel=1e-5)
    with torch.no_grad():
        made = model.eval()(x)["made"]
        assert torch.allclose(made, reference(x)["made"], atol=1e-5)
    _, plain = capture(reference, x)
    pw.apply(split(plain), reference)
    with pytest.raises(PlanError, match="not for a training step"):
        reference.placed.train_step(x)


def test_states_stay_the_models_own():
    model = Cached().eval()
    row = (torch.randn(1, 8), torch.tensor([1]))
    _, problem = capture(model, row)
    reference = twin(model)
    pw.apply(split(problem), model)
    with torch.no_grad():
        for _ in range(3):
            model(*row)
            reference(*row)
    assert torch.equal(model.state_dict()["cache"], reference.cache)
    assert model.calls == 3


def test_calls_stream_through_in_order():
    model = Branches().eval()
    calls = [(torch.randn(4, 8),) for _ in range(9)]
    _, problem = capture(model, calls[0])
    reference = twin(model)
    pw.apply(split(problem), model)
    made = list(model.placed.pipeline(iter(calls), in_flight=3))
    assert len(made) == 9
    for one, (x,) in zip(made, calls, strict=True):
        assert torch.equal(one["made"], reference(x)["made"])
    cached = Cached().eval()
    _, other = capture(cached, (torch.randn(1, 8), torch.tensor([1])))
    pw.apply(split(other), cached)
    with torch.no_grad(), pytest.raises(ExecutionError, match="cannot overlap"):
        list(cached.placed.pipeline(iter([(torch.randn(1, 8), torch.tensor([1]))] * 3)))


@pytest.mark.parametrize("several", [False, True])
def test_a_model_on_meta_is_loaded_where_the_plan_has_it(tmp_path, several):
    real, x = Branches().eval(), torch.randn(4, 8)
    state = real.state_dict()
    if several:
        halves = {"a.safetensors": ["left", "right"], "b.safetensors": ["join"]}
        index = {}
        for file, modules in halves.items():
            part = {name: value for name, value in state.items() if name.split(".")[0] in modules}
            safetensors.save_file(part, tmp_path / file)
            index |= dict.fromkeys(part, file)
        import json

        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    else:
        safetensors.save_file(state, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = Branches().eval()
    _, problem = capture(model, torch.empty(4, 8, device="meta"))
    pw.apply(split(problem), model, weights=tmp_path)
    with torch.no_grad():
        assert torch.equal(model(x)["made"], real(x)["made"])
    safetensors.save_file({"left.weight": state["left.weight"]}, tmp_path / "part.safetensors")
    with torch.device("meta"):
        other = Branches().eval()
    with pytest.raises(FileError, match="lacks 5 of the model's tensors"):
        pw.apply(split(problem), other, weights=tmp_path / "part.safetensors")
    with pytest.raises(FileError, match="does not exist"):
        pw.apply(split(problem), other, weights=tmp_path / "none.safetensors")


def test_plans_of_other_models_and_missing_devices_are_refused():
    model, x = Branches(), torch.randn(4, 8)
    _, problem = capture(model, x)
    other = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(PlanError, match="another model"):
        pw.apply(split(problem), other)
    if not torch.cuda.is_available():
        gpus = pw.Cluster(
            "gpus",
            (pw.Device("gpu0", memory=2**30, rates={"float32": 1e9}, memory_bandwidth=1e30),),
            {},
        )
        there = pw.Problem(problem.graph, gpus)
        plan = Plan.of(there, np.zeros(len(problem.graph), dtype=int))
        with pytest.raises(ExecutionError, match="has none"):
            pw.apply(plan, model)
        pw.apply(plan, model, device_map={"gpu0": "cpu"})
        assert model.eval()(x)["made"].shape == (4, 8)


def test_a_training_plan_steps_in_parts_of_a_batch():
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x).square().mean()

    model, x = Loss(), torch.randn(6, 4)
    reference = twin(model)
    _, problem = capture(model, (x[:3],), training=True, optimizer="sgd")
    placed = pw.apply(plans(problem, 1)[0], model)
    losses = placed.placed.train_micro_batches([(x[:3],), (x[3:],)])
    loss = reference(x)
    loss.backward()
    with torch.no_grad():
        for one in reference.parameters():
            one -= 1e-3 * one.grad
    assert sum(losses).item() / 2 == pytest.approx(loss.item(), rel=1e-4)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_weights_made_of_several_tensors_run_on_workers_and_are_refused_with_a_gpu():
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(4, 8)
    _, problem = capture(model, x)
    weight = model[0].weight.detach()
    model[0].weight = nn.Parameter(two_tensor.TwoTensor(weight, weight.clone()))
    with torch.no_grad():
        expected = model(x)
        pw.apply(split(problem), model)
        assert torch.equal(model(x).a, expected.a)
    model.placed.remove()
    refusal = pytest.raises(PlanError, match=r"'0\.weight' is a TwoTensor, which is made of")
    with fake_gpus(), refusal:
        pw.apply(split(problem), model, device_map={"cpu0": "cuda:0"})
