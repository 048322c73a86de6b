"""What holds for every target."""

from __future__ import annotations

import numpy as np
import pytest

import placewright as pw
from placewright.errors import ConfigError, PlanError
from placewright.exporters import TARGETS, WRITE_MODELS

WORDS = [name for name in TARGETS if name not in WRITE_MODELS]


@pytest.mark.parametrize("target", WORDS)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_exported_is_a_plan_and_its_cost_is_that_plans(six, target, seed):
    rng = np.random.default_rng(seed)
    device = six.problem.legalize(rng.integers(0, 3, len(six.graph)))
    plan = pw.Plan.of(six.problem, device)
    made = pw.export(six.problem, plan, target)
    assert made.target == target
    assert made.text.endswith("\n")
    assert made.usage
    again = pw.simulate(six.problem, made.plan)
    assert made.cost.exported.step_time == again.step_time
    assert made.cost.exported.period == again.period
    assert made.cost.planned.step_time == pw.simulate(six.problem, plan).step_time
    turns = six.problem.arrays.scheduled
    seconds = six.problem.arrays.compute[np.arange(len(turns)), device] * turns
    elsewhere = seconds[made.plan.placement != device].sum() / seconds.sum()
    assert made.cost.moved_time == pytest.approx(elsewhere)


@pytest.mark.parametrize("target", WORDS)
def test_a_plan_for_one_device_loses_nothing(six, target):
    made = pw.export(six.problem, six.plan(lambda op: "gpu0"), target)
    assert (made.cost.moved_time, made.cost.moved_bytes) == (0, 0)
    assert made.cost.exported == made.cost.planned
    assert [note for note in made.notes if not note.startswith(("subgraphs", "wishes"))] == []


@pytest.mark.parametrize("target", ["accelerate", "pipelining", "openvino"])
def test_order_fusion_and_training_are_said_to_be_lost(make_case, target):
    forward = pw.zoo.load("transformer:blocks=2")
    end = pw.Op(
        "blocks.1.mlp.backward", "matmul", ((len(forward) - 1, 0),),
        module="blocks.1.mlp", phase="backward", flops=1e9,
    )  # fmt: skip
    graph = pw.Graph("training", (*forward.ops, end))
    case = make_case(graph)
    backwards = np.arange(len(graph))[::-1]
    pair = ("blocks.0.mlp.up", "blocks.0.mlp.activation")
    together = [0 if op.name in pair else -1 for op in graph.ops]
    plan = case.plan(lambda op: "gpu0", priority=backwards, fusion=together)
    notes = pw.export(case.problem, plan, target).notes
    assert any(note.startswith("order:") for note in notes)
    assert any(note.startswith("fusion:") for note in notes)
    assert any(note.startswith("training:") for note in notes) == (target != "pipelining")


@pytest.mark.parametrize("target", ["llama.cpp", "vllm"])
def test_order_is_lost_and_training_refused_where_models_are_served(six, make_case, target):
    made = pw.export(
        six.problem, six.plan(lambda op: "gpu0", priority=-np.arange(len(six.graph))), target
    )
    assert made.notes[0].startswith("order:")
    op = pw.Op("layers.0.update", "optimizer", module="layers.0", phase="update")
    case = make_case(pw.Graph("step", (op,)))
    with pytest.raises(PlanError, match=r"graph 'step' is a training step: .* runs inference only"):
        pw.export(case.problem, case.plan(lambda op: "gpu0"), target)


def test_a_plan_of_another_graph_is_refused(six, make_case):
    other = make_case(pw.zoo.load("transformer:blocks=6,width=512"))
    plan = other.plan(lambda op: "gpu0")
    with pytest.raises(
        PlanError, match=r"the plan was made for graph .{8}, but 'transformer.*' is"
    ):
        pw.export(six.problem, plan, "accelerate")


def test_a_target_that_is_not_there_is_refused(six):
    plan = six.plan(lambda op: "gpu0")
    with pytest.raises(ConfigError, match="no target is named 'accelerated': did you mean"):
        pw.export(six.problem, plan, "accelerated")


def test_a_device_that_is_not_there_has_no_name(six):
    plan = six.plan(lambda op: "gpu0")
    with pytest.raises(ConfigError, match=r"a name is given for device 'gpu7', .* did you mean"):
        pw.export(six.problem, plan, "accelerate", names={"gpu7": "0"})


@pytest.mark.parametrize("target", WRITE_MODELS)
def test_a_target_that_writes_the_model_asks_for_it(six, target):
    plan = six.plan(lambda op: "gpu0")
    with pytest.raises(ConfigError, match=f"{target} writes the model's file with the plan"):
        pw.export(six.problem, plan, target)


def test_a_constraint_that_the_target_breaks_is_told(six, make_case, block_of):
    pins = pw.Constraints(pins={"blocks.1.mlp.up": "gpu1"})
    case = make_case(six.graph, constraints=pins)
    plan = case.plan(lambda op: "gpu1" if op.name == "blocks.1.mlp.up" else "gpu0")
    made = pw.export(case.problem, plan, "vllm")
    assert any(
        "puts 'blocks.1.mlp.up' where the problem does not allow it" in n for n in made.notes
    )
    assert case.device(made.plan, "blocks.1.mlp.up") == "gpu1"
