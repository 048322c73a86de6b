"""The placer of ColocRL and Hierarchical: a sequence of groups in, a device for each out.

An LSTM reads the groups, another one writes devices one after the other, looking back at what the
first has read (Bahdanau et al. 2015), and is told each device it wrote by a learned vector. Shapes
and formulas are those of TensorFlow's open code (`hierarchical_controller.py`), less
its misaligned backward states; weights are Glorot's, and ours have a bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

NEVER = -1e9  # the logit of a device that a group may not be on
_AT_ONCE = 2**26  # numbers that attention holds at once when scoring


@dataclass(frozen=True, eq=False)
class Memory:
    """What the encoder has read: rows × groups × hidden, and the decoder's first state."""

    rows: torch.Tensor
    state: tuple[torch.Tensor, torch.Tensor]

    def of(self, index: torch.Tensor) -> Memory:
        """One row for each episode."""
        hidden, cell = self.state
        return Memory(self.rows[index], (hidden[index], cell[index]))


class Placer(nn.Module):
    """An attentional sequence-to-sequence model over groups.

    Args:
        width: Numbers that describe a group.
        hidden: Size of the decoder's state, and of the encoder's, both directions together.
        both_ways: Whether the encoder also reads backward.
        temperature: Logits are divided by it.
        tanh: Logits are squashed to plus or minus this; 0 for no limit.
        least: Logits smaller than this are shaken as if they were of this size.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        devices: int,
        both_ways: bool,
        temperature: float = 1.0,
        tanh: float = 0.0,
        least: float = 0.0,
    ) -> None:
        super().__init__()
        ways = 2 if both_ways else 1
        self.temperature, self.tanh, self.least = temperature, tanh, least
        self.encoder = nn.LSTM(width, hidden // ways, batch_first=True, bidirectional=both_ways)
        self.decoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.go = nn.Parameter(torch.empty(1, hidden))
        self.device = nn.Embedding(devices, hidden)
        self.read = nn.Linear(hidden, hidden, bias=False)
        self.ask = nn.Linear(hidden, hidden, bias=False)
        self.match = nn.Linear(hidden, 1, bias=False)
        self.out = nn.Linear(2 * hidden, devices, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)
            else:
                nn.init.zeros_(weight)
            if "bias_ih" in name:  # gates are input, forget, cell, output
                quarter = len(weight) // 4
                nn.init.ones_(weight[quarter : 2 * quarter])

    def encode(self, groups: torch.Tensor) -> Memory:
        """Rows × groups × width, read."""
        read, (hidden, cell) = self.encoder(groups)
        ends = [state.transpose(0, 1).reshape(len(groups), -1) for state in (hidden, cell)]
        return Memory(self.read(read), (ends[0], ends[1]))

    @torch.no_grad()
    def draw(
        self, memory: Memory, legal: torch.Tensor, luck: torch.Tensor, shake: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Devices drawn one after the other.

        Args:
            legal: Groups × devices.
            luck: Episodes × groups × devices: Gumbel numbers, zeros for the likeliest device.
            shake: The same, normal numbers, added to the logits as a share of their size.

        Returns:
            Devices, their log-probabilities (episodes × groups), and what was added to the logits.
        """
        hidden, cell = memory.state
        told = self.go.expand(len(luck), -1)
        gates = list(self.decoder.parameters())  # input, state, and a bias for each
        chosen, seen, added = [], [], []
        for at in range(luck.shape[1]):
            hidden, cell = torch.lstm_cell(told, (hidden, cell), *gates)
            logits = self._logits(hidden[:, None], memory.rows)[:, 0]
            if shake is not None:
                size = logits.square().mean(dim=1, keepdim=True).sqrt().clamp(min=self.least)
                added.append(shake[:, at] * size)
                logits = logits + added[-1]
            seen.append(logits.masked_fill(~legal[at], NEVER))
            device = (seen[-1] + luck[:, at]).argmax(dim=1)
            chosen.append(device)
            told = self.device(device)
        drawn = torch.stack(chosen, dim=1)
        sure = functional.log_softmax(torch.stack(seen, dim=1), dim=2).gather(2, drawn[..., None])
        return drawn, sure[..., 0], torch.stack(added, dim=1) if added else None

    def score(
        self,
        memory: Memory,
        legal: torch.Tensor,
        device: torch.Tensor,
        added: torch.Tensor | None,
        best: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Log-probabilities and entropies (episodes × groups) of devices that were drawn.

        Returns:
            Those, and before noise the log-probabilities of the devices in `best` in their stead.
        """
        first = self.go.expand(len(device), -1)[:, None]
        told = torch.cat([first, self.device(device[:, :-1])], dim=1)
        steps, _ = self.decoder(told, tuple(state[None].contiguous() for state in memory.state))
        episodes, groups, hidden = steps.shape
        part = max(1, _AT_ONCE // (episodes * groups * hidden))
        logits = torch.cat([self._logits(s, memory.rows) for s in steps.split(part, 1)], dim=1)
        toward = None
        if best is not None:
            toward = chosen(logits.masked_fill(~legal, NEVER), best.expand(len(device), -1))[0]
        if added is not None:
            logits = logits + added
        return *chosen(logits.masked_fill(~legal, NEVER), device), toward

    def _logits(self, steps: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Episodes × steps × devices."""
        match = self.match(torch.tanh(self.ask(steps)[:, :, None] + rows[:, None]))[..., 0]
        seen = functional.softmax(match, dim=2) @ rows
        logits: torch.Tensor = self.out(torch.cat([steps, seen], dim=2)) / self.temperature
        return self.tanh * torch.tanh(logits) if self.tanh > 0 else logits


def chosen(logits: torch.Tensor, choice: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of choices (…) under logits (…, choices), and the entropies."""
    sure = functional.log_softmax(logits, dim=-1)
    entropy = -(sure.exp() * sure.clamp(min=-100.0)).sum(dim=-1)
    return sure.gather(-1, choice[..., None])[..., 0], entropy


def even_entropy(legal: torch.Tensor) -> torch.Tensor:
    """Items: the entropy of an even choice among those that are legal (items × choices)."""
    return legal.sum(dim=1).to(torch.float32).log()
