"""Memory fit: whether a model fits, what takes the memory, and what would do."""

from __future__ import annotations

import pytest

import placewright as pw
from placewright.explanations import MemoryUse, memory_fit
from placewright.explanations.host_memory import add_host
from placewright.units import format_bytes, parse_bytes

GIB = 2**30


def problem(model: str, on: str, **limits: str) -> pw.Problem:
    return pw.Problem(pw.zoo.load(model), pw.Cluster.parse(on), limits=limits)


def test_what_fits_one_device_takes_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(memory_fit, "solve")
    monkeypatch.delattr(memory_fit, "QuickPlans")
    found = pw.fits(problem("transformer:context=4096", "A100"))
    assert found.fits
    assert found.verdict.startswith("fits: everything on gpu0, 6.501 GiB of 39 GiB")
    assert found.remedies == []


def test_memory_is_told_apart_by_what_takes_it() -> None:
    # 16 blocks with a cache of 2 x 4,096 tokens x 4,096 x 2 bytes are 1 GiB
    use = pw.fits(problem("transformer:context=4096", "A100")).whole
    assert use.cache == GIB
    assert use.weights == pw.fits(problem("transformer", "A100")).whole.weights
    assert use.optimizer == use.staging == 0


@pytest.mark.parametrize(
    ("model", "on", "limits"),
    [
        ("transformer:context=100", "A100", {}),
        ("cifar10", "P100+cpu", {}),
        ("transformer:tokens=64", "V100+cpu", {"gpu0": "3GiB"}),
        ("offload", "2xP100+cpu", {"gpu0": "2GiB", "gpu1": "1GiB"}),
    ],
)
def test_the_parts_add_up_to_the_simulated_peak(model: str, on: str, limits: dict) -> None:
    found = pw.fits(problem(model, on, **limits))
    assert found.plan is not None
    timeline = pw.simulate(found.problem, found.plan)
    assert [use.peak for use in found.uses] == timeline.peak.tolist()
    assert [use.usable for use in found.uses] == timeline.capacity.tolist()
    assert found.fits == timeline.fits
    assert found.seconds == timeline.step_time
    for use in found.uses:
        assert min(use.weights, use.optimizer, use.cache, use.activations, use.staging) >= 0


def test_states_of_an_optimizer_are_told_from_weights() -> None:
    pytest.importorskip("torch")
    found = pw.fits(problem("gpt2:size=test,optimizer=adam", "P100"))
    assert found.whole.optimizer == 2 * found.whole.weights


def test_what_does_not_fit_says_which_limit_would_do() -> None:
    found = pw.fits(problem("offload", "P100", gpu0="2GiB"))
    assert not found.fits
    assert found.seconds is None
    assert found.verdict == ("does not fit: everything takes 5.5 GiB, 3.5 GiB more than gpu0 has")
    host, limit = found.remedies
    assert host.startswith("with a host of 256 GiB (P100+cpu): it fits, ")
    option, size = limit.split()[1].split("=")
    assert option == "gpu0"
    assert pw.fits(problem("offload", "P100", gpu0=size)).fits
    assert str(found).startswith(found.verdict)


def test_what_fits_in_parts_has_the_time_of_a_plan() -> None:
    found = pw.fits(problem("offload", "P100+cpu", gpu0="2GiB"))
    assert found.fits
    assert not found.whole.fits
    best = pw.solve(found.problem, stop=pw.MaxEvaluations(300))
    assert found.seconds is not None
    assert best.step_time <= found.seconds * 1.0001
    assert found.added_host is None


def test_a_device_that_is_too_small_for_any_limit_is_said() -> None:
    found = pw.fits(problem("transformer:blocks=100", "P100"))
    assert found.remedies[-1].startswith("a device with ")


@pytest.mark.parametrize("size", [1, 999, 1023, 1025, 5906169856, 3 * GIB, 147_648_000_001])
def test_a_limit_that_is_shown_is_enough(size: int) -> None:
    shown = parse_bytes(format_bytes(memory_fit._round_up(size)))
    assert size <= shown <= size * 1.002 + 1


def test_a_use_fits_to_the_last_byte() -> None:
    assert MemoryUse("gpu0", 1, 2, 3, 4, 5, usable=15).fits
    assert not MemoryUse("gpu0", 1, 2, 3, 4, 6, usable=15).fits


def test_a_host_is_added_only_where_there_is_none_and_times_are_estimates() -> None:
    tight = problem("offload", "2xP100", gpu0="1GiB", gpu1="1GiB")
    added = add_host(tight)
    assert added is not None
    assert added.cluster == "2xP100+cpu"
    assert added.result.fits
    assert added.result.devices[0].limit == GIB
    assert add_host(problem("offload", "P100+cpu", gpu0="1GiB")) is None
    own = pw.Cluster("mine", tight.cluster.devices, tight.cluster.links)
    assert add_host(pw.Problem(tight.graph, own)) is None
    table = pw.Table(tuple(tight.graph.position), ("P100",), [[1e-3]] * len(tight.graph))
    assert add_host(pw.Problem(tight.graph, tight.cluster, table)) is None
