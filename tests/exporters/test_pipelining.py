"""Split points of small models, and what PyTorch itself does with them."""

from __future__ import annotations

import pytest

import placewright as pw
from placewright.errors import PlanError


def exported(case, rule, **more):
    return pw.export(case.problem, case.plan(rule, **more), "pipelining")


def test_stages_of_whole_blocks_are_said_exactly(six, block_of):
    made = exported(six, lambda op: "gpu1" if block_of(op) < 4 else "gpu0")
    assert made.data == {
        "split_spec": {"blocks.4.attention": "BEGINNING"},
        "devices": ["cuda:1", "cuda:0"],
    }
    assert (made.cost.moved_time, made.notes) == (0, ())
    assert made.text == (
        "from torch.distributed.pipelining import SplitPoint\n\n"
        "split_spec = {\n    'blocks.4.attention': SplitPoint.BEGINNING,\n}\n"
        'devices = ["cuda:1", "cuda:0"]  # of each stage\n'
    )


def test_a_plan_that_goes_back_and_forth_becomes_the_nearest_chain(six, block_of):
    # Blocks 0 to 5: gpu0 gpu0 gpu1 gpu0 gpu1 gpu1. One cut; it is least wrong by one block.
    places = ["gpu0", "gpu0", "gpu1", "gpu0", "gpu1", "gpu1", "gpu0"]
    made = exported(six, lambda op: places[block_of(op)])
    assert made.data["devices"] == ["cuda:0", "cuda:1"]
    assert set(made.data["split_spec"]) < {"blocks.2.attention", "blocks.4.attention"}
    assert made.cost.moved_time == pytest.approx(1 / 6)
    assert made.notes[0].startswith(
        "stages: the plan is not a chain of stages in the model's order;"
    )


def test_a_cut_inside_a_module_moves_to_its_beginning_or_end(six, block_of):
    late = ("blocks.3.mlp.activation", "blocks.3.mlp.down", "blocks.3.mlp.residual")
    made = exported(
        six, lambda op: "gpu1" if op.name.startswith(late) or block_of(op) > 3 else "gpu0"
    )
    assert list(made.data["split_spec"]) == ["blocks.3.mlp"]
    assert made.notes[0].startswith("stages: the plan cuts inside a module;")
    assert made.cost.moved_time > 0


def test_one_stage_has_no_cut(six):
    made = exported(six, lambda op: "gpu0")
    assert made.data == {"split_spec": {}, "devices": ["cuda:0"]}


def test_a_graph_without_modules_is_refused(make_case):
    case = make_case(pw.Graph("plain", (pw.Op("a"), pw.Op("b", inputs=((0, 0),)))))
    with pytest.raises(PlanError, match="graph 'plain' has no modules to split at"):
        exported(case, lambda op: "gpu0")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PyTorch's own, of itself
def test_pytorch_splits_as_exported(make_case):
    torch = pytest.importorskip("torch")
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    nn = torch.nn
    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    torch.manual_seed(0)
    model, x = nn.Sequential(*(Block() for _ in range(4))).eval(), torch.randn(2, 8)
    case = make_case(pw.from_torch(model, x))

    def rule(op):
        return "gpu0" if op.module[:1] in ("", "0") else "gpu1" if op.module[0] < "3" else "cpu"

    made = exported(case, rule)
    assert made.data == {
        "split_spec": {"1": "BEGINNING", "3": "BEGINNING"},
        "devices": ["cuda:0", "cuda:1", "cpu"],
    }
    expected = model(x)
    read: dict = {}
    exec(made.text, read)
    pipe = pipelining.pipeline(model, (x,), split_spec=read["split_spec"])
    assert pipe.num_stages == 3
    stages = [pipe.get_stage_module(at) for at in range(3)]
    held = [{name.split(".")[0] for name, _ in stage.named_parameters()} for stage in stages]
    assert held == [{"0"}, {"1", "2"}, {"3"}]
    for stage in stages:
        x = stage(x)
        x = x[0] if isinstance(x, tuple) else x
    assert torch.equal(x, expected)
