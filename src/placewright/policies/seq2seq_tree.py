"""The seq2seq placer's decoder over a tree of prefixes, on a CPU.

A step of the decoder depends on the devices before it alone. Episodes that begin with the same
devices share those steps: a node of the tree is a prefix that any episode has, and is computed
once. A policy that is sure of its plan has far fewer nodes than episodes × steps. Logits and
gradients are those of `Placer` but for rounding (a test); the gradient is worked out here, for an
LSTM whose inputs are few vectors needs half of the products of one that reads any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from placewright.policies.additive_attention import node_gradients, node_scores
from placewright.policies.placer_kernels import TorchKernels

_KERNELS = TorchKernels()


class DecoderInputs(NamedTuple):
    """What logits depend on, besides the devices that were chosen.

    Args:
        keys: Rows × keys × hidden: one row for each way to group ops.
        hidden, cell: Rows × hidden: initial states.
        input_gates: 1 + devices × gates: what the first input, and each device, add to the gates.
        weight: Gates × hidden: of the hidden state.
        ask: Hidden × hidden, and `match` of hidden: the attention's.
        out: Devices × twice hidden.
    """

    keys: torch.Tensor
    hidden: torch.Tensor
    cell: torch.Tensor
    input_gates: torch.Tensor
    weight: torch.Tensor
    ask: torch.Tensor
    match: torch.Tensor
    out: torch.Tensor


@dataclass
class PrefixTree:
    """Nodes of a tree, step by step.

    Args:
        node_of: For each step the node of each episode, numbered within the step.
        parents: For each step the parent of each node: a node of the step before, at first a row.
        choices: For each step the input of each node: 0 for the first one, else a device plus 1.
        rows: For each step the row of each node.
    """

    node_of: list[torch.Tensor] = field(default_factory=list)
    parents: list[torch.Tensor] = field(default_factory=list)
    choices: list[torch.Tensor] = field(default_factory=list)
    rows: list[torch.Tensor] = field(default_factory=list)

    def begin(self, row_of: torch.Tensor, rows: int) -> None:
        """The first step: a node for each row."""
        row = torch.arange(rows)
        self.node_of.append(row_of)
        self.parents.append(row)
        self.choices.append(torch.zeros_like(row))
        self.rows.append(row)

    def grow(self, device: torch.Tensor, devices: int) -> None:
        """One more step: a node for each device that an episode chose in each of the last nodes."""
        branch = self.node_of[-1] * devices + device
        found, node_of = torch.unique(branch, return_inverse=True)
        parent = found // devices
        self.node_of.append(node_of)
        self.parents.append(parent)
        self.choices.append(1 + found % devices)
        self.rows.append(self.rows[-1][parent])

    def number_all(self) -> torch.Tensor:
        """Episodes × steps: nodes, numbered through all steps."""
        first, numbers = 0, []
        for node_of, parent in zip(self.node_of, self.parents, strict=True):
            numbers.append(node_of + first)
            first += len(parent)
        return torch.stack(numbers, dim=1)


class TreeDecoder:
    """Decodes a tree step by step, and keeps what its gradient needs.

    Args:
        packed: The keys as the attention kernel reads them.
        row_of: The row of each episode.
    """

    def __init__(self, inputs: DecoderInputs, packed: torch.Tensor, row_of: torch.Tensor) -> None:
        self.inputs, self.packed = inputs, packed
        size, self.devices = inputs.weight.shape[1], len(inputs.out)
        self.size, self.tree = size, PrefixTree()
        self.tree.begin(row_of, len(inputs.keys))
        self.value = inputs.keys @ inputs.out[:, size:].T
        # One product a step: gates of the next step, query, and logits without attention.
        self.step_weight = torch.cat([inputs.weight, inputs.ask, inputs.out[:, :size]]).T
        self.gates: list[torch.Tensor] = []
        self.cells: list[torch.Tensor] = []
        self.hidden: list[torch.Tensor] = []
        self.exp_query: list[torch.Tensor] = []
        self.attention: list[torch.Tensor] = []
        self.logits: list[torch.Tensor] = []
        self._product = inputs.hidden @ inputs.weight.T
        self._device: torch.Tensor | None = None

    def step(self) -> torch.Tensor:
        """Episodes × devices: logits of the next step."""
        tree, size = self.tree, self.size
        if self._device is not None:
            tree.grow(self._device, self.devices)
        parent, choice, row = tree.parents[-1], tree.choices[-1], tree.rows[-1]
        cell_before = (self.cells[-1] if self.cells else self.inputs.cell)[parent]
        gates = self.inputs.weight.new_empty((len(parent), 4 * size))
        cell, hidden = torch.empty_like(cell_before), torch.empty_like(cell_before)
        _KERNELS.lstm_forward(
            self._product[:, : 4 * size][parent],
            self.inputs.input_gates,
            choice,
            cell_before,
            gates,
            cell,
            hidden,
        )
        self._product = hidden @ self.step_weight
        query, direct = self._product[:, 4 * size : 5 * size], self._product[:, 5 * size :]
        exp_query, scores = node_scores(
            self.packed, query, self.inputs.match, row, self.inputs.keys.shape[1]
        )
        attention = functional.softmax(scores, dim=1)
        logits = direct + _times_rows(attention, self.value, row)
        self.gates.append(gates)
        self.cells.append(cell)
        self.hidden.append(hidden)
        self.exp_query.append(exp_query)
        self.attention.append(attention)
        self.logits.append(logits)
        return logits[tree.node_of[-1]]

    def choose(self, device: torch.Tensor) -> None:
        """The device of each episode in this step."""
        self._device = device

    def decode(self, device: torch.Tensor) -> None:
        """All steps of episodes × steps of devices."""
        for chosen in device.T:
            self.step()
            self.choose(chosen)

    def equals(self, other: TreeDecoder) -> bool:
        """Whether both decode the same devices alike."""
        pairs = zip(
            (*self.inputs, self.tree.node_of[0]),
            (*other.inputs, other.tree.node_of[0]),
            strict=True,
        )
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)

    def gradients(self, of_logits: torch.Tensor) -> DecoderInputs:
        """Of the inputs, from that of all logits (nodes × devices)."""
        inputs, size, tree = self.inputs, self.size, self.tree
        hidden, attention, row = (
            torch.cat(each) for each in (self.hidden, self.attention, tree.rows)
        )
        # Attention: logits = hidden · out + softmax(scores) · value.
        of_attention = _times_rows(of_logits, self.value.mT, row)
        of_scores = attention * (of_attention - (of_attention * attention).sum(1, keepdim=True))
        of_query, of_keys, of_match = node_gradients(
            self.packed, torch.cat(self.exp_query), inputs.match, row, of_scores
        )
        of_value = torch.zeros_like(self.value)
        for number in range(len(of_value)):
            nodes = slice(None) if len(of_value) == 1 else row == number
            of_value[number] = attention[nodes].T @ of_logits[nodes]
        of_hidden = of_query @ inputs.ask + of_logits @ inputs.out[:, :size]
        of_gates, of_sums, of_first, of_cell = self._backward_steps(of_hidden)
        inputs_of_nodes = functional.one_hot(torch.cat(tree.choices), 1 + self.devices)
        before = torch.cat([inputs.hidden, hidden])
        return DecoderInputs(
            of_keys + of_value @ inputs.out[:, size:],
            of_first,
            of_cell,
            inputs_of_nodes.to(of_gates.dtype).T @ of_gates,
            of_sums.T @ before[: len(of_sums)],
            of_query.T @ hidden,
            of_match,
            torch.cat([of_logits.T @ hidden, (of_value.mT @ inputs.keys).sum(dim=0)], dim=1),
        )

    def _backward_steps(
        self, of_hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of all gates; their sums by parent, rows first; of initial states and cells.

        Args:
            of_hidden: Nodes × hidden: what comes from the logits.
        """
        parts = list(torch.split(of_hidden, [len(parent) for parent in self.tree.parents]))
        of_gates, of_sums = [], []
        of_cell = torch.zeros_like(self.cells[-1])
        for at in reversed(range(len(parts))):
            parent = self.tree.parents[at]
            before = self.cells[at - 1] if at else self.inputs.cell
            gradient = torch.empty_like(self.gates[at])
            _KERNELS.lstm_backward(
                parts[at][None],
                of_cell[None],
                self.gates[at],
                self.cells[at],
                before[parent],
                gradient[None],
            )
            summed = before.new_zeros((len(before), 4 * self.size)).index_add_(0, parent, gradient)
            of_cell = torch.zeros_like(before).index_add_(0, parent, of_cell)
            of_gates.append(gradient)
            of_sums.append(summed)
            of_state = summed @ self.inputs.weight
            if at:
                parts[at - 1] = parts[at - 1] + of_state
        return torch.cat(of_gates[::-1]), torch.cat(of_sums[::-1]), of_state, of_cell


class _TreeLogits(torch.autograd.Function):
    """The logits of all nodes of a tree that is decoded, with gradients of its inputs."""

    @staticmethod
    def forward(ctx: Any, decoder: TreeDecoder, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.decoder = decoder
        return torch.cat(decoder.logits)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_logits: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.decoder.gradients(of_logits)


def tree_logits(decoder: TreeDecoder, inputs: DecoderInputs) -> torch.Tensor:
    """Episodes × steps × devices: the logits of a tree that was decoded from these inputs."""
    logits: torch.Tensor = _TreeLogits.apply(decoder, *inputs)  # type: ignore[no-untyped-call]
    return logits[decoder.tree.number_all()]


def _times_rows(left: torch.Tensor, matrices: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Nodes × N: each node's vector (nodes × M) times the matrix (rows × M × N) of its row."""
    if len(matrices) == 1:
        return left @ matrices[0]
    return torch.bmm(left[:, None], matrices[row])[:, 0]
