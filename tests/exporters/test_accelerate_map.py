"""The exact map of small models, and what Accelerate itself does with it."""

from __future__ import annotations

import copy
import random

import pytest

import placewright as pw
from placewright.errors import PlanError
from placewright.exporters.accelerate_map import dispatch

torch = pytest.importorskip("torch")
from torch.utils._pytree import tree_leaves  # noqa: E402

nn = torch.nn
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """An embedding, blocks in a list, a head."""

    def __init__(self, blocks=4, tied=False):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(16, 32, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


TOKENS = torch.arange(8)[None]


def captured(make_case, model):
    torch.manual_seed(0)
    return make_case(pw.from_torch(model.eval(), TOKENS))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def case(make_case, net):
    return captured(make_case, net)


def exported(case, rule, names=None, **more):
    return pw.export(case.problem, case.plan(rule, **more), "accelerate", names=names)


def test_a_plan_by_modules_is_said_exactly(case, block_of):
    made = exported(case, lambda op: "gpu1" if block_of(op) > 1 or "head" in op.name else "gpu0")
    assert made.data["device_map"] == {
        "embed": 0, "blocks.0": 0, "blocks.1": 0, "blocks.2": 1, "blocks.3": 1, "head": 1,
    }  # fmt: skip
    assert made.data["main_device"] == 0
    assert (made.cost.moved_time, made.cost.moved_bytes, made.notes) == (0, 0, ())
    assert made.cost.exported == made.cost.planned


def test_modules_of_one_device_are_one_key(case, block_of):
    made = exported(case, lambda op: "gpu1" if block_of(op) >= 0 else "gpu0")
    assert made.data["device_map"] == {"embed": 0, "blocks": 1, "head": 0}
    assert exported(case, lambda op: "gpu0").data["device_map"] == {"": 0}


def test_the_text_is_python_that_says_the_same(case, block_of):
    places = ["gpu0", "gpu1", "cpu", "gpu0", "gpu0"]
    made = exported(case, lambda op: places[block_of(op)])
    read: dict = {}
    exec(made.text, read)
    assert read["device_map"]["blocks.2"] == torch.device("cpu")
    assert made.data["device_map"]["blocks.2"] == "host"
    del read["device_map"]["blocks.2"], made.data["device_map"]["blocks.2"]
    assert read["device_map"] == made.data["device_map"]
    assert read["main_device"] == 0


def test_a_module_whose_own_op_would_read_two_devices_stays_whole(case):
    # blocks.2.add reads blocks.1's output, on gpu0, and that of blocks.2.down, on gpu1.
    made = exported(case, lambda op: "gpu1" if op.module == "blocks.2.down" else "gpu0")
    assert made.data["device_map"] == {"": 0}
    assert made.notes == (
        "split: module 'blocks.2' stays whole, as 'blocks.2.add' reads tensors of gpu0 and gpu1",
    )
    a, at = case.problem.arrays, case.graph.position["blocks.2.down.linear"]
    place = case.problem.cluster.position["gpu1"]
    whole = sum(a.compute[i, place if i == at else 0] for i in range(a.ops) if a.scheduled[i])
    assert made.cost.moved_time == pytest.approx(a.compute[at, place] / whole)
    assert made.cost.moved_bytes == pytest.approx((64 * 16 + 16) / (2 * 32 * 16 + 4 * 2160))


def test_a_module_that_holds_weights_itself_stays_whole(make_case):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.inner = nn.Parameter(torch.ones(16)), nn.Linear(16, 16)

        def forward(self, x):
            return self.inner(x) * self.scale

    model = nn.Sequential(nn.Embedding(32, 16), Scaled(), nn.Linear(16, 4))
    case = captured(make_case, model)
    made = exported(case, lambda op: "gpu1" if op.module == "1.inner" else "gpu0")
    assert made.data["device_map"] == {"0": 0, "1": 1, "2": 0}
    assert made.notes == ("split: module '1' stays whole, as it holds '1.scale' itself",)


def test_the_roots_own_weights_are_named_and_go_to_the_main_device(make_case):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift, self.embed = nn.Parameter(torch.ones(16)), nn.Embedding(32, 16)
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, tokens):
            return self.second(self.first(self.embed(tokens) + self.shift))

    case = captured(make_case, Root())
    made = exported(case, lambda op: "gpu1" if op.module == "second" else "gpu0")
    assert made.data["device_map"] == {"embed": 0, "first": 0, "second": 1, "shift": 0}


def test_a_module_that_uses_its_childs_weights_uncalled_stays_whole(make_case):
    class Uncalled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 16, bias=False)
            self.after = nn.Linear(16, 16)

        def forward(self, x):
            return self.after(nn.functional.linear(x, self.inner.weight))

    case = captured(make_case, nn.Sequential(nn.Embedding(32, 16), Uncalled()))
    made = exported(case, lambda op: "gpu1" if op.module == "1.after" else "gpu0")
    assert set(made.data["device_map"]) <= {"0", "1", ""}
    assert "it reads '1.inner.weight' without calling its module" in made.notes[0]


def test_streamed_weights_stay_home_and_are_copied_slowly(case, block_of):
    def rule(op):
        return "cpu" if block_of(op) == 1 and op.kind == "weight" else "gpu0"

    made = exported(case, rule, staging={"gpu0": 1 << 20})
    assert made.data["device_map"] == {
        "embed": 0, "blocks.0": 0, "blocks.1": "cpu", "blocks.2": 0, "blocks.3": 0, "head": 0,
    }  # fmt: skip
    assert made.data["main_device"] == 0
    assert any("copies the weights of 3 modules to gpu0" in note for note in made.notes)
    assert (made.cost.moved_time, made.cost.moved_bytes) == (0, 0)
    assert made.cost.exported.step_time > made.cost.planned.step_time
    assert made.plan.staging.tolist() == [64 * 16 * 4 + 64 * 4, -1, -1]  # one op's weights


