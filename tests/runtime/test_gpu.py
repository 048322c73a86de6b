"""Plans run on a real GPU and its host. Run with `pytest -m gpu tests/runtime/test_gpu.py`."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from models import Branches, Cached, capture, nn, plans, torch, twin

import placewright as pw
from placewright import Cluster, Device, Link, Plan
from placewright.runtime import Executor, verify
from placewright.runtime.program.optimizer_step import OptimizerRule
from placewright.zoo.networks import NETWORKS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CLOSE = {"atol": 2e-4, "rtol": 2e-3}


@pytest.fixture(autouse=True)
def _exact():
    """No TF32: outputs are compared with the CPU's."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def machine(*names: str) -> Cluster:
    """The host and streams of the GPU."""
    host = Device("cpu", "cpu", memory=2**36, rates={"float32": 1e12}, memory_bandwidth=1e30)
    devices = (
        host,
        *(
            Device(name, memory=2**36, rates={"float32": 1e13}, memory_bandwidth=1e30)
            for name in names
        ),
    )
    every = [device.name for device in devices]
    return Cluster("here", devices, {(a, b): Link(5e10) for a in every for b in every if a != b})


def all_on(problem, number):
    return problem.legalize(np.full(len(problem.graph), number))


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama-8b", "inception-v3", "nmt-2"])
def test_any_plan_gives_the_networks_outputs(name, staged, graphs):
    torch.manual_seed(0)
    training = {"training": False} if "training" in NETWORKS[name].arguments() else {}
    model, args, kwargs = NETWORKS[name].build("test", **training)
    program, problem = capture(model.eval(), args, machine("gpu0.0", "gpu0.1"), kwargs=kwargs)
    with torch.no_grad():
        expected = model(*args, **kwargs)
    for plan in plans(problem, 3, staged=staged):
        with Executor(program, twin(model), plan, cuda_graphs=graphs) as run:
            for _ in range(4):
                made = run(*args, **kwargs)
        assert torch.allclose(made.cpu(), expected, **CLOSE)


def test_graphs_replay_what_was_captured_with_new_inputs_and_keep_old_outputs():
    torch.manual_seed(0)
    model, args, kwargs = NETWORKS["gpt2"].build("test", training=False)
    program, problem = capture(model.eval(), args, machine("gpu0"), kwargs=kwargs)
    plan = Plan.of(problem, all_on(problem, 1))
    with Executor(program, twin(model), plan, cuda_graphs=True) as run:
        for _ in range(3):
            first = run(*args, **kwargs)
        kept = first.clone()
        assert any(
            segment.graph is not None for segment in run.issuer.cuda_graphs.segments.values()
        )
        other = [torch.zeros_like(one) for one in args]
        with torch.no_grad():
            expected = model(*other, **kwargs)
        assert torch.allclose(run(*other, **kwargs).cpu(), expected, **CLOSE)
        assert torch.equal(first, kept)


def test_states_stay_on_the_gpu():
    model = Cached()
    rows = [(torch.randn(1, 8), torch.tensor([at])) for at in (3, 0, 3, 1, 2, 4)]
    program, problem = capture(model, rows[0], machine("gpu0"))
    reference = twin(model)
    with torch.no_grad():
        expected = [[one.clone() for one in reference(*row)] for row in rows]
    for plan in [Plan.of(problem, all_on(problem, 1)), *plans(problem, 3)]:
        for graphs in (False, True):
            mine = twin(model)
            with Executor(program, mine, plan, cuda_graphs=graphs) as run:
                for row, wanted in zip(rows, expected, strict=True):
                    for one, other in zip(run(*row), wanted, strict=True):
                        assert torch.allclose(one.cpu(), other, **CLOSE)
            assert torch.allclose(mine.cache.cpu(), reference.cache, **CLOSE)


@pytest.mark.parametrize("name", ["gpt2", "llama-8b", "rnnlm-2"])
@pytest.mark.parametrize("staged", [False, True])
def test_a_training_step_is_that_of_the_cpu(name, staged):
    torch.manual_seed(0)
    model, args, kwargs = NETWORKS[name].build("test", training=True)
    program, problem = capture(
        model,
        args,
        machine("gpu0"),
        kwargs=kwargs,
        training=True,
        optimizer=OptimizerRule("sgd", 0.1),
    )
    one = Plan.of(problem, all_on(problem, 0))
    trained = twin(model)
    with Executor(program, trained, one, seed=1) as run:
        losses = [run(*args, **kwargs).item() for _ in range(3)]
    for plan in [Plan.of(problem, all_on(problem, 1)), *plans(problem, 2, staged=staged)]:
        mine = twin(model)
        with Executor(program, mine, plan, seed=1) as run:
            made = [run(*args, **kwargs).item() for _ in range(3)]
        assert made == pytest.approx(losses, rel=2e-3, abs=2e-4)
        for one_weight, other in zip(mine.parameters(), trained.parameters(), strict=True):
            assert torch.allclose(one_weight.cpu(), other, **CLOSE)


