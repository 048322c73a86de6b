"""The golden record: fingerprints of plans, times, bounds, graphs and policies' choices.

    python tests/golden/record.py            prints what differs from record.json
    python tests/golden/record.py --write    writes record.json again

Work that must not change a result leaves the record as it is. A commit that means to change
one names what changes. Outputs of placed models are not recorded: they are compared with the
untouched model in the same process (tests/runtime).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright import Cluster, Constraints, MaxEvaluations, Plan, Problem, Result, zoo
from placewright.frontends import from_onnx, from_torch, from_workload
from placewright.policies.shipped import shipped_policy
from placewright.solvers import METHODS, Auto, solve
from placewright.solvers.exact.solver import Exact
from placewright.solvers.move_scorer import Scout
from placewright.training.policy_solver import POLICY_SOLVERS

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = Path(__file__).parent / "record.json"
SEED = 7

PROBLEMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "chain": ("chain:ops=24,seed=1", "2xP100+cpu", {}),
    "chain-weights": ("chain:ops=24,seed=2,weights=true", "V100+cpu", {"limits": 0.5}),
    "diamond": ("diamond:ops=40,seed=3", "4xK80+cpu", {}),
    "fork-join": ("fork-join:ops=60,seed=4", "4xP100+cpu", {}),
    "fork-join-ready": ("fork-join:ops=60,seed=4", "4xP100+cpu", {"discipline": "ready"}),
    "layered": ("layered:ops=150,seed=5", "4xP100+cpu", {}),
    "layered-600": ("layered:ops=600,seed=1", "4xP100+cpu", {}),
    "layered-weights": ("layered:ops=120,seed=6,weights=true", "2xV100+cpu", {"limits": 0.6}),
    "layered-period": ("layered:ops=150,seed=5", "4xP100+cpu", {"objective": "period"}),
    "layered-nodes": ("layered:ops=150,seed=7", "2x(2xV100)@25GbE", {}),
    "series-parallel": ("series-parallel:ops=120,seed=8", "2xA100+cpu", {}),
    "series-parallel-ready": (
        "series-parallel:ops=120,seed=8",
        "2xA100+cpu",
        {"discipline": "ready", "objective": "period"},
    ),
    "transformer": ("transformer:tokens=512", "V100+cpu", {"limits": 0.7}),
    "transformer-two": ("transformer:tokens=128", "2xV100+cpu", {"limits": 0.45}),
    "offload": ("offload", "V100+cpu", {"limits": 0.6}),
    "branches": ("branches", "4xP100+cpu", {}),
    "branches-period": ("branches", "2xP100+cpu", {"objective": "period"}),
    "cifar10": ("cifar10", "2xK80+cpu", {}),
    "ptb": ("ptb", "4xP100+cpu", {}),
    "nmt": ("nmt", "2xP100+cpu", {"discipline": "ready"}),
}
"""A graph, a cluster, and what is special: limits are a share of the graph's resident bytes."""

QUICK = (
    *("chain-weights", "fork-join-ready", "layered", "layered-nodes"),
    *("transformer", "branches-period"),
)
"""Problems that the unmarked tests look at; the slow ones look at all."""

METHOD_NAMES = {
    "heft": lambda: METHODS["heft"](),
    "cuts": lambda: METHODS["cuts"](),
    "metis": lambda: METHODS["metis-repaired"](),
    "annealing": lambda: METHODS["annealing"](),
    "auto, no proposers": lambda: Auto(proposers=(), exact=False),
    "auto": lambda: Auto(proposers=(Scout(),), exact=False),
}
EVALUATIONS = 1500
EXACT = ("chain", "diamond")
"""Small problems that CP-SAT solves, in deterministic time."""

CAUTIOUS = ("fork-join-ready", "branches-period", "layered-nodes")
"""Problems whose model fits one device: the first two of them are chosen with fewer host ops."""

NETWORKS = ("inception-v3", "nmt-2", "gpt2", "resnet-50", "moe")
POLICY_PROBLEMS = ("layered", "branches-period", "nmt")
PINNED = ("ortools", "pymetis", "kahip", "pyscotch", "numpy", "torch")


def problem(name: str) -> Problem:
    """The problem of that name."""
    graph_name, cluster_name, special = PROBLEMS[name]
    graph, cluster = zoo.load(graph_name), Cluster.parse(cluster_name)
    settings = dict(special)
    share = settings.pop("limits", None)
    constraints = Constraints()
    if share is not None:
        resident = sum(op.resident for op in graph.ops)
        gpus = [device for device in cluster.devices if device.kind == "gpu"]
        limits = {gpu.name: max(0, int(share * resident) - gpu.reserve) for gpu in gpus}
        constraints = Constraints(limits=limits)
    return Problem(graph, cluster, constraints=constraints, **settings)


def of_plan(plan: Plan) -> str:
    """A digest of all that a plan decides."""
    digest = hashlib.sha256()
    for part in (plan.placement, plan.priority, plan.fusion, plan.staging):
        digest.update(b"none" if part is None else np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]


def of_result(result: Result) -> list[str | int]:
    """The plan, its times, the bound and its proof, bytes over, and plans judged."""
    return [
        of_plan(result.plan),
        result.step_time.hex(),
        result.period.hex(),
        float(result.bound).hex(),
        result.overflow,
        result.evaluations,
    ]


def solved(name: str) -> dict[str, list[str | int]]:
    """What each method finds for a problem."""
    task = problem(name)
    stop = MaxEvaluations(EVALUATIONS)
    return {
        method: of_result(solve(task, make(), stop=stop, seed=SEED, cautious=False))
        for method, make in METHOD_NAMES.items()
    }


