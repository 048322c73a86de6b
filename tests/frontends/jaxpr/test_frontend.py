"""JAX functions: small ones, traced from shapes alone."""

from __future__ import annotations

import functools
import logging
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from placewright.errors import GraphError, MissingDependency  # noqa: E402
from placewright.frontends.jaxpr.frontend import from_jax  # noqa: E402


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def op(graph, name):
    return graph.ops[graph.position[name]]


def flops(graph):
    return sum(op.flops for op in graph.ops)


def weights(graph):
    return {op.name: op.outputs[0] for op in graph.ops if op.kind == "weight"}


def layer(params, x):
    with jax.named_scope("body"):
        h = x @ params["w"] + params["b"]
    return jax.nn.relu(h)


PARAMS = {"w": shape(16, 32), "b": shape(32)}


def test_a_layer_has_the_flops_and_bytes_of_its_parts():
    graph = from_jax(layer, PARAMS, shape(8, 16), weights=(0,))
    assert graph.name == "layer"
    assert op(graph, "dot_general").flops == 2 * 8 * 16 * 32
    assert op(graph, "dot_general").bytes_moved == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert op(graph, "add").flops == 8 * 32
    assert op(graph, "add").module == "body"
    assert op(graph, "max").flops == 8 * 32  # the relu, out of its nested calls
    assert weights(graph) == {"params.w": 4 * 16 * 32, "params.b": 4 * 32}
    assert op(graph, "x").kind == "input"
    assert op(graph, "broadcast_in_dim").kind == "view"
    assert op(graph, "broadcast_in_dim").aliases == ((0, 0),)


def test_arguments_are_inputs_unless_named_as_weights():
    assert weights(from_jax(layer, PARAMS, shape(8, 16))) == {}
    by_name = from_jax(layer, PARAMS, shape(8, 16), weights=("params",))
    assert by_name.fingerprint == from_jax(layer, PARAMS, shape(8, 16), weights=(0,)).fingerprint
    by_keyword = from_jax(layer, PARAMS, x=shape(8, 16), weights=("params",), name="mine")
    assert by_keyword.name == "mine"
    assert op(by_keyword, "x").kind == "input"


def test_wrong_weights_are_told():
    with pytest.raises(GraphError, match="weights has 2: the function is given 2 arguments"):
        from_jax(layer, PARAMS, shape(8, 16), weights=(2,))
    with pytest.raises(GraphError, match=r"weights has 'parms': did you mean 'params'\?"):
        from_jax(layer, PARAMS, shape(8, 16), weights=("parms",))


def test_arrays_and_shapes_give_the_same_graph():
    arrays = {"w": np.zeros((16, 32), np.float32), "b": jnp.zeros(32)}
    traced = from_jax(layer, arrays, np.zeros((8, 16), np.float32))
    assert traced.fingerprint == from_jax(layer, PARAMS, shape(8, 16)).fingerprint


def test_an_array_that_is_closed_over_is_one_weight():
    table = np.zeros((16, 4), np.float32)
    graph = from_jax(lambda x: jax.jit(lambda y: y @ table)(x) + jax.jit(lambda y: y @ table)(x),
                     shape(8, 16))  # fmt: skip
    assert list(weights(graph).values()) == [4 * 16 * 4]


def test_a_convolution_counts_two_flops_a_multiply_add():
    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (2, 2), "SAME", feature_group_count=2)

    graph = from_jax(convolve, shape(1, 8, 32, 32), shape(16, 4, 3, 3))
    forward = 2 * (16 * 16 * 16) * (4 * 3 * 3)
    assert flops(graph) == forward

    def transpose(x, w):  # zeros between the numbers of x are not multiplied
        return lax.conv_transpose(x, w, (2, 2), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"))

    graph = from_jax(transpose, shape(1, 3, 8, 8), shape(5, 3, 2, 2))
    assert op(graph, "conv_general_dilated").flops == 2 * (8 * 8) * 5 * (3 * 2 * 2)


def test_nested_calls_are_inlined():
    @jax.custom_vjp
    def twice(x):
        return x * 2

    twice.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 2,))

    @jax.checkpoint
    def sine(x):
        return jnp.sin(x)

    graph = from_jax(jax.jit(lambda x: sine(jax.jit(twice)(x))), shape(10))
    assert [op.name for op in graph.ops] == ["x", "mul", "sin"]


