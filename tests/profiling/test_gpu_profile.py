"""A GPU, measured: only where there is one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from placewright import Plan, Problem, simulate  # noqa: E402
from placewright.profiling.machine_profile import profile_machine  # noqa: E402
from placewright.profiling.op_costs import profile_ops  # noqa: E402
from placewright.profiling.timing import time_on_gpu  # noqa: E402
from placewright.runtime.program.program import build_program  # noqa: E402
from placewright.runtime.real_devices import machine_devices  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield profile_machine(refresh=True)


def test_a_gpu_is_faster_than_its_host_and_its_links_are_real(profile):
    gpu, host = (profile.cluster.devices[profile.cluster.position[n]] for n in ("gpu0", "cpu"))
    assert gpu.rate("bfloat16") > 5 * host.rate("bfloat16")
    assert gpu.memory_bandwidth > 3 * host.memory_bandwidth
    assert 1e-6 < gpu.launch_overhead < 1e-4
    for pair in (("cpu", "gpu0"), ("gpu0", "cpu")):
        link = profile.cluster.links[pair]
        assert 1e9 < link.bandwidth < 1e12
        assert 0 < link.latency < 1e-3
    assert all(
        wire["pageable"] < 1.2 * profile.cluster.links[wire["from"], wire["to"]].bandwidth
        for wire in profile.facts["links"]
    )


def test_short_ops_are_timed_as_they_are_replayed_and_those_that_wait_are_not():
    one, few = torch.ones(8, device="cuda"), torch.tensor([1.0, 0.0, 2.0], device="cuda")
    found = time_on_gpu(torch, 0, lambda _: one + one)
    assert 2e-7 < found.seconds < 2e-6 < found.issue
    waits = time_on_gpu(torch, 0, lambda _: few.nonzero())
    assert waits.seconds > found.seconds
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.get_sync_debug_mode() == 0
    large = torch.ones(1 << 28, device="cuda")
    assert time_on_gpu(torch, 0, lambda _: large.add_(1)).seconds > 1e-4


@pytest.mark.parametrize("width", [64, 4096], ids=["bound by the host", "bound by the GPU"])
def test_the_table_predicts_a_run_on_the_gpu(profile, width):
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU()).to(torch.bfloat16).eval()
    call = (torch.rand(256, width, dtype=torch.bfloat16),)
    program = build_program(model, call)
    chosen = machine_devices(profile.machine)
    found = profile_ops(program, profile.machine, profile.cluster, chosen, 20, refresh=True)
    assert found.failed == {}
    problem = Problem(program.graph, profile.cluster.subset(["gpu0"]), found.table)
    predicted = simulate(problem, Plan.of(problem, [0] * len(program.graph))).step_time
    model, given = model.to("cuda"), call[0].to("cuda")
    runs = []
    with torch.no_grad():
        for _ in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            model(given)
            end.record()
            end.synchronize()
            runs.append(start.elapsed_time(end) * 1e-3)
    measured = sorted(runs)[10]
    assert predicted / 3 < measured < predicted * 3
