"""Large outputs are handed out as they are: no replay makes them, so none overwrites them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from models import capture, machine, nn, streams_of_one, torch, twin

from placewright import Graph, Op, Plan, Table
from placewright.profiling.as_executed import with_output_copies
from placewright.runtime import Executor
from placewright.runtime.cuda import graph_memory
from placewright.runtime.cuda.graph_memory import graph_resident_bytes, large_output_ops

WORDS = 150_000
"""Columns of an output: two rows of float32 are more than 1 MiB."""


class Speaker(nn.Module):
    """Some layers, and logits that are many times larger; as they are or in another shape."""

    def __init__(self, shaped: bool = False) -> None:
        super().__init__()
        self.shaped = shaped
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
        self.head = nn.Linear(8, WORDS)

    def forward(self, x):
        x = self.layers(x)
        made = self.head(x)
        return (made.view(1, 2, WORDS) if self.shaped else made), x.sum()


@pytest.fixture(autouse=True)
def lower(monkeypatch):
    """Outputs of 1 MiB count as large, so that models can be small."""
    monkeypatch.setattr(graph_memory, "LARGE_OUTPUT_BYTES", 1 << 20)


def ops_named(graph, *names):
    return {at for at, op in enumerate(graph.ops) if op.name in names}


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("how", ["whole", "staged", "mixed", "two streams"])
def test_large_outputs_are_made_after_the_graph_and_never_copied(how, shaped, cuda, monkeypatch):
    model, x = Speaker(shaped).eval(), torch.randn(2, 8)
    cluster = streams_of_one() if how == "two streams" else machine(1)
    program, problem = capture(model, x, cluster)
    device = problem.legalize([1] * len(problem.graph))
    turns = problem.arrays.scheduled.nonzero()[0]
    small = ops_named(problem.graph, *(f"layers.{at}.{kind}" for at in range(6) for kind in KINDS))
    if how == "staged":
        device[sorted(small)] = 0
    if how == "mixed":
        device[turns[-1]] = 0 if turns[-1] not in large_output_ops(problem.graph) else 1
        device[turns[0]] = 0
    if how == "two streams":
        device[turns[::2]] = 0
    plan = Plan.of(problem, device, staging={"gpu0": 3 * 4 * 8 * 9} if how == "staged" else None)
    clone = torch.Tensor.clone

    def guarded(value):
        assert value.nbytes < 1 << 20, "a copy of a large output"
        return clone(value)

    calls = [torch.randn(2, 8) for _ in range(6)]
    with Executor(program, twin(model), plan, cuda_graphs=True) as run:
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "clone", guarded)
            made = [run(one) for one in calls]
        replayed = [one for one in run.issuer.cuda_graphs.segments.values() if one.graph]
        assert how == "mixed" or [one.step_ops for one in replayed] == [
            len(turns) - (3 if shaped else 2)
        ]
    for got, given in zip(made, calls, strict=True):  # all of them are still what they were
        for one, other in zip(got, model(given), strict=True):
            assert torch.allclose(one, other, atol=1e-5)


KINDS = ("weight", "bias")


def test_streamed_weights_of_a_large_output_are_part_of_the_graph(cuda):
    model, x = Speaker().eval(), torch.randn(2, 8)
    program, problem = capture(model, x, machine(1))
    device = problem.legalize([1] * len(problem.graph))
    device[problem.arrays.is_weight] = 0
    plan = Plan.of(problem, device, staging={"gpu0": 4 * WORDS * 9 + 1024})
    calls = [torch.randn(2, 8) for _ in range(4)]
    with Executor(program, twin(model), plan, cuda_graphs=True) as run:
        made = [run(one) for one in calls]
        (segment,) = run.issuer.cuda_graphs.segments.values()
        assert segment.step_ops == len(run.issuer.order)
    for got, given in zip(made, calls, strict=True):
        assert torch.allclose(got[0], model(given)[0], atol=1e-5)


def test_what_is_made_all_along_a_step_is_replayed():
    class Early(Speaker):
        def forward(self, x):
            early = self.head(x)
            for _ in range(10):
                x = x * 2
            return early, x

    _, problem = capture(Early(), torch.randn(2, 8), machine(1))
    assert large_output_ops(problem.graph) == frozenset()


def test_views_of_a_large_output_are_excluded_with_it():
    _, problem = capture(Speaker(shaped=True), torch.randn(2, 8), machine(1))
    graph = problem.graph
    found = large_output_ops(graph)
    assert {graph.ops[at].outputs for at in found} == {(2 * WORDS * 4,)}
    assert len(found) == 2
    assert graph_resident_bytes(graph) == 2 * (2 * 8 * 4)  # a layer's input and output


def test_a_plan_reserves_memory_for_graphs_and_not_for_a_second_output():
    size = 100 << 20
    ops = [
        Op("x", "input", (), (64,)),
        Op("wide", "matmul", ((0, 0),), (5 << 20,)),
        Op("narrow", "matmul", ((1, 0),), (64,)),
        Op("logits", "matmul", ((2, 0),), (size,)),
        Op("sum", "reduction", ((2, 0),), (4,)),
    ]
    graph = Graph("speaker", tuple(ops), outputs=((3, 0), (4, 0)))
    needs = np.array([0, 30, 1000, 7, 0])
    table = Table(
        tuple(op.name for op in ops), ("gpu",), np.ones((len(ops), 1)), workspace=needs.copy()
    )
    room = with_output_copies(table, graph).workspace
    assert room is not None
    assert graph_resident_bytes(graph) == (5 << 20) + 64
    assert graph_resident_bytes(graph, needs.tolist()) == (5 << 20) + 64 + 1000
    assert room[3] == 7 + (5 << 20) + 64 + 1000 + (20 << 20) < size
    assert room[4] == 4  # a small output is copied


class Tied(nn.Module):
    """Words in and out by one weight, with some layers between."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS // 4, 8)
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))

    def forward(self, tokens):
        x = self.layers(self.words(tokens))
        return (x @ self.words.weight.T).square().mean()


