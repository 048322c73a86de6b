"""Train the scout that looks at moves inside `auto`'s walks, and write the file that ships.

    python benchmarks/train_scout.py gather --out FOLDER [--jobs 2] [--problems 58]
    python benchmarks/train_scout.py fit --data FOLDER [--out scout.json] [--epochs 16]

`gather` walks through the plans of the training problems (`proposer_problems.py`), draws moves on
the way as a walk does, judges each, and keeps what the scout knows of it and what it brought.
It can be stopped and goes on where it was. `fit` trains the network (with torch) to tell which
moves gain, on four fifths of the problems; on the others it prints how often a move gains, and how
often and how much one does that the network prefers; then it trains on all.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from proposer_problems import problem, training

from placewright.plan_batch import PlanBatch
from placewright.solvers import Search, Stop
from placewright.solvers.baselines import constructive_solvers
from placewright.solvers.scout import SHIPPED_WEIGHTS, ScoutNetwork
from placewright.solvers.searches.annealing import elite_plans, first_round_length, grouping_levels
from placewright.solvers.searches.annealing_chains import (
    AnnealingChains,
    Cooling,
    MoveShares,
)

HOT = (0.005, 0.03, 0.01, 0.003, 0.1, 0.003, 0.001)
"""Temperatures at which the walks begin; moves are drawn after each."""

_GAIN = 1e-7  # share of the cost: what counts as a gain


def gathered(number: int, out: Path) -> str:
    """The moves of one training problem, in a file."""
    name, path = training()[number], out / f"{number}.npz"
    if path.exists():
        return f"{name}: known"
    asked = problem(name)
    search = Search(asked, Stop(), number)
    for solver in constructive_solvers(asked, with_partitioners=False)[0]:
        search.phase = solver.name
        solver.run(search)
    search.phase = "annealing"
    walker, length = AnnealingChains(search, grouping_levels(asked)), first_round_length(asked)
    count = int(np.clip(1_000_000 // asked.arrays.ops, 100, 500))
    features, change, where = [], [], []

    def draw(rows: PlanBatch, moves: int, slope: float) -> None:
        x, y = walker.sample_moves(rows, moves, int(search.rng.integers(2**31)), slope)
        features.append(x)
        change.append(y)
        where.extend([len(features)] * len(y))

    for plan in elite_plans(search, 4):
        draw(
            PlanBatch.of(asked, [plan], with_priorities=False, with_staging=False), count // 2, 1.0
        )
    for at, hot in enumerate(HOT):
        order = at >= 2
        start = PlanBatch.of(asked, elite_plans(search, 1), order, with_staging=False)
        longer = 1 if at < 5 else 2
        walker.run(
            start, longer * length, Cooling(hot, hot / 100), MoveShares.for_search(order, False)
        )
        draw(
            PlanBatch.of(asked, elite_plans(search, 1), order, False),
            count,
            (1.0, 1.0, 0.6)[at % 3],
        )
    np.savez_compressed(
        path, features=np.concatenate(features), change=np.concatenate(change), where=where
    )
    return f"{name}: {len(where)} moves, {np.mean(np.concatenate(change) < -_GAIN):.3f} gain"


def gather(given: argparse.Namespace) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    numbers = range(min(given.problems, len(training())))
    with ProcessPoolExecutor(given.jobs) as pool:
        for line in pool.map(gathered, numbers, [given.out] * len(numbers)):
            print(line, flush=True)


def read(folder: Path) -> list[list[tuple[Any, Any]]]:
    """For each problem, for each of its plans: features and changes of cost of its moves."""
    problems = []
    for path in sorted(folder.glob("*.npz"), key=lambda each: int(each.stem)):
        data = np.load(path)
        x, y, where = data["features"], data["change"], data["where"]
        problems.append([(x[where == at], y[where == at]) for at in np.unique(where)])
    return problems


def trained(plans: list[tuple[Any, Any]], widths: list[int], epochs: int) -> ScoutNetwork:
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    gains = [y < -_GAIN for _, y in plans]
    # A move that gains more counts more, next to the others of its plan.
    weights = []
    for (_, y), gain in zip(plans, gains, strict=True):
        middle = np.median(-y[gain]) if gain.any() else 1.0
        weights.append(np.where(gain, np.clip(-y / middle, 0.3, 4.0), 1.0))
    x = torch.tensor(np.concatenate([x for x, _ in plans]))
    y = torch.tensor(np.concatenate(gains), dtype=torch.float32)
    w = torch.tensor(np.concatenate(weights), dtype=torch.float32)
    mean, spread = x.mean(0), x.std(0) + 1e-3
    x = (x - mean) / spread
    layers: list[nn.Module] = []
    for inputs, outputs in zip([x.shape[1], *widths], widths, strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(widths[-1], 1))
    adam = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=1e-3)
    steps = epochs * -(-len(x) // 512)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    loss_of = nn.BCEWithLogitsLoss(reduction="none")
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(512):
            loss = (loss_of(net(x[batch])[:, 0], y[batch]) * w[batch]).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            fall.step()
    flat: list[float] = []
    for at, layer in enumerate(each for each in net if isinstance(each, nn.Linear)):
        weight, bias = layer.weight.detach(), layer.bias.detach()
        if at == 0:
            bias, weight = bias - weight @ (mean / spread), weight / spread
        flat += bias.tolist() + weight.T.reshape(-1).tolist()
    return ScoutNetwork(tuple(widths), tuple(flat))


def chances(net: ScoutNetwork, x: Any) -> Any:
    """What the compiled scout would say, for checking."""
    at, values = 0, np.asarray(x, dtype=np.float64)
    weights = np.array(net.weights)
    for place, width in enumerate((*net.widths, 1)):
        bias, at = weights[at : at + width], at + width
        matrix = weights[at : at + values.shape[1] * width].reshape(values.shape[1], width)
        at += matrix.size
        values = values @ matrix + bias
        if place < len(net.widths):
            values = np.maximum(values, 0.0)
    return 1 / (1 + np.exp(-np.clip(values[:, 0], -30, 30)))


def fit(given: argparse.Namespace) -> None:
    problems = read(given.data)
    rest = [plan for at, plans in enumerate(problems) if at % 5 for plan in plans]
    net = trained(rest, given.widths, given.epochs)
    rows = []
    for plans in problems[::5]:
        for x, y in plans:
            gain = np.maximum(-y, 0.0)
            if (gain > _GAIN).sum() < 2:
                continue
            likes = chances(net, x) ** 2
            likes /= likes.sum()
            mean = gain.mean()
            rows.append(((gain > _GAIN).mean(), likes @ (gain > _GAIN), likes @ gain / mean))
    any_, liked, more = np.mean(rows, axis=0)
    moves = sum(len(y) for _, y in rest)
    print(
        f"{moves} moves of {len(problems)} problems, less every fifth; on those a move gains "
        f"{any_:.3f} of the time, a preferred one {liked:.3f}, and {more:.2f} times as much"
    )
    net = trained([plan for plans in problems for plan in plans], given.widths, given.epochs)
    given.out.parent.mkdir(exist_ok=True)
    net.save(given.out, "python benchmarks/train_scout.py gather, then fit")
    print(f"wrote {given.out.name}: {given.out.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("gather")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--jobs", type=int, default=2)
    one.add_argument("--problems", type=int, default=1_000)
    one.set_defaults(run=gather)
    two = commands.add_parser("fit")
    two.add_argument("--data", type=Path, required=True)
    two.add_argument("--out", type=Path, default=SHIPPED_WEIGHTS)
    two.add_argument("--widths", type=int, nargs="+", default=[24, 12])
    two.add_argument("--epochs", type=int, default=16)
    two.set_defaults(run=fit)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
