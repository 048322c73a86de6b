"""Train the scout that ranks moves inside `auto`'s annealing, and write the file that ships.

    python -m benchmarks.train.train_scout gather --out FOLDER --jobs 2
    python -m benchmarks.train.train_scout fit --data FOLDER

`gather` anneals the training problems (`benchmarks.proposers.problems`), samples moves on the way
as annealing does, evaluates each, and saves the scout's features of it and the change of cost. It
can be stopped and continues. `fit` trains the network (with torch) to predict which moves gain, on
four fifths of the problems; on the others it prints how often a move gains, and how often and how
much one does that the network prefers; then it trains on all.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import BenchmarkParser, make_parser
from benchmarks.proposers.problems import named_problem, training
from benchmarks.train.training_record import training_record
from placewright.plan_batch import PlanBatch
from placewright.solvers import Search, Stop
from placewright.solvers.baselines import constructive_solvers
from placewright.solvers.move_scorer import SHIPPED_WEIGHTS, ScoutNetwork
from placewright.solvers.searches.annealing import elite_plans, first_round_length, grouping_levels
from placewright.solvers.searches.annealing_chains import (
    AnnealingChains,
    Cooling,
    MoveShares,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

HOT = (0.005, 0.03, 0.01, 0.003, 0.1, 0.003, 0.001)
"""Temperatures at which annealing begins; moves are sampled after each run."""

SEED = 0
"""Of the network's first weights and the order of moves; a problem's moves have its number."""

_GAIN = 1e-7  # share of the cost that counts as a gain


def gather_moves(number: int, out: Path) -> str:
    """The moves of one training problem, in a file."""
    name, path = training()[number], out / f"{number}.npz"
    if path.exists():
        return f"{name}: known"
    problem = named_problem(name)
    search = Search(problem, Stop(), number)
    for solver in constructive_solvers(problem, with_partitioners=False)[0]:
        search.phase = solver.name
        solver.run(search)
    search.phase = "annealing"
    chains, length = AnnealingChains(search, grouping_levels(problem)), first_round_length(problem)
    count = int(np.clip(1_000_000 // problem.arrays.ops, 100, 500))
    features, change, where = [], [], []

    def sample(rows: PlanBatch, moves: int, slope: float) -> None:
        x, y = chains.sample_moves(rows, moves, int(search.rng.integers(2**31)), slope)
        features.append(x)
        change.append(y)
        where.extend([len(features)] * len(y))

    for plan in elite_plans(search, 4):
        sample(
            PlanBatch.of(problem, [plan], with_priorities=False, with_staging=False),
            count // 2,
            1.0,
        )
    for at, hot in enumerate(HOT):
        order = at >= 2
        start = PlanBatch.of(problem, elite_plans(search, 1), order, with_staging=False)
        longer = 1 if at < 5 else 2
        chains.run(
            start, longer * length, Cooling(hot, hot / 100), MoveShares.for_search(order, False)
        )
        sample(
            PlanBatch.of(problem, elite_plans(search, 1), order, False),
            count,
            (1.0, 1.0, 0.6)[at % 3],
        )
    np.savez_compressed(
        path, features=np.concatenate(features), change=np.concatenate(change), where=where
    )
    return f"{name}: {len(where)} moves, {np.mean(np.concatenate(change) < -_GAIN):.3f} gain"


def gather(arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    numbers = range(min(arguments.problems, len(training())))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for line in pool.map(gather_moves, numbers, [arguments.out] * len(numbers)):
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

    torch.manual_seed(SEED)
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
    """The chances that the compiled scout computes, to check them."""
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


def fit(arguments: argparse.Namespace) -> None:
    problems = read(arguments.data)
    rest = [plan for at, plans in enumerate(problems) if at % 5 for plan in plans]
    net = trained(rest, arguments.widths, arguments.epochs)
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
    net = trained(
        [plan for plans in problems for plan in plans], arguments.widths, arguments.epochs
    )
    arguments.out.parent.mkdir(exist_ok=True)
    names = training()[: len(problems)]
    data = f"moves of {len(names)} problems of benchmarks.proposers.problems"
    record = training_record(SEED, data, [name.partition("@")[0] for name in names])
    net.save(arguments.out, "python -m benchmarks.train.train_scout gather, then fit", record)
    print(f"wrote {arguments.out.name}: {arguments.out.stat().st_size} bytes")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    commands = parser.add_subparsers(required=True, parser_class=BenchmarkParser)
    gathering = commands.add_parser("gather", help="sample moves of the training problems")
    option = gathering.add_argument
    option("--out", type=Path, required=True, help="folder that moves are saved in")
    option("--jobs", type=int, default=2, help="processes at once")
    option("--problems", type=int, default=1_000, help="use this many problems at most")
    gathering.set_defaults(run=gather)
    fitting = commands.add_parser("fit", help="train the network on the moves")
    option = fitting.add_argument
    option("--data", type=Path, required=True, help="folder of the moves")
    option("--out", type=Path, default=SHIPPED_WEIGHTS, help="file of the scout")
    option("--widths", type=int, nargs="+", default=[24, 12], help="sizes of the hidden layers")
    option("--epochs", type=int, default=16, help="epochs of training")
    fitting.set_defaults(run=fit)
    arguments = parser.parse_args(argv)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
