"""A rollout of the seq2seq placer: samples episodes, and differentiates them without autograd.

For many episodes of one problem on a GPU: what a step computes while it samples is stored, so that
gradients need no second pass forward; nothing waits for the host, and shapes are fixed, so that
both halves can be captured in CUDA graphs. Samples, log-probabilities and gradients are those of
`Placer.sample` and `Placer.score` but for rounding (a test). Gradients of several losses are
computed side by side, so that each can be clipped alone.

Shapes: steps (groups) T, episodes B, losses R, devices D, hidden H, keys K (groups, padded).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from placewright.errors import ConfigError
from placewright.policies.placer_kernels import KEY_MULTIPLE
from placewright.policies.seq2seq import MASKED_LOGIT, Placer

if TYPE_CHECKING:
    from placewright.policies.placer_kernels import PlacerKernels

    Gradients = dict[str, torch.Tensor]

_ALIGNMENT = 8  # columns of a matrix of weights


class LSTMWeights(NamedTuple):
    """The parameters of an LSTM of one layer that reads one way."""

    input: torch.Tensor
    hidden: torch.Tensor
    input_bias: torch.Tensor
    hidden_bias: torch.Tensor

    def gates_of(self, inputs: torch.Tensor) -> torch.Tensor:
        """What inputs add to the gates."""
        return functional.linear(inputs, self.input, self.input_bias + self.hidden_bias)


@dataclass(frozen=True, eq=False)
class LSTMStates:
    """What the steps of an LSTM leave for the gradient.

    Args:
        gates: T × B × 4H: input, forget, cell, output.
        cells, hidden: T + 1 × B × H: states, with the initial ones.
    """

    gates: torch.Tensor
    cells: torch.Tensor
    hidden: torch.Tensor

    @classmethod
    def empty(cls, steps: int, batch: int, hidden: int, like: torch.Tensor) -> LSTMStates:
        """Their storage, with initial states of 0."""
        states = like.new_empty((2, steps + 1, batch, hidden))
        states[:, 0] = 0.0
        return cls(like.new_empty((steps, batch, 4 * hidden)), states[0], states[1])


@dataclass(frozen=True, eq=False)
class PlacerRollout:
    """Episodes as they were sampled.

    Args:
        inputs: T × width: features of the groups.
        keys: K × H, zeros for padding.
        step_weight: Rows × H: what each step multiplies its hidden state with: the gates of the
            next step, twice the query, the logits.
        value: K × D: what a key adds to the logits.
        exp_query: T × B × H: e^2q.
        attention: T × B × K: weights.
        devices: T × B: samples.
        log_probs: T × B × D.
    """

    inputs: torch.Tensor
    encoder: LSTMStates
    decoder: LSTMStates
    keys: torch.Tensor
    step_weight: torch.Tensor
    value: torch.Tensor
    exp_query: torch.Tensor
    attention: torch.Tensor
    devices: torch.Tensor
    log_probs: torch.Tensor

    @property
    def log_prob(self) -> torch.Tensor:
        """T × B: the log-probability of each sample."""
        return self.log_probs.gather(2, self.devices[..., None])[..., 0]

    @property
    def entropy(self) -> torch.Tensor:
        """T × B: the entropy of each decision, in nats."""
        return -(self.log_probs.exp() * self.log_probs.clamp(min=-100.0)).sum(dim=2)

    def log_prob_gradient(self, weight: torch.Tensor) -> torch.Tensor:
        """T × B × D: the gradient, by the logits, of the sum of weight (B) × log-probability."""
        slope = -self.log_probs.exp()
        slope.scatter_add_(2, self.devices[..., None], torch.ones_like(slope[..., :1]))
        return slope * weight[:, None]

    def entropy_gradient(self) -> torch.Tensor:
        """T × B × D: the gradient of all entropies by the logits."""
        return -self.log_probs.exp() * (self.log_probs.clamp(min=-100.0) + self.entropy[..., None])


class PlacerRollouts:
    """Makes rollouts of a placer on one problem.

    Args:
        legal: T × D.

    Raises:
        ConfigError: The placer reads both ways, or limits its logits.
    """

    def __init__(self, placer: Placer, legal: torch.Tensor, kernels: PlacerKernels) -> None:
        if placer.encoder.bidirectional or placer.tanh > 0:
            raise ConfigError(
                "a rollout needs a placer that reads one way and has no tanh on its logits: leave "
                "out both_ways and tanh"
            )
        self.placer, self.legal, self.kernels = placer, legal, kernels
        self._encoder = LSTMWeights(*placer.encoder.parameters())
        self._decoder = LSTMWeights(*placer.decoder.parameters())
        self._masked = placer.go.new_full((), MASKED_LOGIT)

    @torch.no_grad()
    def sample(self, inputs: torch.Tensor, gumbel: torch.Tensor) -> PlacerRollout:
        """Sample devices one after the other.

        Args:
            inputs: T × width: features of the groups.
            gumbel: T × B × D: Gumbel noise.
        """
        placer, kernels = self.placer, self.kernels
        (steps, batch, devices), size = gumbel.shape, placer.go.shape[1]
        encoder = self._encode(inputs)
        real_keys = functional.linear(encoder.hidden[1:, 0], placer.read.weight)
        keys = functional.pad(real_keys, (0, 0, 0, -steps % KEY_MULTIPLE))
        out = placer.out.weight / placer.temperature
        value = keys @ out[:, size:].T
        # One product a step: gates of the next step, twice the query, and logits without attention.
        parts = [self._decoder.hidden, 2.0 * placer.ask.weight, out[:, :size]]
        rows = sum(len(part) for part in parts)
        step_weight = functional.pad(torch.cat(parts), (0, 0, 0, -rows % _ALIGNMENT))
        exp_key = (2.0 * keys).clamp(-86.0, 86.0).exp()
        match = placer.match.weight[0]
        input_gates = self._input_gates()
        decoder = LSTMStates.empty(steps, batch, size, keys)
        decoder.hidden[0], decoder.cells[0] = encoder.hidden[-1], encoder.cells[-1]
        exp_query = keys.new_empty((steps, batch, size))
        scores = keys.new_empty((batch, len(keys)))
        attention = keys.new_empty((steps, batch, len(keys)))
        logits = keys.new_empty((steps, batch, devices))
        choice = torch.zeros((steps + 1, batch), dtype=torch.long, device=keys.device)
        product = decoder.hidden[0] @ step_weight.T
        for step in range(steps):
            kernels.lstm_forward(
                product[:, : 4 * size],
                input_gates[1:] if step else input_gates[:1],
                choice[step],
                decoder.cells[step],
                decoder.gates[step],
                decoder.cells[step + 1],
                decoder.hidden[step + 1],
            )
            product = torch.mm(decoder.hidden[step + 1], step_weight.T)
            query = product[:, 4 * size : 5 * size]
            kernels.attention_scores(query, exp_key, match, steps, scores, exp_query[step])
            torch.softmax(scores, dim=1, out=attention[step])
            free = torch.addmm(product[:, 5 * size : 5 * size + devices], attention[step], value)
            torch.where(self.legal[step], free, self._masked, out=logits[step])
            torch.argmax(logits[step] + gumbel[step], dim=1, out=choice[step + 1])
        return PlacerRollout(
            inputs,
            encoder,
            decoder,
            keys,
            step_weight,
            value,
            exp_query,
            attention,
            choice[1:],
            functional.log_softmax(logits, dim=2),
        )

    @torch.no_grad()
    def gradients(
        self, rollout: PlacerRollout, logit_gradient: torch.Tensor
    ) -> tuple[Gradients, torch.Tensor]:
        """Gradients of parameters (R × their shape, by name) and inputs (T × R × width).

        Args:
            logit_gradient: T × R × B × D: what each loss changes by with each logit.
        """
        placer, size = self.placer, self.placer.go.shape[1]
        steps, losses, _, devices = logit_gradient.shape
        found: Gradients = {}
        states, legal = rollout.decoder, self.legal[:, None, None]
        of_logits = torch.where(legal, logit_gradient, torch.zeros_like(self._masked))
        # Attention: logits = hidden · out + softmax(scores) · value.
        of_value = torch.stack(
            [_summed(rollout.attention, of_logits[:, loss]) for loss in range(losses)]
        )
        of_attention = of_logits @ rollout.value.T
        weights = rollout.attention[:, None]
        of_scores = of_attention.sub_((of_attention * weights).sum(dim=3, keepdim=True)).mul_(
            weights
        )
        exp_key = (2.0 * rollout.keys).clamp(-86.0, 86.0).exp()
        of_query, of_keys, of_match = self.kernels.attention_gradient(
            rollout.exp_query, exp_key, placer.match.weight[0], of_scores
        )
        out = placer.out.weight / placer.temperature
        of_hidden = of_query @ placer.ask.weight + of_logits @ out[:, :size]
        of_gates, of_cell = self._backward_steps(states, of_hidden, self._decoder.hidden, None)
        # Sums over steps and episodes.
        hidden, before = states.hidden[1:], states.hidden[:-1]
        found["match.weight"] = of_match[:, None]
        found["ask.weight"] = _per_loss(of_query, hidden)
        found["out.weight"] = (
            torch.cat([_per_loss(of_logits, hidden), of_value.mT @ rollout.keys], dim=2)
            / placer.temperature
        )
        found["decoder.weight_hh_l0"] = _per_loss(of_gates, before)
        numbers = torch.arange(devices, device=of_gates.device)
        previous = (rollout.devices[:-1, :, None] == numbers).to(of_gates.dtype)
        of_input_gates = torch.cat(
            [of_gates[0].sum(dim=1)[:, None], _per_loss(of_gates[1:], previous).mT], dim=1
        )
        vectors = torch.cat([placer.go, placer.device.weight])
        found["decoder.weight_ih_l0"] = of_input_gates.mT @ vectors
        bias = of_input_gates.sum(dim=1)
        found["decoder.bias_ih_l0"] = found["decoder.bias_hh_l0"] = bias
        of_vectors = of_input_gates @ self._decoder.input
        found["go"], found["device.weight"] = of_vectors[:, :1], of_vectors[:, 1:]
        # The encoder, whose last state is the decoder's first.
        of_keys = (of_keys + of_value @ out[:, size:])[:, :steps]
        outputs = rollout.encoder.hidden[1:, 0]
        found["read.weight"] = of_keys.mT @ outputs
        of_outputs = (of_keys @ placer.read.weight).transpose(0, 1)[:, :, None].contiguous()
        of_first = of_gates[0].sum(dim=1) @ self._decoder.hidden
        of_outputs[-1] += of_first[:, None]
        of_encoder_gates, _ = self._backward_steps(
            rollout.encoder,
            of_outputs,
            self._encoder.hidden,
            of_cell.sum(dim=1, keepdim=True),
        )
        found["encoder.weight_hh_l0"] = _per_loss(of_encoder_gates, rollout.encoder.hidden[:-1])
        found["encoder.weight_ih_l0"] = _per_loss(of_encoder_gates, rollout.inputs[:, None])
        bias = of_encoder_gates.sum(dim=(0, 2))
        found["encoder.bias_ih_l0"] = found["encoder.bias_hh_l0"] = bias
        return found, of_encoder_gates[:, :, 0] @ self._encoder.input

    def _encode(self, inputs: torch.Tensor) -> LSTMStates:
        """The encoder's states over the groups, of one episode for all."""
        weights = self._encoder
        input_gates, size = weights.gates_of(inputs), weights.hidden.shape[1]
        states = LSTMStates.empty(len(inputs), 1, size, inputs)
        choice = torch.zeros(1, dtype=torch.long, device=inputs.device)
        for step in range(len(inputs)):
            self.kernels.lstm_forward(
                states.hidden[step] @ weights.hidden.T,
                input_gates[step : step + 1],
                choice,
                states.cells[step],
                states.gates[step],
                states.cells[step + 1],
                states.hidden[step + 1],
            )
        return states

    def _input_gates(self) -> torch.Tensor:
        """1 + D × 4H: what the first input, and each device as the next one, add to the gates."""
        vectors = torch.cat([self.placer.go, self.placer.device.weight])
        return self._decoder.gates_of(vectors)

    def _backward_steps(
        self,
        states: LSTMStates,
        of_hidden: torch.Tensor,
        weight: torch.Tensor,
        of_cell: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of the gates (T × R × B × 4H) and of the initial cell (R × B × H).

        Args:
            of_hidden: T × R × B × H: what comes from outside the LSTM; it is overwritten.
            weight: 4H × H: of the hidden state.
            of_cell: R × B × H: that of the last cell; 0 by default.
        """
        steps, losses, batch, size = of_hidden.shape
        cell = of_hidden.new_zeros((losses, batch, size)) if of_cell is None else of_cell.clone()
        of_gates = of_hidden.new_empty((steps, losses, batch, 4 * size))
        for step in reversed(range(steps)):
            self.kernels.lstm_backward(
                of_hidden[step],
                cell,
                states.gates[step],
                states.cells[step + 1],
                states.cells[step],
                of_gates[step],
            )
            if step:
                earlier = of_hidden[step - 1].view(losses * batch, size)
                earlier.addmm_(of_gates[step].view(losses * batch, 4 * size), weight)
        return of_gates, cell


def _summed(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of T × B × M and T × B × N the sum over T and B of their outer products: M × N."""
    return torch.bmm(one.mT, other).sum(dim=0)


def _per_loss(gradient: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """R × M × N from gradients (T × R × B × M) and values (T × B × N)."""
    return torch.stack([_summed(gradient[:, loss], values) for loss in range(gradient.shape[1])])
