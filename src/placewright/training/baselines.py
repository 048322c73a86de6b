"""Baselines: turn returns into advantages, the difference from an expected return.

A baseline with a memory gives it as plain data (`state`), for checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Baseline(Protocol):
    """The expected return of episodes."""

    def advantage(
        self,
        returns: NDArray[np.float64],
        included: NDArray[np.bool_],
        graph: str,
        starts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        """Episodes × steps: returns less the expected ones; then update the expectation.

        Args:
            included: Episodes: whether to learn from each; the advantage of the others is 0.
            graph: The fingerprint of their graph.
            starts: Episodes: a number for each initial state (`Policy.start_groups`).
        """
        ...

    def state(self) -> dict[str, Any]:
        """Its memory, as JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the `state` of an equal baseline."""
        ...


class MovingAverage:
    """One moving average of all returns, as in ColocRL and Hierarchical.

    Args:
        decay: The share of the average that stays at each update.
        initial: Its initial value; the first batch's mean by default. The open code starts at the
            penalty of plans that do not fit.
    """

    def __init__(self, decay: float = 0.9, initial: float | None = None) -> None:
        self.decay, self.average = decay, initial

    def advantage(
        self,
        returns: NDArray[np.float64],
        included: NDArray[np.bool_],
        graph: str,
        starts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        if not included.any():
            return np.zeros_like(returns)
        mean = float(returns[included].mean())
        expected = mean if self.average is None else self.average
        self.average = self.decay * expected + (1 - self.decay) * mean
        return np.where(included[:, None], returns - expected, 0.0)

    def state(self) -> dict[str, Any]:
        return {"value": self.average}

    def restore(self, state: dict[str, Any]) -> None:
        self.average = None if state["value"] is None else float(state["value"])


class PerGraph:
    """A separate baseline for each graph.

    Args:
        make: Makes each one.
    """

    def __init__(self, make: Callable[[], Baseline] = MovingAverage) -> None:
        self.make = make
        self.baselines: dict[str, Baseline] = {}

    def advantage(
        self,
        returns: NDArray[np.float64],
        included: NDArray[np.bool_],
        graph: str,
        starts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        baseline = self.baselines.setdefault(graph, self.make())
        return baseline.advantage(returns, included, graph, starts)

    def state(self) -> dict[str, Any]:
        return {"graphs": {graph: baseline.state() for graph, baseline in self.baselines.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        for graph, saved_state in state["graphs"].items():
            self.baselines.setdefault(graph, self.make()).restore(saved_state)


class PerStep:
    """For each step of an episode the mean return of the last few episodes there (Placeto).

    Args:
        window: The number of episodes.
    """

    def __init__(self, window: int = 10) -> None:
        self.window = window
        self.recent_returns: list[list[float]] = []

    def advantage(
        self,
        returns: NDArray[np.float64],
        included: NDArray[np.bool_],
        graph: str,
        starts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        self.recent_returns = [*self.recent_returns, *returns[included].tolist()][-self.window :]
        mean = np.mean(self.recent_returns, axis=0) if self.recent_returns else 0.0
        return np.where(included[:, None], returns - mean, 0.0)

    def state(self) -> dict[str, Any]:
        return {"rows": self.recent_returns}

    def restore(self, state: dict[str, Any]) -> None:
        self.recent_returns = [[float(value) for value in row] for row in state["rows"]]


class StatelessBaseline:
    """A baseline that is worked out from the batch alone, so that a checkpoint keeps nothing."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class BatchNormalised(StatelessBaseline):
    """The batch's mean and deviation: advantages have mean 0 and deviation 1 on any graph.

    Args:
        min_deviation: A smaller deviation counts as this, so that equal plans do not become noise.
    """

    def __init__(self, min_deviation: float = 1e-6) -> None:
        self.min_deviation = min_deviation

    def advantage(
        self,
        returns: NDArray[np.float64],
        included: NDArray[np.bool_],
        graph: str,
        starts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        if not included.any():
            return np.zeros_like(returns)
        batch = returns[included]
        deviation = max(float(batch.std()), self.min_deviation)
        return np.where(included[:, None], (returns - batch.mean(axis=0)) / deviation, 0.0)


class TopShare(StatelessBaseline):
    """The return that the best episodes of a batch exceed; the others are not learned from.

    The risk-seeking policy gradient (Petersen et al. 2021): a search reports its best plan, not the
    mean of all, and the mean of uncertain plans can be best where no plan is good.

    Args:
        share: The share of episodes that is learned from.
        min_deviation: A smaller deviation counts as this, so that equal plans do not become noise.
    """

    def __init__(self, share: float = 0.05, min_deviation: float = 1e-6) -> None:
        if not 0 < share < 1:
            raise ValueError(f"a share of {share:g}: expected more than 0 and less than 1")
        self.share, self.min_deviation = share, min_deviation

    def advantage(
        self,
        returns: NDArray[np.float64],
        included: NDArray[np.bool_],
        graph: str,
        starts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        if not included.any():
            return np.zeros_like(returns)
        threshold = np.quantile(returns[included], 1 - self.share, axis=0)
        excess = np.where(included[:, None], np.maximum(returns - threshold, 0.0), 0.0)
        size = np.sqrt(np.square(excess[included]).mean())
        return excess / max(float(size), self.min_deviation)


class StartNormalised(StatelessBaseline):
    """The mean of those episodes of the batch that start alike, and one deviation for all (GO).

    Episodes that start at better plans end at better ones: only what they change counts.

    Args:
        min_deviation: A smaller deviation counts as this, so that equal plans do not become noise.
    """

    def __init__(self, min_deviation: float = 1e-6) -> None:
        self.min_deviation = min_deviation

    def advantage(
        self,
        returns: NDArray[np.float64],
        included: NDArray[np.bool_],
        graph: str,
        starts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        if not included.any():
            return np.zeros_like(returns)
        start = np.zeros(len(returns), dtype=np.int64) if starts is None else starts
        advantage = np.zeros_like(returns)
        for step in range(returns.shape[1]):
            value, group = returns[included, step], start[included]
            count = np.bincount(group)
            mean = np.bincount(group, value) / np.maximum(count, 1)
            residual = value - mean[group]
            advantage[included, step] = residual / max(float(residual.std()), self.min_deviation)
        return advantage
