"""What the seq2seq placer's rollout computes element by element: in PyTorch, or by CUDA kernels.

Both compute the same but for rounding (`placer_kernels.cu` has the formulas). On a GPU the kernels
are compiled by NVRTC and compared with PyTorch before they are used. Shapes: steps T, episodes B,
losses R (2 for the attention), keys K (padded to a multiple of 8), hidden H.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from placewright.errors import ConfigError

_BLOCK = 128  # threads of a block
_PART_ROWS = 1024  # episodes whose key gradients one thread adds
_MAX_EXPONENT = 86.0
_TOLERANCE = 1e-3  # of a kernel's results, relative to the largest
KEY_MULTIPLE = 8
"""Keys are padded to a multiple of this."""


class PlacerKernels(Protocol):
    """The elementwise parts of a rollout and of its gradient."""

    def lstm_forward(
        self,
        state_gates: torch.Tensor,
        input_gates: torch.Tensor,
        choice: torch.Tensor,
        previous_cell: torch.Tensor,
        gates: torch.Tensor,
        cell: torch.Tensor,
        hidden: torch.Tensor,
    ) -> None:
        """One step of an LSTM, into its last three arguments.

        Args:
            state_gates: B × 4H: what the hidden state before adds to the gates.
            input_gates, choice: Rows × 4H, and B: the row of each episode.
        """
        ...

    def lstm_backward(
        self,
        hidden_gradient: torch.Tensor,
        cell_gradient: torch.Tensor,
        gates: torch.Tensor,
        cell: torch.Tensor,
        previous_cell: torch.Tensor,
        gate_gradient: torch.Tensor,
    ) -> None:
        """Its gradients: of the gates (R × B × 4H), and in place of the cell (R × B × H)."""
        ...

    def attention_scores(
        self,
        double_query: torch.Tensor,
        exp_key: torch.Tensor,
        match: torch.Tensor,
        real_keys: int,
        scores: torch.Tensor,
        exp_query: torch.Tensor,
    ) -> None:
        """Scores (B × K) of queries, of which twice is given, and e^2q, into the last two."""
        ...

    def attention_gradient(
        self,
        exp_query: torch.Tensor,
        exp_key: torch.Tensor,
        match: torch.Tensor,
        score_gradient: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of queries (T × R × B × H), keys (R × K × H) and match (R × H).

        Args:
            exp_query: T × B × H.
            score_gradient: T × R × B × K.
        """
        ...


