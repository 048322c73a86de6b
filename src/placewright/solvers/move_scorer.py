"""Scout: a small trained network that scores moves before one of them is evaluated.

For each evaluation, annealing samples several moves. The scout computes features of each without
simulating: the devices of the block's neighbours, the transfers, the load, memory and idle time of
both devices, the slack of the block (`cpp/annealing/scout.cpp`). The network predicts the
probability that a move gains. It was trained on moves of many graphs
(`benchmarks/train/train_scout.py`) and depends on neither the number of ops nor that of devices.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import FileError
from placewright.files.header import body, make_header
from placewright.files.storage import read_data, write_data
from placewright.simulator._kernel import ScoutNet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem

SHIPPED_WEIGHTS = Path(__file__).parent / "weights" / "scout.json"
FEATURE_COUNT = 36  # features of a move in the compiled scout
_OPS_PER_CANDIDATE = (
    160  # ops per additional candidate: evaluating takes longer in large graphs, scoring does not
)
_MAX_CANDIDATES = 16
_MIN_OPS = 500  # below, evaluating a move takes little longer than scoring some


@dataclass(frozen=True)
class ScoutNetwork:
    """A network of one output: widths of its hidden layers, and its weights end to end.

    Layer by layer: first the biases, then the weights of each input.
    """

    widths: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        layer_widths = (FEATURE_COUNT, *self.widths, 1)
        expected = sum(
            (inputs + 1) * outputs for inputs, outputs in itertools.pairwise(layer_widths)
        )
        if len(self.weights) != expected or not np.isfinite(self.weights).all():
            raise FileError(
                f"a scout of widths {self.widths} has {len(self.weights)} weights: "
                f"expected {expected} finite numbers"
            )

    def save(self, path: Path, command: str, training: Mapping[str, Any] | None = None) -> None:
        """Write it to a JSON file.

        Args:
            command: The command that made it.
            training: The seed, commit and data that it was trained with, for readers of the file.
        """
        data: dict[str, Any] = {"widths": list(self.widths), "made_by": command}
        data |= {"training": dict(training)} if training else {}
        data["weights"] = [float(f"{weight:.5g}") for weight in self.weights]
        write_data({**make_header("policy"), "policy": "scout", "config": data}, path)

    @classmethod
    def load(cls, path: Path) -> ScoutNetwork:
        """The network that `save` wrote.

        Raises:
            FileError: The file is missing, damaged, or another release's.
        """
        data = body(read_data(path), "policy")
        try:
            config = data["config"]
            return cls(tuple(map(int, config["widths"])), tuple(map(float, config["weights"])))
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{path}: is not a scout of this release: {error!r}") from None

    @classmethod
    def random(cls, widths: Sequence[int], seed: int = 0) -> ScoutNetwork:
        """Random weights, of the usual size for their number."""
        rng = np.random.default_rng(seed)
        layer_widths, weights = (FEATURE_COUNT, *widths, 1), []
        for inputs, outputs in itertools.pairwise(layer_widths):
            weights += [0.0] * outputs
            weights += rng.normal(scale=(2 / inputs) ** 0.5, size=inputs * outputs).tolist()
        return cls(tuple(widths), tuple(weights))


@cache
def shipped_network() -> ScoutNetwork:
    """The network that ships."""
    return ScoutNetwork.load(SHIPPED_WEIGHTS)


@dataclass(frozen=True)
class Scout:
    """A proposer of moves inside compiled annealing, for step times only.

    Args:
        net: The network; by default the shipped one.
        sharpness: How strongly a likelier move is preferred.
        candidates: Moves that are scored for each one that is evaluated; by default as many as take
            a fraction of the time of an evaluation.
        blind: Scores as many moves and takes any of them, for comparison.
    """

    net: ScoutNetwork | None = None
    name: str = "scout"
    sharpness: float = 2.0
    candidates: int | None = None
    blind: bool = False
    plan_seconds = move_seconds = 0.0  # it runs inside annealing

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        """No plans."""
        return ()

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None:
        """None: it scores single moves."""
        return None

    def network(self, problem: Problem) -> ScoutNet | None:
        """The network for annealing; None where it cannot help."""
        if problem.objective == "period" or problem.arrays.ops < _MIN_OPS:
            return None
        net, scout = self.net or shipped_network(), ScoutNet()
        scout.widths, scout.weights = list(net.widths), list(net.weights)
        default_candidates = int(
            np.clip(problem.arrays.ops // _OPS_PER_CANDIDATE, 2, _MAX_CANDIDATES)
        )
        scout.candidates = self.candidates or default_candidates
        scout.sharpness, scout.blind = self.sharpness, self.blind
        return scout