def stack(ws, x):
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


def test_a_short_scan_becomes_its_steps_with_a_weight_each():
    graph = from_jax(stack, shape(3, 16, 16), shape(8, 16), weights=(0,))
    assert weights(graph) == {f"ws[{step}]": 4 * 16 * 16 for step in range(3)}
    assert flops(graph) == 3 * (2 * 8 * 16 * 16 + 8 * 16)
    assert [op.kind for op in graph.ops].count("matmul") == 3
    assert op(graph, "tanh_2").module == "step_2"


def test_a_long_scan_is_one_op_of_its_length_times_its_body():
    graph = from_jax(stack, shape(100, 16, 16), shape(8, 16), weights=(0,))
    assert op(graph, "scan").flops == 100 * (2 * 8 * 16 * 16 + 8 * 16)
    assert op(graph, "scan").bytes_moved == 100 * 4 * (8 * 16 + 16 * 16 + 8 * 16 + 2 * 8 * 16)
    assert weights(graph) == {"ws": 100 * 4 * 16 * 16}
    unrolled = from_jax(stack, shape(100, 16, 16), shape(8, 16), weights=(0,), unroll=100)
    assert flops(unrolled) == flops(graph)


def test_training_through_a_scan_never_stacks_the_gradients():
    def step(ws, x):
        gradients = jax.grad(lambda w: stack(w, x).sum())(ws)
        return ws - 0.1 * gradients

    graph = from_jax(step, shape(3, 16, 16), shape(8, 16), weights=(0,))
    assert sum(weights(graph).values()) == 3 * 4 * 16 * 16
    assert "concat" not in {op.kind for op in graph.ops}
    assert len(graph.outputs) == 3
    phases = [op.phase for op in graph.ops if op.kind == "matmul"]
    assert phases == 3 * ["forward"] + 5 * ["backward"]  # nothing needs the gradient of x
    updates = [op for op in graph.ops if op.phase == "update"]
    assert sum(op.flops for op in updates) == 3 * 2 * 16 * 16
    assert max(op.outputs[0] for op in graph.ops) <= 4 * 16 * 16


def test_a_scan_that_makes_rows_stacks_them_for_who_needs_them_whole():
    def sums(x):
        return lax.scan(lambda total, row: (total + row, total * row), jnp.zeros(4), x)[1].sum(0)

    graph = from_jax(sums, shape(5, 4))
    assert op(graph, "stack").outputs == (5 * 4 * 4,)
    assert op(graph, "reduce_sum").inputs == ((graph.position["stack"], 0),)


def test_a_loop_with_constant_bounds_costs_its_trips():
    def count(x):
        return lax.while_loop(lambda c: c[0] < 10, lambda c: (c[0] + 3, c[1] * 2), (0, x))

    graph = from_jax(count, shape(4))
    # four trips (0, 3, 6, 9) of an addition and four products, and five tests
    assert op(graph, "while").flops == 4 * (1 + 4) + 5


def test_a_loop_bound_is_followed_through_calls():
    loop = functools.partial(lax.fori_loop, 0)
    graph = from_jax(lambda x: jax.jit(lambda n, x: loop(n, lambda _, y: y * 2, x))(7, x), shape(4))
    assert op(graph, "while").flops == 7 * (1 + 4) + 8


