"""Additive attention (Bahdanau et al. 2015) whose tensor of all sums is never stored.

A score is match · tanh(query + key). On a CPU in float32 a compiled kernel computes scores and
gradients (`cpp/policies/additive_attention.hpp`); elsewhere PyTorch does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from placewright.policies._additive_attention import BLOCK, gradients, scores

MAX_KEY = 30.0
"""The largest key that the kernel computes with."""
_MAX_QUERY = 43.0  # e^2q and its inverse are float32; with any such key the tanh is then 1 or -1
_BLOCK_NODES = 64  # whose gradients are added up before they are added to others
_MAX_ELEMENTS = 2**26  # elements of the tensor of sums that PyTorch computes at once


@dataclass(frozen=True, eq=False)
class AttentionKeys:
    """Keys that the queries of many steps are matched with.

    Args:
        keys: Rows × keys × hidden.
        row_of: Episodes: the row whose keys an episode has.
        packed: e^2k as the kernel reads it; None if PyTorch is to compute.
    """

    keys: torch.Tensor
    row_of: torch.Tensor
    packed: torch.Tensor | None

    @classmethod
    def of(cls, keys: torch.Tensor, row_of: torch.Tensor) -> AttentionKeys:
        """Prepare keys for either way to compute."""
        with torch.no_grad():
            served = keys.device.type == "cpu" and keys.dtype == torch.float32
            served = served and bool(keys.abs().amax() <= MAX_KEY)  # not for inf and nan either
            return cls(keys, row_of, _pack(torch.exp(2.0 * keys)) if served else None)

    def scores(self, query: torch.Tensor, match: torch.Tensor) -> torch.Tensor:
        """Episodes × steps × keys, of queries (episodes × steps × hidden)."""
        if self.packed is None or query.dtype != torch.float32:
            return torch_scores(query, self.keys[self.row_of], match)
        inputs = (self.packed, match.contiguous(), self.row_of, self.keys.shape[1])
        if torch.is_grad_enabled():
            return _KernelScores.apply(query, self.keys, *inputs)  # type: ignore[no-untyped-call]
        return _kernel_scores(_exponential(query), *inputs)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Episodes × steps × hidden: keys times weights (episodes × steps × keys)."""
        return weights @ (self.keys[0] if len(self.keys) == 1 else self.keys[self.row_of])


def torch_scores(query: torch.Tensor, keys: torch.Tensor, match: torch.Tensor) -> torch.Tensor:
    """The scores by their definition; keys are episodes × keys × hidden."""
    chunk = max(1, _MAX_ELEMENTS // max(1, keys.numel()))
    parts = torch.split(query, chunk, dim=1)
    return torch.cat([torch.tanh(part[:, :, None] + keys[:, None]) @ match for part in parts], 1)


class _KernelScores(torch.autograd.Function):
    """The kernel's scores, with gradients of queries, keys and match."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        keys: torch.Tensor,
        packed: torch.Tensor,
        match: torch.Tensor,
        row_of: torch.Tensor,
        count: int,
    ) -> torch.Tensor:
        exp_query = _exponential(query)
        ctx.save_for_backward(exp_query, packed, match, row_of)
        return _kernel_scores(exp_query, packed, match, row_of, count)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, score_gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None, torch.Tensor, None, None]:
        inputs = (*ctx.saved_tensors, score_gradient.contiguous())
        found = gradients(*(tensor.detach().numpy() for tensor in inputs))
        of_query, of_packed, of_match = (torch.from_numpy(gradient) for gradient in found)
        return of_query, _unpack(of_packed, score_gradient.shape[2]), None, of_match, None, None


def node_scores(
    packed: torch.Tensor, query: torch.Tensor, match: torch.Tensor, row: torch.Tensor, keys: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """e^2q and scores (nodes × keys) of queries (nodes × hidden) that have a row each."""
    exp_query = _exponential(query)
    return exp_query, _kernel_scores(exp_query[:, None], packed, match, row, keys)[:, 0]


def node_gradients(
    packed: torch.Tensor,
    exp_query: torch.Tensor,
    match: torch.Tensor,
    row: torch.Tensor,
    of_scores: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of queries (nodes × hidden), keys (rows × keys × hidden) and match.

    Nodes of one row are blocks of steps for the kernel, which adds up each block by itself.
    """
    count = torch.bincount(row, minlength=len(packed))
    blocks = (count + _BLOCK_NODES - 1) // _BLOCK_NODES
    order = torch.argsort(row, stable=True)
    # A node's place: after all blocks of the rows before, and the nodes of its own row.
    gaps = _BLOCK_NODES * (blocks.cumsum(0) - blocks) - (count.cumsum(0) - count)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(row)) + gaps[row[order]]
    size = int(blocks.sum()) * _BLOCK_NODES
    query = exp_query.new_zeros((size, exp_query.shape[1]))
    query[place] = exp_query
    slopes = of_scores.new_zeros((size, of_scores.shape[1]))
    slopes[place] = of_scores
    inputs = (
        query.view(-1, _BLOCK_NODES, query.shape[1]),
        packed,
        match,
        torch.repeat_interleave(blocks),
        slopes.view(-1, _BLOCK_NODES, slopes.shape[1]),
    )
    found = gradients(*(tensor.detach().numpy() for tensor in inputs))
    of_query, of_packed, of_match = (torch.from_numpy(gradient) for gradient in found)
    return of_query.flatten(0, 1)[place], _unpack(of_packed, slopes.shape[1]), of_match


def _exponential(query: torch.Tensor) -> torch.Tensor:
    return torch.exp(2.0 * query.clamp(-_MAX_QUERY, _MAX_QUERY)).contiguous()


def _kernel_scores(
    exp_query: torch.Tensor,
    packed: torch.Tensor,
    match: torch.Tensor,
    row_of: torch.Tensor,
    count: int,
) -> torch.Tensor:
    query, key, weights, row = (
        tensor.detach().numpy() for tensor in (exp_query, packed, match, row_of)
    )
    return torch.from_numpy(scores(query, key, weights, row, count))


def _pack(keys: torch.Tensor) -> torch.Tensor:
    """Rows × keys × hidden as rows × blocks × hidden × keys of a block; the last block padded."""
    padded = functional.pad(keys, (0, 0, 0, -keys.shape[1] % BLOCK))
    rows, count, hidden = padded.shape
    blocks = padded.view(rows, count // BLOCK, BLOCK, hidden)
    return blocks.transpose(2, 3).contiguous()


def _unpack(packed: torch.Tensor, keys: int) -> torch.Tensor:
    rows, blocks, hidden, size = packed.shape
    return packed.transpose(2, 3).reshape(rows, blocks * size, hidden)[:, :keys]