class TorchKernels:
    """All of it in PyTorch, on any device."""

    def lstm_forward(
        self,
        state_gates: torch.Tensor,
        input_gates: torch.Tensor,
        choice: torch.Tensor,
        previous_cell: torch.Tensor,
        gates: torch.Tensor,
        cell: torch.Tensor,
        hidden: torch.Tensor,
    ) -> None:
        size = cell.shape[1]
        total = state_gates + input_gates[choice]
        torch.sigmoid(total, out=gates)
        gates[:, 2 * size : 3 * size] = total[:, 2 * size : 3 * size].tanh()
        admit, keep, value, emit = gates.chunk(4, dim=1)
        torch.addcmul(keep * previous_cell, admit, value, out=cell)
        torch.mul(emit, cell.tanh(), out=hidden)

    def lstm_backward(
        self,
        hidden_gradient: torch.Tensor,
        cell_gradient: torch.Tensor,
        gates: torch.Tensor,
        cell: torch.Tensor,
        previous_cell: torch.Tensor,
        gate_gradient: torch.Tensor,
    ) -> None:
        admit, keep, value, emit = gates.chunk(4, dim=1)
        squashed = cell.tanh()
        of_cell = cell_gradient + hidden_gradient * (emit * (1 - squashed * squashed))
        parts = gate_gradient.chunk(4, dim=2)
        parts[0].copy_(of_cell * (value * admit * (1 - admit)))
        parts[1].copy_(of_cell * (previous_cell * keep * (1 - keep)))
        parts[2].copy_(of_cell * (admit * (1 - value * value)))
        parts[3].copy_(hidden_gradient * (squashed * emit * (1 - emit)))
        torch.mul(of_cell, keep, out=cell_gradient)

    def attention_scores(
        self,
        double_query: torch.Tensor,
        exp_key: torch.Tensor,
        match: torch.Tensor,
        real_keys: int,
        scores: torch.Tensor,
        exp_query: torch.Tensor,
    ) -> None:
        torch.exp(double_query.clamp(-_MAX_EXPONENT, _MAX_EXPONENT), out=exp_query)
        scores.copy_(_reciprocals(exp_query, exp_key) @ (-2.0 * match))
        scores[:, real_keys:] = -torch.inf

    def attention_gradient(
        self,
        exp_query: torch.Tensor,
        exp_key: torch.Tensor,
        match: torch.Tensor,
        score_gradient: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        steps, losses, batch, keys = score_gradient.shape
        query_gradient = score_gradient.new_empty((steps, losses, batch, exp_query.shape[2]))
        sums = score_gradient.new_zeros((losses, 2, keys, exp_query.shape[2]))
        for step in range(steps):
            reciprocals = _reciprocals(exp_query[step], exp_key)  # B × K × H
            slopes = reciprocals * (1 - reciprocals)
            for loss, gradient in enumerate(score_gradient[step]):
                of_query = torch.einsum("bk,bkh->bh", gradient, slopes)
                torch.mul(of_query, 4 * match, out=query_gradient[step, loss])
                sums[loss, 0] += torch.einsum("bk,bkh->kh", gradient, slopes)
                sums[loss, 1] += torch.einsum("bk,bkh->kh", gradient, reciprocals)
        return query_gradient, *_key_gradients(sums, match)


def _reciprocals(exp_query: torch.Tensor, exp_key: torch.Tensor) -> torch.Tensor:
    return (exp_query[:, None] * exp_key + 1.0).reciprocal()


def _key_gradients(sums: torch.Tensor, match: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of keys and match from Σ g r (1 - r) and Σ g r, R × 2 × K × H."""
    return 4.0 * match * sums[:, 0], -2.0 * sums[:, 1].sum(dim=1)


class CudaKernels:
    """All of it by CUDA kernels, for hidden sizes that are a multiple of 8."""

    def __init__(self) -> None:
        self._kernels: dict[str, Any] = {}

    def lstm_forward(
        self,
        state_gates: torch.Tensor,
        input_gates: torch.Tensor,
        choice: torch.Tensor,
        previous_cell: torch.Tensor,
        gates: torch.Tensor,
        cell: torch.Tensor,
        hidden: torch.Tensor,
    ) -> None:
        batch, size = cell.shape
        arrays = [state_gates, input_gates, choice, previous_cell, gates, cell, hidden]
        self._run("lstm_forward", cell.numel(), *arrays, batch, size, state_gates.stride(0))

    def lstm_backward(
        self,
        hidden_gradient: torch.Tensor,
        cell_gradient: torch.Tensor,
        gates: torch.Tensor,
        cell: torch.Tensor,
        previous_cell: torch.Tensor,
        gate_gradient: torch.Tensor,
    ) -> None:
        arrays = [hidden_gradient, cell_gradient, gates, cell, previous_cell, gate_gradient]
        self._run("lstm_backward", cell_gradient.numel(), *arrays, *cell_gradient.shape)

    def attention_scores(
        self,
        double_query: torch.Tensor,
        exp_key: torch.Tensor,
        match: torch.Tensor,
        real_keys: int,
        scores: torch.Tensor,
        exp_query: torch.Tensor,
    ) -> None:
        (rows, keys), hidden = scores.shape, exp_query.shape[1]
        arrays = [double_query, exp_key, match, scores, exp_query]
        sizes = [rows, keys, real_keys, hidden, double_query.stride(0)]
        self._run("attention_scores", rows * (keys // 8), *arrays, *sizes)

    def attention_gradient(
        self,
        exp_query: torch.Tensor,
        exp_key: torch.Tensor,
        match: torch.Tensor,
        score_gradient: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        steps, losses, batch, keys = score_gradient.shape
        hidden = exp_query.shape[2]
        query_gradient = score_gradient.new_empty((steps, losses, batch, hidden))
        arrays = [exp_query, exp_key, match, score_gradient, query_gradient]
        sizes = [steps, batch, keys, hidden]
        threads = steps * batch * (hidden // 8)
        self._run("attention_query_gradient", threads, *arrays, *sizes)
        parts = steps * -(-batch // _PART_ROWS)
        sums = score_gradient.new_empty((parts, losses, 2, keys, hidden))
        arrays = [exp_query, exp_key, score_gradient, sums]
        threads = parts * (keys // 4) * (hidden // 4)
        self._run("attention_key_sums", threads, *arrays, *sizes, _PART_ROWS)
        return query_gradient, *_key_gradients(sums.sum(dim=0), match)

    def _run(self, name: str, threads: int, *arguments: torch.Tensor | int) -> None:
        if name not in self._kernels:
            options = ["-std=c++17"]
            self._kernels[name] = torch.cuda._compile_kernel(
                kernel_source(), name, nvcc_options=options
            )
        grid = (-(-threads // _BLOCK), 1, 1)
        self._kernels[name](grid=grid, block=(_BLOCK, 1, 1), args=list(arguments))


def kernel_source() -> str:
    """The kernels' source."""
    return Path(__file__).with_suffix(".cu").read_text()


@cache
def find_kernels(device: torch.device, hidden: int) -> tuple[PlacerKernels, str]:
    """The kernels to compute with on a device, and why not those of CUDA, if so."""
    if device.type != "cuda":
        return TorchKernels(), f"the device is {device.type}"
    if hidden % 8:
        return TorchKernels(), f"the hidden size {hidden} is no multiple of 8"
    try:
        kernels = CudaKernels()
        check_kernels(kernels, device, hidden)
    except (RuntimeError, AttributeError, ConfigError) as error:  # NVRTC's errors are RuntimeErrors
        return TorchKernels(), " ".join(str(error).split())[:2000]
    return kernels, ""


def check_kernels(kernels: PlacerKernels, device: torch.device, hidden: int) -> None:
    """Compare kernels with PyTorch's results, on random inputs.

    Raises:
        ConfigError: They differ by more than rounding.
    """
    results = [_sample_results(each, device, hidden) for each in (kernels, TorchKernels())]
    for name, found in results[0].items():
        expected = results[1][name]
        difference = (found - expected).abs().max() / expected.abs().max()
        if not float(difference) < _TOLERANCE:
            raise ConfigError(
                f"the CUDA kernel's {name} differs from PyTorch's by {float(difference):.2g} of "
                f"the largest, expected less than {_TOLERANCE:g}"
            )


def _sample_results(
    kernels: PlacerKernels, device: torch.device, hidden: int
) -> dict[str, torch.Tensor]:
    """What kernels make of random inputs: 2 steps, 150 episodes, 13 keys padded to 16."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    steps, batch, keys, real_keys, rows = 2, 150, 16, 13, 3
    gates, cell, state = (normal(batch, count * hidden) for count in (4, 1, 1))
    choice = torch.randint(rows, (batch,), generator=generator).to(device)
    before = normal(batch, hidden)
    wide = normal(batch, 5 * hidden + 8)
    kernels.lstm_forward(
        wide[:, : 4 * hidden], normal(rows, 4 * hidden), choice, before, gates, cell, state
    )
    of_cell, of_gates = normal(2, batch, hidden), normal(2, batch, 4 * hidden)
    kernels.lstm_backward(normal(2, batch, hidden), of_cell, gates, cell, before, of_gates)
    exp_key, match = (2 * normal(keys, hidden)).exp(), normal(hidden)
    scores, exp_query = normal(batch, keys), normal(batch, hidden)
    query = wide[:, 4 * hidden : 5 * hidden]
    kernels.attention_scores(query, exp_key, match, real_keys, scores, exp_query)
    names = ("query gradient", "key gradient", "match gradient")
    gradients = kernels.attention_gradient(
        normal(steps, batch, hidden).exp(), exp_key, match, normal(steps, 2, batch, keys)
    )
    return {
        "gates": gates,
        "cell": cell,
        "hidden state": state,
        "cell gradient": of_cell,
        "gate gradient": of_gates,
        "scores": scores[:, :real_keys].contiguous(),
        "exponentials": exp_query.log(),
        **dict(zip(names, gradients, strict=True)),
    }
