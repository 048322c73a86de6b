"""Graphs in files: what is kept, what is left out, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from yardstick import lengths

from placewright import Cluster, Graph, Op, Problem, load, save
from placewright.errors import ConfigError, GraphError, PlacewrightError
from placewright.files import from_data, to_data

Data = dict[str, Any]
Write = Callable[..., Path]
GRAPH = {"placewright": "graph", "version": 2}


def test_every_field_of_an_op_is_kept_and_defaults_are_left_out(tmp_path: Path) -> None:
    full = Op(
        name="b",
        kind="conv",
        inputs=((0, 0), (0, 2)),
        outputs=(7, 8),
        flops=1.5e9,
        bytes_moved=1,
        resident=2,
        workspace=3,
        dtype="float16",
        module="net.block",
        phase="backward",
        colocate="label",
        runs_on=("gpu", "P100"),
        aliases=((1, 0),),
    )
    graph = Graph("g", (Op("a", outputs=(1, 2, 3)), full), outputs=((0, 1),))
    save(graph, tmp_path / "graph.json")
    assert load(tmp_path / "graph.json") == graph
    data = to_data(graph)
    assert data["ops"][0] == {"name": "a", "outputs": [1, 2, 3]}
    assert data["ops"][1]["inputs"] == ["a", ["a", 2]]
    assert data["outputs"] == [["a", 1]]
    assert "outputs" not in to_data(Graph("g", graph.ops))


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path: Path) -> None:
    op = Op("a", flops=np.float32(2), outputs=(np.int64(4),), bytes_moved=np.int32(3))  # type: ignore[arg-type]
    save(Graph("g", (op,)), tmp_path / "graph.json")
    assert load(tmp_path / "graph.json").ops == (Op("a", flops=2.0, outputs=(4,), bytes_moved=3),)


def test_a_graph_has_one_op_a_line(tmp_path: Path, chain: Graph) -> None:
    save(chain, tmp_path / "graph.json")
    lines = (tmp_path / "graph.json").read_text().splitlines()
    assert '  {"name": "b", "inputs": ["a"], "outputs": [4], "flops": 2.0},' in lines


def test_ops_are_accepted_in_any_order() -> None:
    ops = [{"name": "c", "inputs": ["b", ["a", 1]]}, {"name": "b", "inputs": ["a"]}]
    data = GRAPH | {"name": "g", "ops": [*ops, {"name": "a", "outputs": [1, 2]}], "outputs": ["b"]}
    graph = from_data(data, "graph")
    assert [op.name for op in graph.ops] == ["a", "b", "c"]
    assert graph.ops[2].inputs == ((1, 0), (0, 1))
    assert graph.outputs == ((1, 0),)


@pytest.mark.parametrize(
    ("ops", "error", "message"),
    [
        (
            [{"name": "a", "inputs": ["b"]}, {"name": "b", "inputs": ["a"]}],
            GraphError,
            "graph 'g' has a cycle: 'a' -> 'b' -> 'a'",
        ),
        ([{"name": "a", "flops": -1}], GraphError, "op 'a' has flops -1.0: expected a finite"),
        ([{"name": "a", "bytes_moved": -1}], GraphError, "op 'a' has "),
        (
            [{"name": "a", "outputs": [-1]}],
            GraphError,
            "op 'a' has ",
        ),
        ([{"name": "a", "phase": "b"}], GraphError, "op 'a' has phase 'b': expected one of"),
        ([{"name": "a"}, {"name": "a"}], GraphError, "two ops are named 'a': names must be unique"),
        (
            [{"name": "conv1"}, {"name": "b", "inputs": ["conv2"]}],
            GraphError,
            "op 'b' reads from op 'conv2', which is not there: did you mean 'conv1'?",
        ),
        (
            [{"name": "a"}, {"name": "b", "inputs": [["a", 1]]}],
            GraphError,
            "op 'b' reads output 1 of 'a', which has 1 outputs",
        ),
        (
            [{"name": "b", "inputs": [["a", -1]]}, {"name": "a"}],
            GraphError,
            "op 'b' reads output -1 of 'a', which has 1 outputs",
        ),
        ([], GraphError, "graph 'g' has no ops: expected at least one"),
        ([{"flops": 1}], ConfigError, "ops[0] has no 'name': add it"),
        ([{"name": "a"}, 7], ConfigError, "ops[1] is 7: expected an object"),
        (
            [{"name": "a", "flop": 7}],
            ConfigError,
            "ops[0] has an unknown key 'flop': did you mean 'flops'?",
        ),
        ([{"name": 7}], ConfigError, "ops[0].name is 7: expected text"),
        ([{"name": "a", "flops": "7"}], ConfigError, "ops[0].flops is '7': expected a number"),
        ([{"name": "a", "flops": True}], ConfigError, "ops[0].flops is True: expected a number"),
        ([{"name": "a", "flops": None}], ConfigError, "ops[0].flops is None: expected a number"),
        (
            [{"name": "a", "flops": 10**400}],
            ConfigError,
            "ops[0].flops is 100000000000000000...0000000000000000000: expected a finite number",
        ),
        (
            [{"name": "a", "bytes_moved": 1.5}],
            ConfigError,
            "ops[0].bytes_moved is 1.5: expected a whole number",
        ),
        (
            [{"name": "a", "bytes_moved": True}],
            ConfigError,
            "ops[0].bytes_moved is True: expected a whole",
        ),
        (
            [{"name": "a", "resident": 2**63}],
            ConfigError,
            "ops[0].resident is 9223372036854775808: expected a whole number within 64 bits",
        ),
        ([{"name": "a", "outputs": 4}], ConfigError, "ops[0].outputs is 4: expected a list"),
        ([{"name": "a", "outputs": [[4]]}], ConfigError, "ops[0].outputs is [4]: expected a whole"),
        ([{"name": "a", "inputs": "b"}], ConfigError, "ops[0].inputs is 'b': expected a list"),
        (
            [{"name": "a", "inputs": [["b", 0, 1]]}],
            ConfigError,
            "ops[0].inputs is ['b', 0, 1]: expected an op's name or [\"name\", output]",
        ),
        (
            [{"name": "a", "inputs": [["b", True]]}],
            ConfigError,
            "ops[0].inputs is ['b', True]: expected an op's name or [\"name\", output]",
        ),
        ([{"name": "a", "runs_on": [1]}], ConfigError, "ops[0].runs_on is 1: expected text"),
        (
            [{"name": "a", "aliases": [[0]]}],
            ConfigError,
            "ops[0].aliases is [0]: expected [output, input]",
        ),
        (
            [{"name": "a", "aliases": [[0, 0]]}],
            GraphError,
            "op 'a' aliases output 0 to input 0: it has 1 outputs and 0 inputs",
        ),
    ],
)
def test_a_malformed_graph_gets_one_line_that_starts_with_the_file(
    write: Write, ops: list[object], error: type[PlacewrightError], message: str
) -> None:
    path = write(GRAPH | {"name": "g", "ops": ops})
    with pytest.raises(error, match=f"^{re.escape(f'{path}: {message}')}") as caught:
        load(path)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"outputs": ["b"]}, GraphError, "the graph's outputs name op 'b', which is not there"),
        ({"outputs": [["a", 4]]}, GraphError, "graph output (0, 4) names no tensor of the graph"),
        ({"output": []}, ConfigError, "the file has an unknown key 'output': did you mean 'out"),
        ({"ops": {}}, ConfigError, "ops is {}: expected a list"),
        ({"name": None}, ConfigError, "name is None: expected text"),
    ],
)
def test_a_graphs_own_keys_are_checked(
    changes: Data, error: type[PlacewrightError], message: str
) -> None:
    data = GRAPH | {"name": "g", "ops": [{"name": "a"}]} | changes
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        from_data(data)


def test_a_graph_without_ops_or_name_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^the file has no 'name': add it$"):
        from_data(GRAPH | {"ops": []})
    with pytest.raises(ConfigError, match=r"^the file has no 'ops': add it$"):
        from_data(GRAPH | {"name": "g"})


def test_infinity_that_hides_in_a_large_exponent_is_refused(write: Write) -> None:
    op = '{"name": "a", "flops": 1e999}'
    path = write('{"placewright": "graph", "version": 2, "name": "g", "ops": [' + op + "]}")
    with pytest.raises(ConfigError, match=r"ops\[0\]\.flops is inf: expected a finite number$"):
        load(path)


def test_names_with_line_breaks_leave_a_message_on_one_line(write: Write) -> None:
    ops = [{"name": "a\nb\u2028c"}, {"name": "d", "inputs": ["zzzzzzz"]}]
    path = write(GRAPH | {"name": "g", "ops": ops})
    with pytest.raises(GraphError, match=r"known: a\\nb\\u2028c, d") as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1


def test_the_work_of_loading_and_packing_a_graph_grows_no_faster_than_the_graph(
    tmp_path: Path, shared_wire: Cluster
) -> None:
    ops = [Op("op0", outputs=(4096,))]
    for at in range(1, 25_000):
        inputs = tuple((max(0, at - back), 0) for back in (1, 7)[: 1 + at % 2])
        name = f"model.layer{at // 20}.op{at}"
        ops.append(Op(name, "matmul", inputs, (4096 + at,), flops=1e6 * at, bytes_moved=3 * 4096))
    save(Graph("large", tuple(ops)), tmp_path / "large.json")

    def work() -> None:
        graph = load(tmp_path / "large.json", kind="graph")
        assert Problem(graph, shared_wire).arrays.ops == 25_000

    assert lengths(work, limit=20) < 20  # 4; a look at every pair of ops takes 50
