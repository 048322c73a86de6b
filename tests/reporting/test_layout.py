"""Boxes and where they are drawn: every op once, nothing on top of anything else, flow forward."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from strategies import graphs

from placewright import Graph, Op, zoo
from placewright.reporting.layout import lay_out_graph
from placewright.reporting.module_tree import (
    MAX_BOX_ITEMS,
    ModuleBox,
    all_boxes,
    build_tree,
)


def ops_of(box: ModuleBox) -> list[int]:
    return [op for each in all_boxes(box) for op in each.items if not isinstance(op, ModuleBox)]


def check(graph: Graph) -> None:
    drawing = lay_out_graph(graph)
    assert sorted(ops_of(drawing.tree[0])) == list(range(len(graph)))
    for box, inside in enumerate(drawing.tree):
        ids = [
            next(at for at, each in enumerate(drawing.tree) if each is item)
            if isinstance(item, ModuleBox)
            else None
            for item in inside.items
        ]
        rects = [
            drawing.ops[item] if at is None else drawing.boxes[at]  # type: ignore[index]
            for at, item in zip(ids, inside.items, strict=True)
        ]
        left, top, wide, high = drawing.boxes[box]
        for x, y, width, height in rects:
            assert left <= x
            assert x + width <= left + wide + 1e-6
            assert top < y
            assert y + height <= top + high + 1e-6
        for one, other in combinations(rects, 2):
            apart = (
                one[0] + one[2] <= other[0] + 1e-6
                or other[0] + other[2] <= one[0] + 1e-6
                or one[1] + one[3] <= other[1] + 1e-6
                or other[1] + other[3] <= one[1] + 1e-6
            )
            assert apart, "two things are drawn on top of each other"


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_nothing_overlaps_on_any_graph(graph):
    check(graph)


@pytest.mark.parametrize(
    "name", ["diamond", "branches", "transformer", "fork-join:ops=400", "layered:ops=700"]
)
def test_nothing_overlaps_on_networks(name):
    check(zoo.load(name))


def test_modules_are_boxes_in_boxes(diamond):
    tree = build_tree(zoo.load("transformer:blocks=2"))
    (blocks,) = tree.boxes
    assert blocks.name == "blocks"
    assert [box.name for box in blocks.boxes] == ["0", "1"]
    assert [box.name for box in blocks.boxes[0].boxes] == ["attention", "mlp"]
    assert blocks.edges == [(0, 1)]
    assert build_tree(diamond).items == [0, 1, 2, 3]
    assert build_tree(diamond).edges == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_a_box_of_one_thing_is_left_out():
    ops = (
        Op("a", module="outer.inner.first"),
        Op("b", module="outer.inner.first", inputs=((0, 0),)),
        Op("c", module="alone.deep", inputs=((1, 0),)),
    )
    tree = build_tree(Graph("g", ops))
    assert [box.name for box in tree.boxes] == ["outer.inner.first"]
    assert tree.items[1] == 2


def test_phases_have_boxes_of_their_own():
    ops = (
        Op("f", module="m"),
        Op("g", module="m", inputs=((0, 0),)),
        Op("b", module="m", phase="backward", inputs=((1, 0),)),
        Op("c", module="m", phase="backward", inputs=((2, 0),)),
    )
    tree = build_tree(Graph("g", ops))
    assert [box.name for box in tree.boxes] == ["forward.m", "backward.m"]
    assert tree.edges == [(0, 1)]


def test_no_box_holds_more_than_can_be_looked_at():
    for count in (MAX_BOX_ITEMS, MAX_BOX_ITEMS + 1, 5000, 20_000):
        tree = build_tree(zoo.load(f"chain:ops={count}"))
        boxes = all_boxes(tree)
        assert max(len(box.items) for box in boxes) <= MAX_BOX_ITEMS
        assert sorted(ops_of(tree)) == list(range(count))
    names = [box.name for box in build_tree(zoo.load("chain:ops=240")).boxes]
    assert names == ["ops 1–120", "ops 121–240"]


def test_every_edge_shows_in_one_box():
    graph = zoo.load("branches:modules=2")
    boxes = all_boxes(build_tree(graph))
    flow = {(source, at) for at, op in enumerate(graph.ops) for source, _ in op.inputs}

    def holds(item):
        return set(ops_of(item)) if isinstance(item, ModuleBox) else {item}

    found = set()
    for box in boxes:
        for one, other in box.edges:
            ends = holds(box.items[one]), holds(box.items[other])
            crossing = {edge for edge in flow if edge[0] in ends[0] and edge[1] in ends[1]}
            assert crossing
            assert not crossing & found
            found |= crossing
    assert found == flow


def test_the_flow_goes_from_left_to_right_within_a_line(fork_join):
    drawing = lay_out_graph(fork_join)
    fork, *branches, join = (box[0] for box in drawing.ops)
    assert fork < min(branches)
    assert max(branches) < join
    assert len(set(branches)) == 1


def test_a_path_of_a_thousand_names_does_no_harm():
    deep = ".".join(["m"] * 1000)
    check(Graph("deep", (Op("a", module=deep), Op("b", module=deep, inputs=((0, 0),)))))
