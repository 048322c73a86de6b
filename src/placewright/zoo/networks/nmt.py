"""A translation model with attention (Bahdanau et al., ICLR 2015; Wu et al. 2016).

An encoder and a decoder of LSTM layers, unrolled over the steps op by op. The decoder's states
start as the encoder's last states; its last layer attends to the encoder's outputs, and the result
goes into the next step. The papers that place it give only layers, width and batch; the rest is
chosen here: all layers run forward in time, without residuals and dropout.
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
    """A model that translates one sequence into another of the same length.

    Args:
        layers: Layers of the encoder, and of the decoder.
        width: Width of the embeddings and of each layer.
        vocabulary: Vocabulary of each language.
    """
    check_unrolled("nmt", layers, steps)
    model = NMT(layers, width, vocabulary)
    args = [random_tokens(vocabulary, batch, steps) for _ in range(3 if training else 2)]
    return network_call(model, training, *args)


class NMT(nn.Module):
    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.encoder = LSTMStack(layers, width, width, vocabulary)
        self.decoder = LSTMStack(layers, 2 * width, width, vocabulary)
        self.attention = AdditiveAttention(width)
        self.head = OutputHead(width, vocabulary)

    def forward(
        self, source_BS: Tensor, target_BT: Tensor, labels_BT: Tensor | None = None
    ) -> Tensor:
        source = self.encoder.embedding(source_BS).unbind(1)
        zero_BD = torch.zeros_like(source[0])
        states = [(zero_BD, zero_BD)] * len(self.encoder.layers)
        memory_BSD = torch.stack([self.encoder(x_BD, states) for x_BD in source], 1)
        keys_BSD = self.attention.key(memory_BSD)
        context_BD, step_outputs = zero_BD, []
        for step, x_BD in enumerate(self.decoder.embedding(target_BT).unbind(1)):
            top_BD = self.decoder(torch.cat((x_BD, context_BD), 1), states)
            context_BD = self.attention(top_BD, keys_BSD, memory_BSD)
            step_outputs.append(
                self.head(context_BD, None if labels_BT is None else labels_BT[:, step])
            )
        return (
            torch.stack(step_outputs, 1) if labels_BT is None else torch.stack(step_outputs).mean()
        )


class LSTMStack(nn.Module):
    """An embedding and layers of cells."""

    def __init__(self, layers: int, inputs: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            LSTMCell(width if layer else inputs, width) for layer in range(layers)
        )

    def forward(self, x_BD: Tensor, states: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One step: the output of the last layer; the states are replaced."""
        for index, layer in enumerate(self.layers):
            states[index] = layer(x_BD, states[index])
            x_BD = states[index][0]
        return x_BD


class AdditiveAttention(nn.Module):
    """Additive attention of one step, and the layer that combines its context and the query."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.mix = nn.Linear(2 * width, width, bias=False)

    def forward(self, top_BD: Tensor, keys_BSD: Tensor, memory_BSD: Tensor) -> Tensor:
        scores_BS1 = self.score(torch.tanh(self.query(top_BD).unsqueeze(1) + keys_BSD))
        weights_B1S = scores_BS1.softmax(1).transpose(1, 2)
        context_BD = torch.bmm(weights_B1S, memory_BSD).squeeze(1)
        return torch.tanh(self.mix(torch.cat((top_BD, context_BD), 1)))