def test_large_transfers_are_excluded_from_graphs(cuda, monkeypatch):
    monkeypatch.setattr(graph_memory, "LARGE_TRANSFER_BYTES", 1 << 20)
    model, tokens = Tied(), torch.arange(3)
    program, problem = capture(model, tokens, machine(1), training=True, optimizer="sgd")
    ops = problem.graph.ops
    at_host = [op.name.startswith("words") for op in ops]  # the weight, its gradient's sum, update
    plan = Plan.of(problem, problem.legalize(np.where(at_host, 0, 1)))
    other = copy.deepcopy(model)
    alone = Plan.of(problem, problem.legalize(np.zeros(len(ops), dtype=int)))
    with Executor(program, model, plan, cuda_graphs=True) as run:
        made = [run(tokens).item() for _ in range(5)]
        graphs = run.issuer.cuda_graphs
        assert graphs.has_graphs
        turns = run.jobs[1].instructions.sequence
        sent = {
            ops[turn.position].name
            for turn in turns
            for output, _ in turn.sends
            if ops[turn.position].outputs[output] >= 1 << 20
        }
        assert sent  # the gradient
        for segment in graphs.segments.values():
            held = [*segment.inputs.values(), *segment.outputs.values()]
            assert all(value.nbytes < 1 << 20 for value in held)
    with Executor(program, other, alone) as run:
        expected = [run(tokens).item() for _ in range(5)]
    assert made == pytest.approx(expected, rel=1e-5)


def test_what_meets_a_bulky_op_over_something_large_is_issued_with_it():
    large, small = graph_memory.LARGE_TRANSFER_BYTES, 64
    ops = [
        Op("x", "input", (), (large,)),
        Op("early", "matmul", ((0, 0),), (large,)),
        Op("maker", "matmul", ((1, 0),), (large,)),
        Op("view", "view", ((2, 0),), (large,), aliases=((0, 0),)),
        Op("bulky", "elementwise", ((3, 0),), (large, small)),
        Op("reader", "elementwise", ((4, 0),), (small,)),
        Op("far", "elementwise", ((4, 1), (5, 0)), (small,)),
    ]
    graph = Graph("met", tuple(ops), outputs=((6, 0),))
    found = graph_memory.adjacent_ops(graph, {4})
    assert {graph.ops[at].name for at in found} == {"maker", "view", "reader"}
    assert graph_memory.adjacent_ops(graph, ()) == set()