def cautious(name: str) -> list[str | int]:
    """What is chosen of the plans that `auto` finds for a problem."""
    auto = Auto(proposers=(), exact=False)
    return of_result(solve(problem(name), auto, stop=MaxEvaluations(EVALUATIONS), seed=SEED))


def exact(name: str) -> list[str | int]:
    """What CP-SAT finds for a small problem."""
    solver = Exact(deterministic=0.2)
    return of_result(solve(problem(name), solver, stop=MaxEvaluations(200), seed=SEED))


def network(name: str) -> str:
    """The fingerprint of a captured network at its test size."""
    model, args, kwargs = zoo.build_network(f"{name}:size=test")
    training = name in ("resnet-50", "gpt2")
    return from_torch(model, args, kwargs, training=training).fingerprint


def workload(name: str) -> str:
    """The fingerprint of a graph in a public format."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "tarnawski":
            path = Path(folder) / "work.json"
            path.write_text(json.dumps(_TARNAWSKI))
            return from_workload(path).graph.fingerprint
        if name == "pipedream":
            path = Path(folder) / "graph.txt"
            path.write_text(_PIPEDREAM)
            return from_workload(path).graph.fingerprint
        path = Path(folder) / "model.onnx"
        _write_onnx(path)
        return from_onnx(path, dims={"batch": 8}).fingerprint


def policy(name: str, problem_name: str) -> list[Any]:
    """What a shipped policy chooses and how sure it is: any change in its features shows."""
    task = problem(problem_name)
    result = solve(
        task, replace(POLICY_SOLVERS[name](), samples=3), stop=MaxEvaluations(40), seed=SEED
    )
    plan = [of_plan(result.plan), result.step_time.hex()]
    if name == "go":  # it acts through its proposer alone, which knows when ops run
        return plan
    episodes = shipped_policy(name).act(task, 2, SEED)
    return [
        *plan,
        hashlib.sha256(np.ascontiguousarray(episodes.placements).tobytes()).hexdigest()[:16],
        float(np.float64(episodes.log_prob.sum())),
        float(np.float64((episodes.log_prob**2).sum())),
    ]


def versions() -> dict[str, str]:
    """Packages whose answers are part of the record."""
    return {name: version(name) for name in PINNED}


def parts(names: tuple[str, ...] = tuple(PROBLEMS)) -> dict[str, Callable[[], Any]]:
    """Every entry of the record by its name, and how it is made."""
    made: dict[str, Callable[[], Any]] = {"versions": versions}
    for name in names:
        made[f"solved/{name}"] = lambda name=name: solved(name)
    for name in CAUTIOUS:
        made[f"cautious/{name}"] = lambda name=name: cautious(name)
    for name in EXACT:
        made[f"exact/{name}"] = lambda name=name: exact(name)
    for name in NETWORKS:
        made[f"network/{name}"] = lambda name=name: network(name)
    for name in ("tarnawski", "pipedream", "onnx"):
        made[f"workload/{name}"] = lambda name=name: workload(name)
    for name in POLICY_SOLVERS:
        for problem_name in POLICY_PROBLEMS:
            made[f"policy/{name}/{problem_name}"] = lambda n=name, p=problem_name: policy(n, p)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the record again")
    parser.add_argument("--only", default="", help="entries whose names begin so")
    options = parser.parse_args()
    old = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    new = dict(old)
    differ = 0
    for name, make in parts().items():
        if not name.startswith(options.only):
            continue
        new[name] = make()
        if old.get(name) != new[name]:
            differ += 1
            print(f"{name}:\n  recorded {old.get(name)}\n  now      {new[name]}")
    print(f"{len(new)} entries, {differ} differ")
    if options.write:
        RECORD.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n")
        return 0
    return 1 if differ else 0


def _node(identity: int, seconds: float, backward: int = 0) -> dict[str, Any]:
    return {
        "id": identity,
        "name": f"layer{identity}",
        "fpgaLatency": seconds,
        "cpuLatency": 10 * seconds,
        "supportedOnFpga": 1,
        "isBackwardNode": backward,
        "colorClass": identity % 10,
        "size": 100.0,
    }


_TARNAWSKI = {
    "maxSizePerFPGA": 1000.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [_node(1, 1.0), _node(2, 2.0), _node(3, 3.0), _node(12, 4.0, 1), _node(11, 1.5, 1)],
    "edges": [
        {"sourceId": source, "destId": target, "cost": 0.25, "size": 4.0}
        for source, target in ((1, 2), (2, 3), (3, 12), (12, 11))
    ],
}
_PIPEDREAM = "\n".join(
    [
        *(
            f"node{at} -- Linear(in_features=8) -- forward_compute_time={at}.000, "
            f"backward_compute_time={2 * at}.000, activation_size={8 * at}.0, "
            "parameter_size=300.000"
            for at in range(1, 6)
        ),
        *(f"\tnode{at} -- node{at + 1}" for at in range(1, 5)),
        "\tnode1 -- node3\n",
    ]
)


def _write_onnx(path: Path) -> None:
    """Two products with a branch, in ONNX."""
    import onnx
    from onnx import TensorProto, helper

    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, (16, 16), np.ones(256, np.float32))
        for name in ("w1", "w2")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], name="second"),
        helper.make_node("Add", ["a", "c"], ["y"], name="sum"),
    ]
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    sys.exit(main())
