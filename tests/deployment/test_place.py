"""`place`: a model in one call, with the tokens and outputs of an untouched copy."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

from fake_cuda import fake_gpus  # noqa: E402
from models import machine, workers  # noqa: E402

import placewright as pw  # noqa: E402
from placewright.deployment import model_placement, output_comparison, placement_limits  # noqa: E402
from placewright.errors import ConfigError, ExecutionError, PlanError, VerifyError  # noqa: E402
from placewright.runtime.dynamo import lowering, repeated_layers  # noqa: E402
from placewright.runtime.dynamo.backend import PlanBackend  # noqa: E402

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
MIX = pw.Generate(prompt=12, new_tokens=8)


def llama(**sizes):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, **sizes})
    return transformers.LlamaForCausalLM(config).eval()


class Chain(torch.nn.Module):
    """Two layers with an activation."""

    def __init__(self, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def chain():
    return Chain().eval()


@pytest.fixture(autouse=True)
def effort(monkeypatch):
    """A search ends after so many plans, and not after a time in which a busy machine does less."""
    solve = model_placement.solve

    def solve_briefly(problem, budget, **options):
        return solve(problem, stop=pw.MaxEvaluations(3_000), **options)

    monkeypatch.setattr(model_placement, "solve", solve_briefly)


def place(model, workload, cluster, **options):
    lines = []
    options = {"notify": lines.append, **options}
    return pw.place(model, workload=workload, cluster=cluster, **options), lines


def tokens(model, length=9, count=6, **arguments):
    generator = torch.Generator().manual_seed(length)
    prompt = torch.randint(2, 64, (arguments.pop("batch", 1), length), generator=generator)
    return model.generate(prompt, max_new_tokens=count, do_sample=False, **arguments)


def stages(lines):
    return [line.partition(":")[0] for line in lines]


def alternate(monkeypatch):
    """Let plans use all devices: of models this small, one device is the best."""
    monkeypatch.setattr(model_placement, "single_device", lambda plan: None)


def test_generated_tokens_are_the_models_own_from_two_graphs_for_all_lengths(monkeypatch):
    alternate(monkeypatch)
    model, own = llama(), llama()
    model, lines = place(model, MIX, workers())
    assert stages(lines) == ["machine", "reference", "captured", "measured", "plan", "verified"]
    assert "prefill" in lines[2]
    assert "decode x7" in lines[2]
    for length in (9, 30):
        assert torch.equal(tokens(model, length), tokens(own, length))
    assert len(model.placed.graphs) == 2
    assert not model.placed.eager_calls
    predicted = model.placed.predicted_seconds
    assert f"{predicted['decode'] * 1e3:.4g} ms" in lines[4]
    assert set(predicted) == {"prefill", "decode"}


def test_a_second_start_takes_the_stored_plan_and_says_so(monkeypatch):
    alternate(monkeypatch)
    first, _ = place(chain(), pw.Calls([((torch.ones(2, 16),),)]), workers())
    monkeypatch.setattr(model_placement, "solve", None)
    second, lines = place(chain(), pw.Calls([((torch.zeros(2, 16),),)]), workers())
    assert stages(lines) == ["machine", "plan", "weights"]
    assert "a stored plan of 20" in lines[1]
    assert second.placed.plan == first.placed.plan
    x = torch.rand(2, 16)
    assert torch.equal(second(x), chain()(x))
    with pytest.raises(TypeError):  # there is no solver now
        place(chain(), pw.Calls([((torch.ones(2, 16),),)]), workers(), fresh=True)


@pytest.mark.parametrize(
    "change",
    [
        {"workload": pw.Calls([((torch.ones(3, 16),),)])},
        {"limits": {"cpu0": "100MiB"}},
        {"cluster": workers(3)},
        {"model": Chain(8), "workload": pw.Calls([((torch.ones(2, 8),),)])},
        {"model": Chain().eval().double()},
        {"seed": 1},
    ],
)
def test_a_plan_for_something_else_is_not_taken(change, monkeypatch):
    plain = {
        "model": chain(),
        "workload": pw.Calls([((torch.ones(2, 16),),)]),
        "cluster": workers(),
    }
    place(**plain)
    monkeypatch.setattr(model_placement, "solve", None)
    changed = {**plain, "model": chain(), **change}
    if changed["model"].one.weight.dtype == torch.float64:
        changed["workload"] = pw.Calls([((torch.ones(2, 16).double(),),)])
    with pytest.raises(TypeError):  # there is no solver now
        place(**changed)


def test_a_search_with_another_seed_starts_from_the_stored_plan(monkeypatch):
    calls = pw.Calls([((torch.ones(2, 16),),)])
    place(chain(), calls, workers())
    _, lines = place(chain(), calls, workers(), seed=1)
    (line,) = [line for line in lines if line.startswith("plan: call")]
    assert "; started from a stored plan of 20" in line
    _, lines = place(chain(), calls, workers(), seed=2, fresh=True)
    assert not any("stored" in line for line in lines)


def test_a_store_that_cannot_be_used_stops_no_placement(tmp_path, caplog):
    (tmp_path / "broken").write_bytes(b"not a database" * 100)
    calls = pw.Calls([((torch.ones(2, 16),),)])
    model, _ = place(chain(), calls, workers(), store=tmp_path / "broken")
    x = torch.rand(2, 16)
    assert torch.equal(model(x), chain()(x))
    assert "planning goes on without it" in caplog.text
    with pytest.raises(ConfigError, match="expected a file, postgresql://"):
        place(chain(), calls, workers(), store="mysql://host/x")


def test_a_stored_plan_that_cannot_be_read_is_made_again(monkeypatch):
    calls = pw.Calls([((torch.ones(2, 16),),)])
    place(chain(), calls, workers())
    monkeypatch.setattr("placewright.deployment.stored_plan.VERSION", 0)
    _, lines = place(chain(), calls, workers())
    assert "captured" in stages(lines)


def test_a_model_that_fits_a_gpu_is_left_there():
    with fake_gpus():
        model, lines = place(chain(), pw.Calls([((torch.ones(2, 16),),)]), machine(1))
        assert "gpu0 has memory for the whole model: it is moved there and left alone" in lines[4]
        assert not hasattr(model, "placed")
        _, lines = place(chain(), pw.Calls([((torch.ones(2, 16),),)]), machine(1))
        assert "the whole model is left on gpu0" in lines[1]


def test_a_model_larger_than_its_gpu_generates_its_own_tokens():
    model, own = llama(), llama()
    size = sum(weight.nbytes for weight in model.parameters())
    with fake_gpus():
        limit = {"gpu0": size * 3 // 4}
        model, lines = place(model, MIX, machine(1), limits=limit)
        assert stages(lines)[-3:] == ["weights", "verified", "timed"]
        assert re.fullmatch(
            r"timed: prefill \S+ ms \(predicted \S+\), decode \S+ ms \(predicted \S+\) \(\S+ s\)",
            lines[-1],
        )
        for length in (9, 12):
            assert torch.equal(tokens(model, length), tokens(own, length))
        devices = {
            name
            for call in model.placed.backend.planned_calls
            for name, device in zip(call.plan.ops, call.plan.placement, strict=True)
            if call.plan.device_names[device] == "gpu0"
        }
        assert devices  # something runs on the GPU
        assert not model.placed.eager_calls


def fail_warmups(monkeypatch, count):
    """Let the first warm-ups of a plan need more of a GPU than they may use."""
    plans, run_warmup = [], model_placement.run_warmup

    def run(placed, mix, written_weights):
        plans.append(placed.backend.planned_calls)
        if len(plans) <= count:
            try:
                raise torch.OutOfMemoryError("Tried to allocate 1 GiB")
            except torch.OutOfMemoryError as error:
                raise ExecutionError("the call does not fit") from error
        return run_warmup(placed, mix, written_weights)

    monkeypatch.setattr(model_placement, "run_warmup", run)
    monkeypatch.setattr(placement_limits, "MIN_MARGIN", 1)
    return plans


def test_a_plan_that_does_not_keep_a_limit_is_made_again_with_less_memory(monkeypatch):
    plans, model, own = fail_warmups(monkeypatch, 1), chain(), chain()
    problems, x = [], torch.rand(2, 16)
    solve = model_placement.solve

    def note_and_solve(workload, **options):
        problems.append(workload.problems[0])
        return solve(workload, **options)

    monkeypatch.setattr(model_placement, "solve", note_and_solve)
    size = sum(weight.nbytes for weight in model.parameters())
    limit = 3 * size // 4
    with fake_gpus():
        calls = pw.Calls([((x,),)])
        model, lines = place(model, calls, machine(1), limits={"gpu0": limit})
        assert len(plans) == 2
        assert "plan: it does not keep a limit: the call does not fit; planned again" in lines
        first, second = (problem.constraints.limits["gpu0"] for problem in problems)
        assert (first, first - second) == (limit, limit // 32)
        assert torch.equal(model(x), own(x))
        assert not model.placed.eager_calls


def test_a_limit_that_no_plan_keeps_in_practice_is_an_error_and_the_model_is_restored(monkeypatch):
    plans, model, own = fail_warmups(monkeypatch, 3), chain(), chain()
    x = torch.rand(2, 16)
    size = sum(weight.nbytes for weight in model.parameters())
    limit = {"gpu0": 3 * size // 4}
    with fake_gpus():
        with pytest.raises(ExecutionError, match="the call does not fit"):
            place(model, pw.Calls([((x,),)]), machine(1), limits=limit)
        assert len(plans) == 3
        assert not hasattr(model, "placed")
        assert torch.equal(model(x), own(x))


def count_traces(monkeypatch):
    """A list that grows whenever a graph of a model is compiled."""
    compiled, compile_graph = [], PlanBackend.__call__

    def call(self, module, inputs):
        compiled.append(module)
        return compile_graph(self, module, inputs)

    monkeypatch.setattr(PlanBackend, "__call__", call)
    return compiled


def test_with_a_gpu_the_graphs_that_were_captured_are_not_traced_again(monkeypatch):
    compiled, model, own = count_traces(monkeypatch), llama(), llama()
    size = sum(weight.nbytes for weight in model.parameters())
    with fake_gpus():
        two = replace(MIX, batch=2)  # a batch of one fits then, too
        model, _ = place(model, two, machine(1), limits={"gpu0": size * 3 // 4})
        assert torch.equal(tokens(model, batch=2), tokens(own, batch=2))
        assert not model.placed.eager_calls
        assert model.placed.backend.memory_limits is not None
        assert len(compiled) == 2  # prefill and decode
        assert torch.equal(tokens(model, 12), tokens(own, 12))
        weights = model.state_dict()
        assert all(torch.equal(weights[name], right) for name, right in own.state_dict().items())
        with pytest.raises(pw.PlacewrightError, match="cannot be copied"):
            copy.deepcopy(model)
        copied = copy.deepcopy(model.placed.remove())
        for each in (model, copied):
            assert torch.equal(tokens(each), tokens(own))


def test_with_a_gpu_layers_that_were_copied_generate_the_tokens_of_the_model(monkeypatch):
    compiled, copied, real = count_traces(monkeypatch), [], lowering.copy_layers
    monkeypatch.setattr(repeated_layers, "MIN_LAYERS", 4)  # six take half as long again
    model, own = llama(num_hidden_layers=4), llama(num_hidden_layers=4)
    size = sum(weight.nbytes for weight in model.parameters())

    def copy_layers(lowered, short):
        copied.append(len(short.layers.nodes))
        return real(lowered, short)

    monkeypatch.setattr(lowering, "copy_layers", copy_layers)
    with fake_gpus():
        model, _ = place(model, MIX, machine(1), limits={"gpu0": size * 3 // 4})
        assert torch.equal(tokens(model), tokens(own))
        assert len(compiled) == 2  # prefill and decode
        assert copied == [4, 4]
        assert not model.placed.eager_calls


def test_with_a_gpu_a_model_that_changes_after_it_was_placed_is_traced_again(monkeypatch):
    compiled, model, own = count_traces(monkeypatch), llama(), llama()
    size = sum(weight.nbytes for weight in model.parameters())
    with fake_gpus():
        model, _ = place(model, MIX, machine(1), limits={"gpu0": size * 3 // 4})
        for each in (model, own):
            head = each.lm_head.weight
            head.data = (2 * head.data).t().contiguous().t()
        assert torch.equal(tokens(model), tokens(own))
        assert len(compiled) == 4
        for each in (model, own):  # now TorchDynamo guards all
            each.lm_head.weight.data = each.lm_head.weight.data.contiguous()
        assert torch.equal(tokens(model), tokens(own))
        assert not model.placed.eager_calls


def test_weights_from_files_are_no_reason_to_trace_again(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    compiled, own, x = count_traces(monkeypatch), chain(), torch.rand(2, 16)
    save_file(own.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = Chain().eval()
    size = sum(weight.nbytes for weight in own.parameters())
    with fake_gpus():
        calls = pw.Calls([((x,),)])
        limits = {"gpu0": size * 3 // 4}
        model, lines = place(model, calls, machine(1), limits=limits, weights=tmp_path)
        assert stages(lines)[-3:] == ["weights", "verified", "timed"]
        with torch.no_grad():
            assert torch.equal(model(x), own(x))
        assert len(compiled) == 1
        assert not model.placed.eager_calls


def test_limits_that_no_plan_keeps_are_an_error_that_says_what_would_do():
    model, own = chain(), chain()
    x = torch.ones(2, 16)
    limits = {"cpu0": 100, "cpu1": 100}
    with pytest.raises(PlanError, match=r"keeps the limits: the best needs cpu\d=0\.00GiB"):
        place(model, pw.Calls([((x,),)]), workers(), limits=limits)
    assert not hasattr(model, "placed")  # it is as it was
    assert torch.equal(model(x), own(x))


def test_outputs_that_differ_are_an_error_and_the_model_is_restored(monkeypatch):
    alternate(monkeypatch)
    model = chain()
    x = torch.rand(2, 16)
    right = model(x)
    original = output_comparison.reference_outputs

    def wrong(model, mix):
        reference = original(model, mix)
        reference.calls[0][0][1].add_(1)
        return reference

    monkeypatch.setattr(model_placement, "reference_outputs", wrong)
    with pytest.raises(VerifyError, match="under the plan output 0 of call 0 differs"):
        place(model, pw.Calls([((x,),)]), workers())
    assert not hasattr(model, "placed")
    assert torch.equal(model(x), right)


def test_outputs_in_float32_of_a_model_in_bfloat16_are_held_to_its_rounding(monkeypatch):
    values = iter([1.0, 1.01, 1.0, 1.01, 1.0, 1.1])

    def outputs(model, mix):
        return [[("logits 0", torch.tensor([next(values)]))]]

    monkeypatch.setattr(output_comparison, "_outputs", outputs)
    narrow = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    reference = output_comparison.reference_outputs(narrow, MIX)
    assert output_comparison.check_outputs(narrow, MIX, reference) == pytest.approx(0.01)
    for model in (torch.nn.Linear(2, 2), narrow):
        reference = output_comparison.reference_outputs(model, MIX)
        with pytest.raises(VerifyError, match="logits 0 of call 0 differs"):
            output_comparison.check_outputs(model, MIX, reference)


def test_arguments_of_calls_are_not_changed(monkeypatch):
    alternate(monkeypatch)
    model, own = llama(), llama()
    prompt = torch.randint(2, 64, (1, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        cache = own(prompt, use_cache=True).past_key_values
    kept = copy.deepcopy(cache)
    call = {"input_ids": prompt[:, :1], "past_key_values": cache}
    model, _ = place(model, pw.Calls([((), call, 3)]), workers())
    assert torch.equal(cache.layers[0].keys, kept.layers[0].keys)
    with torch.no_grad():
        ours = model(input_ids=prompt[:, :1], past_key_values=copy.deepcopy(cache))
        right = own(input_ids=prompt[:, :1], past_key_values=copy.deepcopy(cache))
    assert torch.allclose(ours.logits, right.logits, atol=1e-6)
    assert ours.past_key_values.get_seq_length() == 6


def test_a_training_step_is_placed_with_its_optimizer():
    class Loss(Chain):
        def forward(self, x):
            return super().forward(x).square().mean()

    model, own = Loss(), Loss()
    x = torch.rand(4, 16)
    model, lines = place(model, pw.Train((x,), optimizer="momentum"), workers())
    assert "a training step with momentum" in lines[1]
    assert torch.allclose(model.placed.train_step(x), own(x).detach())
    again, lines = place(Loss(), pw.Train((x,), optimizer="momentum"), workers())
    assert stages(lines) == ["machine", "plan", "weights"]
    assert torch.allclose(again.placed.train_step(x), own(x).detach())


def test_weights_of_a_model_on_meta_come_from_files(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    alternate(monkeypatch)
    own, x = chain(), torch.rand(2, 16)
    save_file(own.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        empty = Chain().eval()
    calls = pw.Calls([((x,),)])
    with pytest.raises(ConfigError, match="weights on meta: give their safetensors files"):
        place(empty, calls, workers())
    model, lines = place(empty, calls, workers(), weights=tmp_path)
    (line,) = (line for line in lines if line.startswith("verified"))
    assert "outputs are those of eager calls, within" in line
    assert torch.equal(model(x), own(x))


def test_calls_that_cannot_be_captured_are_an_error_that_says_why():
    class Counts(Chain):
        def forward(self, x):
            return super().forward(x) * int(x.sum())

    class Branches(Chain):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    with fake_gpus(), pytest.raises(pw.PlacewrightError, match="'Branches' cannot be captured"):
        place(Branches().eval(), pw.Calls([((torch.ones(2, 16),),)]), machine(1))
    with (
        fake_gpus(),
        pytest.raises(pw.PlacewrightError, match="makes a number of a tensor's values"),
    ):
        place(Counts().eval(), pw.Calls([((torch.ones(2, 16),),)]), machine(1))


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (None, "has no generate"),
        ("generate", "expected pw.Generate, pw.Calls or pw.Train"),
    ],
)
def test_a_workload_that_does_not_suit_the_model_is_an_error(workload, message):
    with pytest.raises(ConfigError, match=message):
        place(chain(), workload, workers())


def test_a_model_is_placed_once(monkeypatch):
    alternate(monkeypatch)
    calls = pw.Calls([((torch.ones(2, 16),),)])
    model, _ = place(chain(), calls, workers())
    with pytest.raises(PlanError, match=r"model\.placed\.remove\(\) first"):
        place(model, calls, workers())
    assert "placed" not in vars(model.placed.remove())


def test_the_encoder_of_an_encoder_decoder_runs_under_the_plan(monkeypatch):
    alternate(monkeypatch)
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=2,
        decoder_start_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    own = copy.deepcopy(model)
    model, lines = place(model, MIX, workers())
    assert "encode (" in lines[2]
    encoder = model.get_encoder()
    assert encoder.placed is model.placed
    mask = {"attention_mask": torch.ones(1, 9, dtype=torch.long)}
    assert torch.equal(tokens(model, **mask), tokens(own, **mask))
    assert not model.placed.eager_calls
    with pytest.raises(pw.PlacewrightError, match="cannot be copied"):
        copy.deepcopy(encoder)
    model.placed.remove()
    assert "forward" not in vars(encoder)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_a_graph_of_one_length_serves_other_batches_under_a_limit():
    def mamba():
        torch.manual_seed(0)
        config = transformers.MambaConfig(
            vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=1
        )
        return transformers.MambaModel(config).eval()

    model, own = mamba(), mamba()  # its loop over tokens is traced for one number of them
    size = sum(weight.nbytes for weight in model.parameters())
    tokens_of = torch.Generator().manual_seed(0)
    calls = pw.Calls([((), {"input_ids": torch.ones(6, 3, dtype=torch.long)})])
    with fake_gpus(), torch.no_grad():
        model, _ = place(model, calls, machine(1), limits={"gpu0": size * 3 // 4})
        for batch in (6, 4, 5):
            x = torch.randint(2, 64, (batch, 3), generator=tokens_of)
            right = own(input_ids=x).last_hidden_state
            assert torch.allclose(model(input_ids=x).last_hidden_state, right, atol=1e-5)
        assert not model.placed.eager_calls


def test_a_call_that_cannot_keep_the_limit_is_refused_before_it_runs():
    model, own = llama(), llama()
    size = sum(weight.nbytes for weight in model.parameters())
    limit = size * 3 // 4
    with fake_gpus():
        model, _ = place(model, MIX, machine(1), limits={"gpu0": limit})
        assert torch.equal(tokens(model), tokens(own))
        with pytest.raises(pw.PlacewrightError, match="this call does not fit: gpu0 needs") as info:
            tokens(model, 4000)
        needed = int(str(info.value).partition("'gpu0': ")[2].partition("}")[0])
        assert needed > limit
        assert torch.equal(tokens(model), tokens(own))  # the next call runs as before
        model.placed.remove()
        model, _ = place(llama(), MIX, machine(1), limits={"gpu0": needed}, fresh=True)
        assert torch.equal(tokens(model, 4000, 1), tokens(own, 4000, 1))


def test_a_compiled_call_runs_under_a_cap_and_the_error_says_what_would_do(monkeypatch):
    model, own = chain(), chain()
    x = torch.rand(2, 16)
    size = sum(weight.nbytes for weight in model.parameters())
    limit = size * 3 // 4
    with fake_gpus() as cuda:
        model, _ = place(model, pw.Calls([((x,),)]), machine(1), limits={"gpu0": limit})
        executor = model.placed.graphs[0].executor
        outputs, caps = type(executor).outputs_or_close, []

        def too_large(self, number):
            caps.append(list(cuda.caps))
            self.close()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 KiB. GPU 0")

        monkeypatch.setattr(type(executor), "outputs_or_close", too_large)
        with pytest.raises(
            pw.PlacewrightError, match="the call does not fit: GPU 0 may use"
        ) as info:
            model(x)
        assert caps == [[limit]]
        assert not cuda.caps
        assert "needs 3,072 bytes or more" in str(info.value)
        monkeypatch.setattr(type(executor), "outputs_or_close", outputs)
        assert torch.equal(model(x), own(x))  # the next call runs as before


def test_what_libraries_need_is_part_of_a_limit():
    model, own = llama(), llama()
    size = sum(weight.nbytes for weight in model.parameters())
    cluster, reserve = machine(1), size // 4
    devices = tuple(
        device if device.kind == "cpu" else replace(device, reserve=reserve)
        for device in cluster.devices
    )
    cluster, limits = replace(cluster, devices=devices), {"gpu0": size}
    with fake_gpus():
        with pytest.raises(PlanError, match=f"libraries need {reserve:,} there for themselves"):
            place(model, MIX, cluster, limits={"gpu0": reserve})
        model, _ = place(model, MIX, cluster, limits=limits)
        assert torch.equal(tokens(model), tokens(own))  # and is not refused
        plan = model.placed.backend.plan
        devices = dict(zip(plan.ops, plan.placement.tolist(), strict=True))
        on_gpu = [w.nbytes for name, w in model.named_parameters() if devices[name] == 1]
        assert 0 < sum(on_gpu) < size - reserve


class Widens(Chain):
    """A chain with a large tensor in the middle."""

    def forward(self, x, times=1):
        hidden = self.one(x)
        if times > 1:
            hidden = hidden.repeat(times, 1)[: len(x)]
        return self.two(torch.relu(hidden))


def test_a_call_that_is_not_captured_keeps_the_limit_and_the_error_names_the_function():
    model, own = Widens(64).eval(), Widens(64).eval()
    x = torch.rand(2, 64)
    size = sum(weight.nbytes for weight in model.parameters())
    limit = size * 3 // 4
    with fake_gpus(counts_host=True) as cuda:
        calls = pw.Calls([((x,),)])
        model, _ = place(model, calls, machine(1), limits={"gpu0": limit})
        with model.placed.eager():
            assert torch.equal(model(x), own(x))
            assert torch.equal(model(x, 4), own(x, 4))
            with pytest.raises(pw.PlacewrightError, match="function 'repeat' of a call") as info:
                model(x, 1000)
            needed = 1000 * x.nbytes
            found = int(str(info.value).partition("needs ")[2].split(" bytes")[0].replace(",", ""))
            assert needed <= found <= needed + limit
            assert torch.equal(model(x), own(x))  # the next call runs as before
        assert cuda.reserved <= limit
