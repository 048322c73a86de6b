"""Several problems as one: a policy in, one that scores episodes of all of them at once, out.

An update on several graphs is lower in variance than one on each in turn (Placeto's workers each
had a graph of their own, and their gradients were added). An algorithm need not know: episodes of
all problems follow each other, and decisions that a smaller graph lacks have log-probability 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.policies import Episodes, Head, Scores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from numpy.typing import NDArray

    from placewright.policies import Policy
    from placewright.problem import Problem


def act_all(
    policy: Policy, problems: Sequence[Problem], count: int, seeds: Sequence[int], **how: Any
) -> list[Episodes]:
    """So many episodes of each problem, side by side where the policy can do that."""
    if hasattr(policy, "act_all") and len(problems) > 1:
        found: list[Episodes] = policy.act_all(problems, count, seeds, **how)
        return found
    pairs = zip(problems, seeds, strict=True)
    return [policy.act(problem, count, seed, **how) for problem, seed in pairs]


@dataclass(frozen=True, eq=False)
class Several(Episodes):
    """Episodes of several problems, one problem after the other."""

    parts: tuple[Episodes, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Episodes]) -> Several:
        log_prob = np.concatenate(padded([each.log_prob for each in parts]))
        nothing = np.zeros((0, 0), dtype=np.int32)
        owner = np.zeros(0, dtype=np.int64)
        return cls({}, nothing, owner, log_prob, parts=tuple(parts))


class Joined:
    """A policy that takes several problems for one; it has what an algorithm asks of a policy."""

    def __init__(self, policy: Policy, problems: Sequence[Problem]) -> None:
        self.policy, self.problems = policy, problems

    def score(self, problem: Problem, episodes: Several, best: Several | None = None) -> Scores:
        """Scores of all; of the problems' own, so the argument is not looked at."""
        import torch

        bests: Sequence[Episodes | None] = [None] * len(self.problems)
        if best is not None:
            bests = best.parts
        every = [
            self.policy.score(*each)
            for each in zip(self.problems, episodes.parts, bests, strict=True)
        ]
        heads = []
        for several in zip(*(scores.heads for scores in every), strict=True):
            most = [head.most.expand(len(head.log_prob), -1) for head in several]
            heads.append(
                Head(
                    several[0].name,
                    _together([head.log_prob for head in several]),
                    _together([head.entropy for head in several]),
                    _together(most).mean(dim=0),
                )
            )
        toward = [scores.toward for scores in every if scores.toward is not None]
        value = [scores.value for scores in every if scores.value is not None]
        return Scores(
            tuple(heads),
            torch.cat(value) if value else None,
            _together(toward) if toward else None,
        )

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return self.policy.parameters()


def padded(rows: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Rows × columns each, with columns of zeros so that all have as many."""
    most = max(each.shape[1] for each in rows)
    return [np.pad(each, ((0, 0), (0, most - each.shape[1]))) for each in rows]


def _together(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    most = max(each.shape[1] for each in rows)
    pad = torch.nn.functional.pad
    return torch.cat([pad(each, (0, most - each.shape[1])) for each in rows])
