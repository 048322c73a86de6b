"""A decoder with a mixture of experts, with the sizes of Mixtral 8x7B (Jiang et al. 2024).

Each token goes to a few experts. So that all shapes are static, every expert has capacity for the
same number of rows and computes all of them, filled or not; rows over the capacity are dropped
(Lepikhin et al., GShard, ICLR 2021). Each expert is a module of its own, so that experts can be on
different devices. With few tokens this also reads experts without any token.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from placewright.errors import ConfigError
from placewright.zoo.networks.layers import GatedMLP, NetworkCall, default_dtype
from placewright.zoo.networks.llama import Decoder, check_heads, decoder_call


def build(
    *,
    batch: int,
    context: int,
    mode: str,
    layers: int,
    width: int,
    heads: int,
    groups: int,
    hidden: int,
    experts: int,
    chosen: int,
    capacity: float,
    vocabulary: int,
    training: bool,
    dtype: str,
) -> NetworkCall:
    """A language model; other arguments are those of `llama.build`.

    Args:
        hidden: Width of an expert's inner layer.
        chosen: Experts per token.
        capacity: Capacity of an expert, relative to an even split.
    """
    check_heads("moe", width, heads, groups)
    if chosen > experts:
        raise ConfigError(f"moe has chosen {chosen!r}: expected no more than its {experts} experts")
    tokens = batch * (1 if mode == "decode" and not training else context)
    expert_capacity = min(tokens, math.ceil(capacity * tokens * chosen / experts))
    caches = 0 if training else batch
    with default_dtype(dtype):
        model = Decoder(
            caches,
            context,
            layers,
            width,
            heads,
            groups,
            vocabulary,
            theta=1_000_000.0,
            make_mlp=lambda: MixtureOfExperts(width, hidden, experts, chosen, expert_capacity),
        )
    return decoder_call(model, batch, context, mode, vocabulary, training)


class MixtureOfExperts(nn.Module):
    """Experts of equal capacity, and the router that assigns rows to them.

    Shapes at the end of a name: N tokens, K choices per token, R = N K rows, X experts, D width.
    """

    def __init__(self, width: int, hidden: int, experts: int, top_k: int, capacity: int) -> None:
        super().__init__()
        self.top_k, self.capacity = top_k, capacity
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(GatedMLP(width, hidden) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        x_ND = x.flatten(0, -2)
        shares_NK, chosen_NK = self.router(x_ND).softmax(-1).topk(self.top_k)
        shares_NK = shares_NK / shares_NK.sum(-1, keepdim=True)
        slot_R = self.slots(chosen_NK.flatten())
        rows_RD = x_ND[:, None].expand(-1, self.top_k, -1).flatten(0, 1)
        overflow_slot = len(self.experts) * self.capacity  # the slot of dropped rows
        expert_inputs = x_ND.new_zeros(overflow_slot + 1, x_ND.shape[1]).index_copy(
            0, slot_R, rows_RD
        )
        parts = expert_inputs[:overflow_slot].chunk(len(self.experts))
        expert_outputs = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        rows_out_RD = torch.cat((*expert_outputs, torch.zeros_like(x_ND[:1]))).index_select(
            0, slot_R
        )
        y_ND = (rows_out_RD.view(-1, self.top_k, x_ND.shape[1]) * shares_NK[..., None]).sum(1)
        return y_ND.view_as(x)

    def slots(self, expert_R: Tensor) -> Tensor:
        """The slot of each row: after the earlier rows of the same expert."""
        count = len(self.experts)
        hit_RX = expert_R[:, None] == torch.arange(count, device=expert_R.device)
        place_R = (hit_RX.cumsum(0) * hit_RX).sum(1) - 1
        slot_R = expert_R * self.capacity + place_R
        return torch.where(place_R < self.capacity, slot_R, count * self.capacity)
