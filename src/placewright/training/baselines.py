"""Baselines: returns in, advantages out: how much better than expected each step went.

A baseline that remembers says what in plain data (`state`), for checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Baseline(Protocol):
    """What a reward is compared with."""

    def advantage(
        self, returns: NDArray[np.float64], counted: NDArray[np.bool_], graph: str
    ) -> NDArray[np.float64]:
        """Episodes × steps: returns less what was expected; then learn from them.

        Args:
            counted: Episodes: whether to learn from it; the advantage of the others is 0.
            graph: Which graph they are of.
        """
        ...

    def state(self) -> dict[str, Any]:
        """What it remembers, as JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Remember what an equal baseline said in `state`."""
        ...


class MovingAverage:
    """One moving average of all returns, as in ColocRL and Hierarchical.

    Args:
        decay: How much of the average stays at each update.
        start: Where it begins; the first batch's mean if not given. The open code begins at the
            failing cost.
    """

    def __init__(self, decay: float = 0.9, start: float | None = None) -> None:
        self.decay, self.value = decay, start

    def advantage(
        self, returns: NDArray[np.float64], counted: NDArray[np.bool_], graph: str
    ) -> NDArray[np.float64]:
        if not counted.any():
            return np.zeros_like(returns)
        mean = float(returns[counted].mean())
        before = mean if self.value is None else self.value
        self.value = self.decay * before + (1 - self.decay) * mean
        return np.where(counted[:, None], returns - before, 0.0)

    def state(self) -> dict[str, Any]:
        return {"value": self.value}

    def restore(self, state: dict[str, Any]) -> None:
        self.value = None if state["value"] is None else float(state["value"])


class PerGraph:
    """A baseline of its own for each graph, where several are trained on (GO).

    Args:
        make: Makes each one.
    """

    def __init__(self, make: Callable[[], Baseline] = MovingAverage) -> None:
        self.make = make
        self.graphs: dict[str, Baseline] = {}

    def advantage(
        self, returns: NDArray[np.float64], counted: NDArray[np.bool_], graph: str
    ) -> NDArray[np.float64]:
        own = self.graphs.setdefault(graph, self.make())
        return own.advantage(returns, counted, graph)

    def state(self) -> dict[str, Any]:
        return {"graphs": {graph: own.state() for graph, own in self.graphs.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        for graph, own in state["graphs"].items():
            self.graphs.setdefault(graph, self.make()).restore(own)


class PerStep:
    """For each step of an episode the mean return of the last few episodes there (Placeto).

    Args:
        window: How many episodes are remembered.
    """

    def __init__(self, window: int = 10) -> None:
        self.window = window
        self.rows: list[list[float]] = []

    def advantage(
        self, returns: NDArray[np.float64], counted: NDArray[np.bool_], graph: str
    ) -> NDArray[np.float64]:
        self.rows = [*self.rows, *returns[counted].tolist()][-self.window :]
        mean = np.mean(self.rows, axis=0) if self.rows else 0.0
        return np.where(counted[:, None], returns - mean, 0.0)

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def restore(self, state: dict[str, Any]) -> None:
        self.rows = [[float(value) for value in row] for row in state["rows"]]


class BatchNormalised:
    """The batch's own mean and spread: advantages have mean 0 and deviation 1 whatever the graph.

    Args:
        least: A smaller deviation counts as this, so that equal plans do not become noise.
    """

    def __init__(self, least: float = 1e-6) -> None:
        self.least = least

    def advantage(
        self, returns: NDArray[np.float64], counted: NDArray[np.bool_], graph: str
    ) -> NDArray[np.float64]:
        if not counted.any():
            return np.zeros_like(returns)
        known = returns[counted]
        spread = max(float(known.std()), self.least)
        return np.where(counted[:, None], (returns - known.mean(axis=0)) / spread, 0.0)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
