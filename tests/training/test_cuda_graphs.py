"""Functions that are captured in CUDA graphs, with graphs that the test makes."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from placewright.training.cuda_graphs import CapturedFunction  # noqa: E402

CUDA = torch.device("cuda")


class FakeGraph:
    """Counts its replays."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def captures(monkeypatch) -> list[FakeGraph]:
    """The graphs that were captured."""
    graphs: list[FakeGraph] = []

    @contextmanager
    def capture(graph):
        graphs.append(graph)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return graphs


def test_the_third_call_captures_and_replays(captures):
    calls = []
    function = CapturedFunction(lambda: calls.append(1) or len(calls), CUDA)
    assert [function() for _ in range(5)] == [1, 2, 3, 3, 3]
    assert captures[0].replays == 3  # a capture itself runs nothing
    assert function.is_captured
    function.reset()
    assert [function() for _ in range(4)] == [4, 5, 6, 6]
    assert len(captures) == 2


def test_a_capture_that_fails_leaves_plain_calls(captures):
    calls = []

    def function() -> int:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("operation not permitted\n when stream is capturing")
        return len(calls)

    captured = CapturedFunction(function, CUDA)
    assert [captured() for _ in range(4)] == [1, 2, 4, 5]
    assert captured.error == "operation not permitted when stream is capturing"
    assert not captured.is_captured


def test_nothing_is_captured_before_its_tensors_stay_or_on_a_cpu(captures):
    counts = iter(range(100))
    waiting = CapturedFunction(lambda: next(counts), CUDA)
    assert [waiting(may_capture=False) for _ in range(4)] == [0, 1, 2, 3]
    assert [waiting() for _ in range(3)] == [4, 4, 4]
    assert len(captures) == 1
    for plain in (
        CapturedFunction(lambda: next(counts), torch.device("cpu")),
        CapturedFunction(lambda: next(counts), CUDA, captures=False),
    ):
        assert len({plain() for _ in range(4)}) == 4
    assert len(captures) == 1