def test_a_loop_of_unknown_trip_count_costs_one_and_is_listed(caplog):
    with caplog.at_level(logging.WARNING, "placewright"):
        graph = from_jax(
            lambda n, x: lax.fori_loop(0, n, lambda _, y: y * 2, x),
            shape(dtype=jnp.int32), shape(4),
        )  # fmt: skip
    assert op(graph, "while").flops == (1 + 4) + 1
    assert "jax loops of unknown trip count, counted as one trip: while" in caplog.text


def test_a_cond_costs_its_costlier_branch():
    def choose(flag, x, w):
        return lax.cond(flag, lambda: x @ w, lambda: x * 2)

    graph = from_jax(choose, shape(dtype=jnp.bool_), shape(8, 16), shape(16, 16))
    assert op(graph, "cond").flops == 2 * 8 * 16 * 16
    assert op(graph, "cond").outputs == (4 * 8 * 16,)


def test_a_cond_whose_index_is_known_is_its_branch():
    graph = from_jax(lambda x: lax.switch(np.int32(1), [jnp.sin, jnp.cos, jnp.tan], x), shape(8))
    assert [op.kind for op in graph.ops] == ["input", "elementwise"]
    assert graph.ops[1].name == "cos"


def test_differentiation_gives_phases():
    def step(params, x):
        gradients = jax.grad(lambda p: (layer(p, x) ** 2).sum())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    graph = from_jax(step, PARAMS, shape(8, 16), weights=(0,))
    phases = {op.name: op.phase for op in graph.ops if op.kind == "matmul"}
    assert phases == {"dot_general": "forward", "dot_general_1": "backward"}
    update = [op for op in graph.ops if op.phase == "update"]
    assert sum(op.flops for op in update) == 2 * (16 * 32 + 32)
    assert all(op.phase == "forward" for op in graph.ops if op.kind in ("weight", "input"))


def test_what_nothing_needs_is_left_out_but_arguments_stay():
    def wasteful(x, unused):
        jnp.sin(x)
        return jnp.cos(x)

    graph = from_jax(wasteful, shape(8), shape(3))
    assert [op.name for op in graph.ops] == ["x", "unused", "cos"]


def test_a_primitive_without_a_cost_is_listed(caplog):
    graph = from_jax(lambda x: jnp.linalg.svd(x, compute_uv=False), shape(8, 8))
    assert op(graph, "svd").kind == "svd"
    assert op(graph, "svd").bytes_moved == 4 * (64 + 8)
    assert "jax ops without a known cost, counted by their bytes only: svd (1)" in caplog.text


def test_random_keys_and_lookups_are_read():
    def sample(key, table, index):
        return table[index] + jax.random.normal(key, (3, 4))

    graph = from_jax(sample, jax.eval_shape(lambda: jax.random.key(0)), shape(100, 4),
                     shape(3, dtype=jnp.int32))  # fmt: skip
    assert op(graph, "key").outputs == (8,)
    assert op(graph, "gather").bytes_moved == 3 * 4 + 2 * 4 * 12  # indices; rows read and made
    assert "random" in {op.kind for op in graph.ops}


def test_wrong_shapes_are_one_line_that_names_the_place():
    with pytest.raises(
        GraphError, match=r"function 'layer' cannot be traced at line \d+ of"
    ) as error:
        from_jax(layer, PARAMS, shape(8, 17))
    assert "\n" not in str(error.value)
    with pytest.raises(GraphError, match="from_jax was given 'int': expected a function"):
        from_jax(3, shape(8))
    with pytest.raises(GraphError, match="function 'layer' cannot be traced"):
        from_jax(layer, "text", shape(8, 16))


def test_without_jax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingDependency, match=r"pip install 'placewright\[jax\]'"):
        from_jax(layer, PARAMS, shape(8, 16))


def test_an_absurd_shape_is_refused():
    with pytest.raises(GraphError, match=r"expected at most 2\*\*50 elements"):
        from_jax(lambda x: x * 2, shape(2**30, 2**30))
