"""The decisions of Placeto's episodes: which of them are learned from, and their scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.policies.policy import HeadScores, Scores
from placewright.policies.seq2seq import MASKED_LOGIT, log_prob_and_entropy, uniform_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.policies.placeto.graph_features import PlacetoObservation


def learned_decisions(actions: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Episodes × decisions: whether to learn from each."""
    all_decisions = np.ones(actions["device"].shape, dtype=bool)
    return actions.get("counted", all_decisions)


def decision_scores(
    observation: PlacetoObservation,
    actions: Mapping[str, NDArray[Any]],
    logits: torch.Tensor,
    pairs: tuple[NDArray[np.int64], ...],
) -> Scores:
    """Scores of a problem's episodes, from logits of (episode, step) pairs."""
    torch_device, (rows, steps) = logits.device, pairs
    if "added" in actions:
        logits = logits + torch.as_tensor(actions["added"][rows, steps], device=torch_device)
    legal = observation.legal[torch.as_tensor(steps, device=torch_device)]
    choice = torch.as_tensor(actions["device"][rows, steps], dtype=torch.long, device=torch_device)
    log_prob, entropy = log_prob_and_entropy(logits.masked_fill(~legal, MASKED_LOGIT), choice)
    shape = actions["device"].shape
    # Entropy is divided by this share, so that it estimates that of all decisions.
    sampled_share = len(rows) / max(shape[0] * shape[1], 1)
    position = torch.as_tensor(rows * shape[1] + steps, device=torch_device)
    all_values = torch.zeros((2, shape[0] * shape[1]), device=torch_device)
    all_values = all_values.index_copy(
        1, position, torch.stack([log_prob, entropy / max(sampled_share, 1e-9)])
    )
    by_episode = all_values.reshape(2, *shape)
    head = HeadScores("devices", by_episode[0], by_episode[1], uniform_entropy(observation.legal))
    return Scores((head,))
