"""Several problems in one update: scores episodes of all of them.

An update on several graphs has less variance than one on each in turn (each of Placeto's workers
had its own graph, and their gradients were added). An algorithm sees one batch: episodes of all
problems follow each other, and decisions that a smaller graph lacks have log-probability 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.policies import Episodes, HeadScores, Scores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from numpy.typing import NDArray

    from placewright.policies import Policy
    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class MultiGraphEpisodes(Episodes):
    """Episodes of several problems, one problem after the other."""

    parts: tuple[Episodes, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Episodes]) -> MultiGraphEpisodes:
        log_prob = np.concatenate(pad_columns([episodes.log_prob for episodes in parts]))
        no_placements = np.zeros((0, 0), dtype=np.int32)
        episode_of = np.zeros(0, dtype=np.int64)
        return cls({}, no_placements, episode_of, log_prob, parts=tuple(parts))


class MultiGraphPolicy:
    """A policy over several problems at once, with the methods that an algorithm needs."""

    def __init__(self, policy: Policy, problems: Sequence[Problem]) -> None:
        self.policy, self.problems = policy, problems

    def score(
        self, problem: Problem, episodes: MultiGraphEpisodes, best: MultiGraphEpisodes | None = None
    ) -> Scores:
        """Scores of all episodes, on their own problems; the argument is ignored."""
        import torch

        best_parts: Sequence[Episodes | None] = [None] * len(self.problems)
        if best is not None:
            best_parts = best.parts
        all_scores = [
            self.policy.score(*arguments)
            for arguments in zip(self.problems, episodes.parts, best_parts, strict=True)
        ]
        heads = []
        for same_heads in zip(*(scores.heads for scores in all_scores), strict=True):
            max_entropy = [head.max_entropy.expand(len(head.log_prob), -1) for head in same_heads]
            heads.append(
                HeadScores(
                    same_heads[0].name,
                    _concatenate_padded([head.log_prob for head in same_heads]),
                    _concatenate_padded([head.entropy for head in same_heads]),
                    _concatenate_padded(max_entropy).mean(dim=0),
                )
            )
        log_prob_of_best = [
            scores.log_prob_of_best for scores in all_scores if scores.log_prob_of_best is not None
        ]
        values = [scores.value for scores in all_scores if scores.value is not None]
        return Scores(
            tuple(heads),
            torch.cat(values) if values else None,
            _concatenate_padded(log_prob_of_best) if log_prob_of_best else None,
        )

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return self.policy.parameters()


def pad_columns(rows: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Rows × columns each, padded with columns of zeros to the same width."""
    width = max(row.shape[1] for row in rows)
    return [np.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows]


def _concatenate_padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    width = max(row.shape[1] for row in rows)
    pad = torch.nn.functional.pad
    return torch.cat([pad(row, (0, width - row.shape[1])) for row in rows])
