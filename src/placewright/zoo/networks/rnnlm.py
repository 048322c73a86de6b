"""A recurrent language model (Zaremba et al. 2014; Jozefowicz et al. 2016).

LSTM layers unrolled over the steps op by op, and a softmax at each step, as the papers place it.
ColocRL, HDP and GO do not give the vocabulary and the steps; there is no dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from placewright.zoo.networks.layers import (
    LSTMCell,
    NetworkCall,
    OutputHead,
    check_unrolled,
    network_call,
    random_tokens,
)


def build(
    *, batch: int, steps: int, layers: int, width: int, vocabulary: int, training: bool
) -> NetworkCall:
    """A language model.

    Args:
        width: Width of the embedding and of each layer.
    """
    check_unrolled("rnnlm", layers, steps)
    model = RNNLM(layers, width, vocabulary)
    args = [random_tokens(vocabulary, batch, steps)] * (2 if training else 1)
    return network_call(model, training, *args)


class RNNLM(nn.Module):
    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LSTMCell(width, width) for _ in range(layers))
        self.head = OutputHead(width, vocabulary)

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor | None = None) -> Tensor:
        embedded_BTD = self.embedding(tokens_BT)
        zero_BD = torch.zeros_like(embedded_BTD[:, 0])
        states = [(zero_BD, zero_BD)] * len(self.layers)
        step_outputs = []
        for step, x_BD in enumerate(embedded_BTD.unbind(1)):
            for index, layer in enumerate(self.layers):
                states[index] = layer(x_BD, states[index])
                x_BD = states[index][0]
            step_outputs.append(self.head(x_BD, None if labels_BT is None else labels_BT[:, step]))
        return (
            torch.stack(step_outputs, 1) if labels_BT is None else torch.stack(step_outputs).mean()
        )
