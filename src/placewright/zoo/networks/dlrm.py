"""DLRM, a recommender (Naumov et al. 2019), with the sizes of MLPerf.

A tower for the dense features and an embedding table per category; an MLP scores their pairwise
products.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from placewright.zoo.networks.layers import NetworkCall, default_dtype, network_call, random_tokens

NUMERIC_FEATURES = 13
TABLE_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10,
    2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip
"""Values per category in the data of MLPerf (Criteo 1TB)."""


def build(
    *, batch: int, rows: int, width: int, hidden: int, training: bool, dtype: str
) -> NetworkCall:
    """A model that scores pairs of a user and an item.

    Args:
        rows: Maximum rows of a table.
        width: Width of an embedding.
        hidden: Width of the widest layer of the top MLP.
    """
    tables = [min(rows, table_rows) for table_rows in TABLE_ROWS]
    with default_dtype(dtype):
        model = DLRM(tables, width, hidden)
        categories = torch.stack([random_tokens(table_rows, batch) for table_rows in tables], 1)
        args = [torch.randn(batch, NUMERIC_FEATURES), categories]
        args += [torch.rand(batch)] if training else []
    return network_call(model, training, *args)


class DLRM(nn.Module):
    def __init__(self, tables: list[int], width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows in tables)
        self.bottom = mlp_tower(NUMERIC_FEATURES, 4 * width, 2 * width, width)
        features = len(tables) + 1
        self.products = PairwiseProducts(features)
        pairs = width + features * (features - 1) // 2
        self.top = mlp_tower(pairs, hidden, hidden, hidden // 2, hidden // 4)
        self.head = nn.Linear(hidden // 4, 1)

    def forward(self, numbers: Tensor, chosen: Tensor, clicked: Tensor | None = None) -> Tensor:
        x = self.bottom(numbers)
        embedded = [
            table(indices) for table, indices in zip(self.tables, chosen.unbind(1), strict=True)
        ]
        products = self.products(torch.stack([x, *embedded], 1))
        logits = self.head(self.top(torch.cat((x, products), 1))).squeeze(1)
        return logits if clicked is None else F.binary_cross_entropy_with_logits(logits, clicked)


class PairwiseProducts(nn.Module):
    """The product of each pair of features."""

    pairs: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        left, right = torch.tril_indices(features, features, -1)
        self.register_buffer("pairs", left * features + right, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.transpose(1, 2)).flatten(1).index_select(1, self.pairs)


def mlp_tower(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, each followed by a ReLU."""
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())))