def test_a_model_that_is_all_streamed_needs_hooks(case):
    made = exported(
        case, lambda op: "cpu" if op.kind == "weight" else "gpu0", staging={"gpu0": 1 << 20}
    )
    assert made.data == {"device_map": {"": "cpu"}, "main_device": 0, "force_hooks": True}
    assert "force_hooks=True" in made.usage


@pytest.mark.parametrize("tied", [False, True])
def test_accelerate_runs_what_is_exported(make_case, block_of, tmp_path, tied):
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = Net(tied=tied).eval()
    case = captured(make_case, model)

    def rule(op):
        return "cpu" if block_of(op) in (1, 3) and op.kind == "weight" else "gpu0"

    # No GPU is here: the host stands for it, and a folder for the host.
    made = exported(case, rule, names={"gpu0": "host"}, staging={"gpu0": 1 << 20})
    placed = dispatch(copy.deepcopy(model), made, tmp_path)
    away = {name for name, weight in placed.named_parameters() if weight.device.type == "meta"}
    assert away == {
        name for name, _ in model.named_parameters() if name.startswith(("blocks.1.", "blocks.3."))
    }
    assert torch.equal(placed(TOKENS), model(TOKENS))


def test_accelerate_computes_on_the_host_what_the_plan_does(case, net, block_of):
    accelerate = pytest.importorskip("accelerate")
    made = exported(case, lambda op: "cpu" if block_of(op) == 1 else "gpu0")
    read: dict = {}
    exec(made.text, read)
    meta = {0: torch.device("meta")}  # which nothing is computed on, but which hooks point to
    chosen = {key: meta.get(word, word) for key, word in read["device_map"].items()}
    placed = accelerate.dispatch_model(
        copy.deepcopy(net), chosen, main_device=meta[read["main_device"]]
    )
    hooks = {name: module._hf_hook for name, module in placed.named_modules() if name in chosen}
    assert hooks["blocks.1"].execution_device == torch.device("cpu")
    assert hooks["blocks.0"].execution_device == torch.device("meta")
    assert not hooks["blocks.1"].offload
    assert placed.blocks[1].up.weight.device.type == "cpu"


def test_a_model_that_is_not_the_plans_is_refused(case, block_of):
    pytest.importorskip("accelerate")
    made = exported(case, lambda op: "gpu1" if block_of(op) > 1 else "gpu0")
    with pytest.raises(PlanError, match=r"weight 'blocks.4.norm.weight' .* has no device"):
        dispatch(Net(blocks=5), made)


class OneDevice(torch.overrides.TorchFunctionMode):
    """Tensors carry the name of a pretended device; a function must not get those of two."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        read = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        places = {each._place for each in read if hasattr(each, "_place")}
        if len(places) > 1:
            raise RuntimeError(f"{func.__name__} reads tensors of {places}")
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and places:
            [made._place] = places
        return made


def run_on_pretended_devices(model, words, main):
    """A call of the model with each module where a map says, as Accelerate's hooks do it."""

    def put(tensor, place):
        moved = tensor.detach().clone()
        moved._place = place
        return moved

    model = copy.deepcopy(model)
    for key, word in words.items():
        place = main if word == "cpu" else word
        for module in model.get_submodule(key).modules():
            for weight in module.parameters(recurse=False):
                weight._place = place
            module.register_forward_pre_hook(
                lambda _, args, at=place: tuple(put(each, at) for each in args)
            )
    tokens = put(TOKENS, main)
    with OneDevice():
        return model(tokens)


def test_no_op_of_any_map_reads_tensors_of_two_devices(case, net):
    with pytest.raises(RuntimeError, match=r"add reads tensors of \{0, 1\}"):
        run_on_pretended_devices(net, {"embed": 0, "blocks.0.down": 1, "head": 1}, 0)
    several = 0
    names = sorted({op.module for op in case.graph.ops})
    for seed in range(40):
        rng = random.Random(seed)
        coarse = seed % 3  # whole blocks, or modules, or single ops
        chosen = {name: rng.choice(["gpu0", "gpu1", "cpu"]) for name in names}

        def rule(op, chosen=chosen, coarse=coarse, rng=rng):
            if coarse == 2:
                return rng.choice(["gpu0", "gpu1", "cpu"])
            path = ".".join(op.module.split(".")[:2]) if coarse == 0 else op.module
            return chosen[path]

        made = exported(case, rule)
        run_on_pretended_devices(net, made.data["device_map"], made.data["main_device"])
        several += len(set(made.data["device_map"].values())) > 1
    assert several > 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("seed", range(8))
def test_accelerate_runs_any_plan_on_a_gpu_and_its_host(make_case, seed):
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = Net().eval()
    case = make_case(pw.from_torch(model, TOKENS), "P100+cpu")
    rng = random.Random(seed)
    modules = {op.module: rng.choice(["gpu0", "cpu"]) for op in case.graph.ops}
    away = {op.name for op in case.graph.ops if op.kind == "weight" and rng.random() < 0.4}
    plan = case.plan(
        lambda op: "cpu" if op.name in away else modules[op.module], staging={"gpu0": 1 << 20}
    )
    made = pw.export(case.problem, plan, "accelerate")
    placed = dispatch(copy.deepcopy(model), made)
    with torch.no_grad():
        torch.testing.assert_close(placed(TOKENS), model(TOKENS), atol=1e-4, rtol=1e-4)
