"""The attentional sequence-to-sequence placer that ColocRL and Hierarchical share.

An LSTM encodes the groups. Another one decodes devices one after the other, with attention over the
encoder's outputs (Bahdanau et al. 2015) and a learned embedding of the device before. Shapes and
formulas are those of TensorFlow's open code (`hierarchical_controller.py`), without its misaligned
backward states; weights are initialised as Glorot's, and ours have a bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from placewright.policies.additive_attention import AttentionKeys
from placewright.policies.seq2seq_tree import DecoderInputs, TreeDecoder, tree_logits

MASKED_LOGIT = -1e9  # the logit of an illegal device
_MIN_TREE_EPISODES = 64  # below, a decoder of each by itself is faster
_MAX_KEPT_STEPS = 2**15  # of all episodes, whose decoder is kept until they are scored


@dataclass(frozen=True, eq=False)
class EncoderMemory:
    """What the decoder of each episode reads: attention keys, and its initial state.

    Args:
        state: Rows × hidden, twice.
    """

    keys: AttentionKeys
    state: tuple[torch.Tensor, torch.Tensor]


class Placer(nn.Module):
    """An attentional sequence-to-sequence model over groups.

    Args:
        width: Number of features of a group.
        hidden: Size of the decoder's state, and of the encoder's, both directions together.
        bidirectional: Whether the encoder also reads backward.
        temperature: Logits are divided by it.
        tanh: Logits are limited to plus or minus this by a tanh; 0 for no limit.
        min_noise_scale: The least size of logits that noise is relative to.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        devices: int,
        bidirectional: bool,
        temperature: float = 1.0,
        tanh: float = 0.0,
        min_noise_scale: float = 0.0,
    ) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        self.temperature, self.tanh, self.min_noise_scale = temperature, tanh, min_noise_scale
        self.encoder = nn.LSTM(
            width, hidden // directions, batch_first=True, bidirectional=bidirectional
        )
        self.decoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.go = nn.Parameter(torch.empty(1, hidden))
        self.device = nn.Embedding(devices, hidden)
        self.read = nn.Linear(hidden, hidden, bias=False)
        self.ask = nn.Linear(hidden, hidden, bias=False)
        self.match = nn.Linear(hidden, 1, bias=False)
        self.out = nn.Linear(2 * hidden, devices, bias=False)
        self._sampled: tuple[TreeDecoder, torch.Tensor] | None = None
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)
            else:
                nn.init.zeros_(weight)
            if "bias_ih" in name:  # gates are input, forget, cell, output
                quarter = len(weight) // 4
                nn.init.ones_(weight[quarter : 2 * quarter])

    def encode(self, groups: torch.Tensor, row_of: torch.Tensor) -> EncoderMemory:
        """Encode rows × groups × width, for episodes that each have one of the rows."""
        with torch.enable_grad():  # PyTorch rounds otherwise without: samples would not be scores
            outputs, states = self.encoder(groups)
        hidden, cell = (state.transpose(0, 1).reshape(len(groups), -1) for state in states)
        return EncoderMemory(AttentionKeys.of(self.read(outputs), row_of), (hidden, cell))

    @torch.no_grad()
    def sample(
        self,
        memory: EncoderMemory,
        legal: torch.Tensor,
        gumbel: torch.Tensor,
        logit_noise: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Sample devices one after the other.

        Args:
            legal: Groups × devices.
            gumbel: Episodes × groups × devices: Gumbel noise, zeros for the argmax device.
            logit_noise: The same, normal noise, added to the logits as a share of their size.

        Returns:
            Devices and their log-probabilities (episodes × groups), and the noise on the logits.
        """
        decoder: TreeDecoder | _EpisodeDecoder
        if _makes_tree(memory.keys):
            decoder = self._tree_decoder(self._decoder_inputs(memory), memory.keys)
        else:
            decoder = _EpisodeDecoder(self, memory)
        devices, masked_logits, logit_shifts = [], [], []
        for at in range(gumbel.shape[1]):
            logits = self._limited(decoder.step())
            if logit_noise is not None:
                scale = (
                    logits.square().mean(dim=1, keepdim=True).sqrt().clamp(min=self.min_noise_scale)
                )
                logit_shifts.append(logit_noise[:, at] * scale)
                logits = logits + logit_shifts[-1]
            masked_logits.append(logits.masked_fill(~legal[at], MASKED_LOGIT))
            device = (masked_logits[-1] + gumbel[:, at]).argmax(dim=1)
            devices.append(device)
            decoder.choose(device)
        choice = torch.stack(devices, dim=1)
        if isinstance(decoder, TreeDecoder) and choice.numel() <= _MAX_KEPT_STEPS:
            self._sampled = decoder, choice
        log_prob = functional.log_softmax(torch.stack(masked_logits, dim=1), dim=2).gather(
            2, choice[..., None]
        )
        return choice, log_prob[..., 0], torch.stack(logit_shifts, dim=1) if logit_shifts else None

    def score(
        self,
        memory: EncoderMemory,
        legal: torch.Tensor,
        device: torch.Tensor,
        logit_shift: torch.Tensor | None,
        best: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Log-probabilities and entropies (episodes × groups) of sampled devices.

        Returns:
            Those, and the log-probabilities, without noise, of the devices in `best` instead.
        """
        logits = self._limited(self._all_logits(memory, device))
        log_prob_of_best = None
        if best is not None:
            log_prob_of_best = log_prob_and_entropy(
                logits.masked_fill(~legal, MASKED_LOGIT), best.expand(len(device), -1)
            )[0]
        if logit_shift is not None:
            logits = logits + logit_shift
        return *log_prob_and_entropy(
            logits.masked_fill(~legal, MASKED_LOGIT), device
        ), log_prob_of_best

    def _all_logits(self, memory: EncoderMemory, device: torch.Tensor) -> torch.Tensor:
        """Episodes × steps × devices, of sampled devices."""
        if _makes_tree(memory.keys):
            inputs = self._decoder_inputs(memory)
            return tree_logits(self._decoded(inputs, memory.keys, device), inputs)
        start_input = self.go.expand(len(device), -1)[:, None]
        decoder_inputs = torch.cat([start_input, self.device(device[:, :-1])], dim=1)
        states = tuple(state[memory.keys.row_of][None].contiguous() for state in memory.state)
        steps, _ = self.decoder(decoder_inputs, states)
        return self.logits(steps, memory.keys)

    def logits(self, steps: torch.Tensor, keys: AttentionKeys) -> torch.Tensor:
        """Episodes × steps × devices, of the decoder's states."""
        attention = keys.scores(self.ask(steps), self.match.weight[0])
        context = keys.weighted_sum(functional.softmax(attention, dim=2))
        logits: torch.Tensor = self.out(torch.cat([steps, context], dim=2)) / self.temperature
        return logits

    def _limited(self, logits: torch.Tensor) -> torch.Tensor:
        return self.tanh * torch.tanh(logits) if self.tanh > 0 else logits

    def _decoder_inputs(self, memory: EncoderMemory) -> DecoderInputs:
        input_weight, weight, input_bias, bias = self.decoder.parameters()
        vectors = torch.cat([self.go, self.device.weight])
        input_gates = functional.linear(vectors, input_weight, input_bias + bias)
        out = self.out.weight / self.temperature
        attention = self.ask.weight, self.match.weight[0]
        return DecoderInputs(memory.keys.keys, *memory.state, input_gates, weight, *attention, out)

    def _tree_decoder(self, inputs: DecoderInputs, keys: AttentionKeys) -> TreeDecoder:
        """A decoder of its own copy: the optimizer changes parameters in place."""
        assert keys.packed is not None
        copies = (each.detach().clone() for each in inputs)
        return TreeDecoder(DecoderInputs(*copies), keys.packed, keys.row_of)

    @torch.no_grad()
    def _decoded(
        self, inputs: DecoderInputs, keys: AttentionKeys, device: torch.Tensor
    ) -> TreeDecoder:
        """The tree of sampled devices: as it was sampled, if nothing has changed since then."""
        sampled, self._sampled = self._sampled, None
        decoder = self._tree_decoder(inputs, keys)
        if sampled is not None and torch.equal(sampled[1], device) and sampled[0].equals(decoder):
            return sampled[0]
        decoder.decode(device)
        return decoder


def _makes_tree(keys: AttentionKeys) -> bool:
    return keys.packed is not None and len(keys.row_of) >= _MIN_TREE_EPISODES


class _EpisodeDecoder:
    """Decodes each episode by itself, with a step of an LSTM at a time."""

    def __init__(self, placer: Placer, memory: EncoderMemory) -> None:
        self.placer, self.keys = placer, memory.keys
        self.hidden, self.cell = (state[memory.keys.row_of] for state in memory.state)
        # The input is one of few vectors: what each adds to the gates is known before the first.
        input_weight, self.weight, input_bias, self.bias = placer.decoder.parameters()
        vectors = torch.cat([placer.go, placer.device.weight])
        input_gates = functional.linear(vectors, input_weight, input_bias)
        self.device_gates = input_gates[1:]
        self.gates_of_input = input_gates[:1].expand(len(self.hidden), -1)

    def step(self) -> torch.Tensor:
        """Episodes × devices: logits of the next step."""
        gates = self.gates_of_input + functional.linear(self.hidden, self.weight, self.bias)
        admit, keep, _, emit = gates.sigmoid().chunk(4, dim=1)
        size = self.hidden.shape[1]
        self.cell = keep * self.cell + admit * gates[:, 2 * size : 3 * size].tanh()
        self.hidden = emit * self.cell.tanh()
        return self.placer.logits(self.hidden[:, None], self.keys)[:, 0]

    def choose(self, device: torch.Tensor) -> None:
        """The device of each episode in this step."""
        self.gates_of_input = self.device_gates[device]


def log_prob_and_entropy(
    logits: torch.Tensor, choice: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of choices (…) under logits (…, choices), and the entropies."""
    log_probs = functional.log_softmax(logits, dim=-1)
    entropy = -(log_probs.exp() * log_probs.clamp(min=-100.0)).sum(dim=-1)
    return log_probs.gather(-1, choice[..., None])[..., 0], entropy


def uniform_entropy(legal: torch.Tensor) -> torch.Tensor:
    """Items: the entropy of a uniform choice among the legal ones (items × choices)."""
    return legal.sum(dim=1).to(torch.float32).log()