class Deep(nn.Module):
    """Large layers, so that streaming them takes time."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def test_streamed_weights_stay_within_the_buffer_and_run_at_the_links_speed(request):
    request.addfinalizer(gc.enable)
    layers, width = 24, 4096  # 64 MiB each, 1.5 GiB in all
    size = width * width * 4
    model, x = Deep(layers, width), torch.randn(8, width)
    program, problem = capture(model, x, machine("gpu0"))
    device = all_on(problem, 1)
    device[problem.arrays.is_weight] = 0
    with torch.no_grad():
        expected = model(x)
    seconds = {}
    for blocks in (1, 2):
        plan = Plan.of(problem, device, staging={"gpu0": blocks * size})
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gc.disable()  # what an executor had is given back when it is closed, not some time later
        with Executor(program, twin(model), plan) as run:
            for _ in range(9):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                made = run(x)
                torch.cuda.synchronize()
                seconds[blocks] = time.perf_counter() - begin
            assert torch.allclose(made.cpu(), expected, **CLOSE)
        assert torch.cuda.max_memory_allocated() - before < blocks * size + 64 * 2**20
        del run, made
        assert torch.cuda.memory_allocated() - before < 2**20
        gc.enable()
    rate = layers * size / seconds[2]
    print(f"streamed at {rate / 1e9:.1f} GB/s with two blocks, {seconds}")
    assert rate > 20e9


class Wide(nn.Module):
    """Large tensors between small ops."""

    def forward(self, x):
        for _ in range(8):
            x = torch.tanh(x) * 1.5 + x
        return x


@pytest.mark.parametrize(("spare", "captured"), [(8, False), (40, False), (400, True)])
def test_graphs_never_take_the_memory_that_a_step_needs(request, spare, captured):
    model, x = Wide(), torch.randn(2048, 4096)  # 32 MiB a tensor
    program, problem = capture(model, x, machine("gpu0"))
    plan = Plan.of(problem, all_on(problem, 1))
    expected = model(x)
    total = torch.cuda.get_device_properties(0).total_memory
    request.addfinalizer(lambda: torch.cuda.set_per_process_memory_fraction(1.0))
    with Executor(program, model, plan, cuda_graphs=True) as run:
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        assert torch.allclose(run(x).cpu(), expected, **CLOSE)  # op by op
        torch.cuda.empty_cache()
        limit = torch.cuda.max_memory_allocated() + spare * 2**20
        torch.cuda.set_per_process_memory_fraction(limit / total)
        for _ in range(4):
            assert torch.allclose(run(x).cpu(), expected, **CLOSE)
        assert bool(run.issuer.cuda_graphs.segments) == captured


def test_a_captured_training_step_over_both_needs_little_more_than_op_by_op():
    """16 MiB each: weights, their gradients, which are there at the end, and activations."""
    layers = [layer for _ in range(10) for layer in (nn.Linear(2048, 2048, bias=False), nn.Tanh())]
    model, x = nn.Sequential(*layers, nn.Linear(2048, 1)), torch.randn(2048, 2048)
    how = {"training": True, "optimizer": OptimizerRule("sgd", 1e-3)}
    program, problem = capture(model, x, machine("gpu0"), **how)
    device = all_on(problem, 1)
    last = [at for at, op in enumerate(problem.graph.ops) if op.module == "20" and op.inputs]
    device[[at for at in last if max(problem.graph.ops[at].outputs) < 2**20]] = 0
    plan, peaks, losses = Plan.of(problem, problem.legalize(device)), [], []
    for graphs in (False, True):
        with Executor(program, twin(model), plan, cuda_graphs=graphs) as run:
            gc.collect()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            losses.append([run(x).sum().item() for _ in range(4)])
            torch.cuda.synchronize()
            peaks.append(torch.cuda.max_memory_allocated() - before)
            assert ("graph" in run.issue_mode) == graphs
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert peaks[1] < 1.1 * peaks[0]


def test_weights_stream_while_the_cpu_computes():
    layers, width = 12, 4096
    size = width * width * 4
    model, x = Deep(layers, width), torch.randn(1, width)
    program, problem = capture(model, x, machine("gpu0"))
    weights = [at for at, op in enumerate(problem.graph.ops) if op.kind == "weight"]
    readers = {at: problem.graph.readers[at, 0][0] for at in weights}

    def timed(on_cpu):
        device = all_on(problem, 1)
        device[weights] = 0
        for weight in on_cpu:
            device[readers[weight]] = 0
        plan = Plan.of(problem, device, staging={"gpu0": 4 * size})
        with Executor(program, twin(model), plan) as run:
            best = np.inf
            for _ in range(9):
                begin = time.perf_counter()
                made = run(x)
                torch.cuda.synchronize()
                best = min(best, time.perf_counter() - begin)
        with torch.no_grad():
            assert torch.allclose(made.cpu(), model(x), **CLOSE)
        return best

    streamed, computed = timed([]), timed(weights)
    mixed = timed(weights[1::4])
    print(
        f"all streamed {streamed * 1e3:.2f} ms, all on the CPU {computed * 1e3:.2f} ms, "
        f"a quarter on the CPU {mixed * 1e3:.2f} ms"
    )
    assert mixed < max(streamed, computed)


def test_steps_in_flight_on_two_streams_keep_their_order():
    model = Branches(256)
    inputs = [torch.randn(64, 256) for _ in range(8)]
    program, problem = capture(model, inputs[0], machine("gpu0.0", "gpu0.1"))
    for plan in plans(problem, 4):
        with Executor(program, twin(model), plan) as run:
            numbers = [run.submit(x) for x in inputs]
            made = [run.result(number)["made"].cpu() for number in numbers]
        for one, x in zip(made, inputs, strict=True):
            with torch.no_grad():
                assert torch.allclose(one, model(x)["made"], **CLOSE)


def test_multiprocessors_can_be_shared_out():
    model, x = Branches(256), torch.randn(64, 256)
    program, problem = capture(model, x, machine("gpu0.0", "gpu0.1"))
    where = {"gpu0.0": "cuda:0/0@64", "gpu0.1": "cuda:0/1@64"}
    with torch.no_grad():
        expected = model(x)["made"]
    for plan in plans(problem, 2):
        with Executor(program, twin(model), plan, device_map=where, cuda_graphs=False) as run:
            for _ in range(3):
                made = run(x)["made"]
        assert torch.allclose(made.cpu(), expected, **CLOSE)


@pytest.mark.parametrize("name", ["gpt2", "resnet-50", "rnnlm-2"])
@pytest.mark.parametrize("training", [False, True])
def test_verified_plans_keep_within_predicted_memory(name, training):
    torch.manual_seed(0)
    model, args, kwargs = NETWORKS[name].build("test", training=training)
    how = {"training": True, "optimizer": "adam"} if training else {}
    program, problem = capture(model, args, machine("gpu0"), kwargs=kwargs, **how)
    for plan in [Plan.of(problem, all_on(problem, 1)), *plans(problem, 2)]:
        seen = verify(program, twin(model), plan, args, kwargs, problem=problem)
        assert seen.ops == sum(problem.arrays.scheduled)


class Decoder(nn.Module):
    """Blocks with residuals and a cache that grows by a row with every call."""

    def __init__(self, blocks: int = 4, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(width, width), "down": nn.Linear(width, width)})
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x, cache=None):
        grown = []
        for at, block in enumerate(self.blocks):
            rows = block["up"](self.norm(x))
            if cache is not None:
                rows = torch.cat([cache[at], rows])
            grown.append(rows)
            x = x + block["down"](torch.softmax(x @ rows.T, -1) @ rows)
        return x, grown


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # PyTorch's, of a thread of its own
@pytest.mark.parametrize("staged", [False, True])
def test_an_applied_model_works_in_a_loop_with_a_growing_cache(staged):
    torch.manual_seed(0)
    model = Decoder().eval()
    reference = twin(model)
    _, problem = capture(model, torch.randn(3, 64), machine("gpu0"))
    for plan in plans(problem, 2, staged=staged):
        mine = pw.apply(plan, twin(model))
        cache, expected, x = None, None, torch.randn(3, 64)
        with torch.no_grad():
            for _ in range(6):
                made, cache = mine(x) if cache is None else mine(x, cache)
                right, expected = reference(x, expected)
                assert made.device == x.device
                assert torch.allclose(made, right, **CLOSE)
                x = torch.randn(1, 64)
        mine.train()
        mine(torch.randn(3, 64))[0].sum().backward()
        assert all(parameter.grad is not None for parameter in mine.parameters())
        homes = {str(parameter.device) for parameter in mine.parameters()}
        assert homes <= {"cpu", "cuda:0"}


def test_a_model_on_meta_is_loaded_straight_to_the_gpu(tmp_path):
    from safetensors.torch import save_file

    real = Decoder().eval()
    save_file(real.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = Decoder().eval()
    _, problem = capture(model, torch.empty(3, 64, device="meta"), machine("gpu0"))
    pw.apply(Plan.of(problem, all_on(problem, 1)), model, weights=tmp_path)
    x = torch.randn(3, 64)
    with torch.no_grad():
        assert torch.allclose(model(x)[0], real(x)[0], **CLOSE)
    assert {str(parameter.device) for parameter in model.parameters()} == {"cuda:0"}
