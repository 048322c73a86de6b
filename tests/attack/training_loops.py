"""Ordinary training loops of small networks, done by PyTorch and by a placed copy.

Gradients accumulate over two batches of several sizes, every third step runs under autocast, a part
of the network is frozen for some steps, and gradients are clipped. After the last step all weights
and all states of the optimizer must be PyTorch's, to the bit; on a fake GPU, losses must be close,
and on a real one weights too, without dropout, since a GPU draws other random numbers.
"""

from __future__ import annotations

import copy
import itertools
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
from attack.odd_uses.comparison import differences, snapshot
from attack.odd_uses.harness import random_states, seed_all, watchdog
from attack.odd_uses.networks import Attention
from attack.odd_uses.placing import devices_of, make_plan, place
from attack.odd_uses.subjects import Experts
from attack.tally import try_seeds
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from attack.tally import Tally

STEPS = 20
COUNTS = (4, 4, 3, 6, 4, 2)
"""Batch sizes, in turn."""
TOLERANCE = 2e-2
"""Of a fake GPU: tensors that are copied to it are aligned and strided otherwise, so that sums
differ in a last bit. In 20 steps, casts to bfloat16 enlarge that."""
SHOWN = ("losses", "evaluations", "random")
"""What is compared then. Weights that change no output, such as the biases of keys, have gradients
of 1e-9 instead of zero, and Adam moves them by a whole learning rate in either direction."""
NOISE = 1e-3
"""On a real GPU weights are compared, too, but for those whose gradients, by Adam's second moment,
are no larger than bfloat16's rounding makes them."""


def mlp_with_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)
    )


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.BatchNorm2d(8, momentum=None),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 8),
    )


class RecurrentWords(nn.Module):
    """A language model of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(13, 8), nn.LSTM(8, 16, 2, dropout=0.2)
        self.head = nn.Linear(16, 13)

    def forward(self, x):
        return self.head(self.lstm(self.words(x.t()))[0]).transpose(0, 1)


class Encoder(nn.Module):
    """A transformer's encoder with a mask for padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(13, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 13)

    def forward(self, x):
        mask = (x == 0) & (torch.arange(x.shape[1]) > 0)
        return self.head(self.layers(self.words(x), src_key_padding_mask=mask))


class DecoderWords(nn.Module):
    """Two layers of causal attention with dropout, and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(0.1) for _ in range(2))
        self.words = nn.Embedding(13, 11)
        self.join = nn.Linear(22, 11)

    def forward(self, x):
        y = torch.cat([layer(x % 11) for layer in self.layers], -1)
        return functional.linear(self.join(y), self.words.weight)


class SkipNet(nn.Module):
    """Convolutions down and up again, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList((nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, padding=1)))
        self.up = nn.ModuleList((nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 4, 3, padding=1)))
        self.norm, self.head = nn.GroupNorm(2, 8), nn.Linear(4, 8)

    def forward(self, x):
        first = torch.relu(self.norm(self.down[0](x)))
        second = torch.relu(self.down[1](first))
        both = torch.cat((first, self.up[0](second)), 1)
        return self.head(self.up[1](both).mean((2, 3)))


class RoutedExperts(nn.Module):
    """A mixture of experts between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.experts, self.last = nn.Linear(8, 8), Experts(), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(torch.relu(self.experts(torch.tanh(self.first(x)))))


class TiedAutoencoder(nn.Module):
    """Its decoder is its encoder, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.code = nn.Linear(8, 4), nn.Linear(4, 4)
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        y = torch.sigmoid(self.code(torch.relu(self.encoder(x))))
        return functional.linear(y, self.encoder.weight.t(), self.bias)


def _rows(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def _images(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def _words(seed: int, count: int) -> torch.Tensor:
    return torch.randint(13, (count, 6), generator=torch.Generator().manual_seed(seed))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], torch.Tensor]]] = {
    "mlp": (mlp_with_dropout, _rows),
    "cnn": (convolutions, _images),
    "lstm": (RecurrentWords, _words),
    "encoder": (Encoder, _words),
    "decoder": (DecoderWords, _words),
    "unet": (SkipNet, _images),
    "experts": (RoutedExperts, _rows),
    "autoencoder": (TiedAutoencoder, _rows),
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1),
}

KINDS = ("alternating", "baselines", "streaming")
PAIRS = tuple(itertools.product(NETWORKS, OPTIMIZERS))


def loss_of(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Words are predicted, images and rows are regressed."""
    if not x.is_floating_point():
        return functional.cross_entropy(output.float().flatten(0, 1), x.roll(-1, 1).flatten())
    target = x if x.dim() == 2 else x.mean((1, 2, 3))[:, None].expand(-1, 8)
    return (output.float() - target).square().mean()


def train(model: nn.Module, network: str, optimizer: str, seed: int = 0) -> dict[str, Any]:
    """Train for some steps; losses, evaluations, weights and states at the end."""
    batch = NETWORKS[network][1]
    steps = OPTIMIZERS[optimizer](model.parameters())
    losses, evaluations, counts = [], [], itertools.cycle(COUNTS)
    first = next(iter(model.children()))
    for step in range(STEPS):
        first.requires_grad_(not 5 <= step < 9)
        for part in range(2):
            x = batch(seed * 1000 + 2 * step + part, next(counts))
            with torch.autocast("cpu", torch.bfloat16, enabled=step % 3 == 2):
                loss = loss_of(model(x), x) / 2
            loss.backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        steps.zero_grad()
        if step % 6 == 5:
            model.eval()
            with torch.no_grad():
                evaluations += [model(batch(seed, 4)), model(batch(seed + 1, 4))]
            model.train()
    return {
        "losses": losses,
        "evaluations": evaluations,
        "weights": dict(model.state_dict()),
        "optimizer": copy.deepcopy(steps.state_dict()),
        "random": random_states(),
        "parameters": {name: value.detach().cpu() for name, value in model.named_parameters()},
        "moments": {
            name: steps.state[value]["exp_avg_sq"].cpu()
            for name, value in model.named_parameters()
            if "exp_avg_sq" in steps.state.get(value, {})
        },
    }


def compare(network: str, optimizer: str, kind: str, seed: int = 0) -> list[str]:
    """What differs between PyTorch's training and that of a placed copy."""
    build, batch = NETWORKS[network]
    seed_all(seed)
    plan = make_plan(("loop", network), kind, build, lambda: (batch(0, 4),))
    found = []
    with devices_of(kind), watchdog(300), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for placed in (False, True):
            seed_all(seed)
            model = build()
            if kind == "gpu":
                _leave_out_dropout(model)
            if placed:
                model = place(model, plan)
            seed_all(seed + 1)
            found.append(snapshot(train(model, network, optimizer, seed)))
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if kind in ("streaming", "gpu"):
        shown = [{key: made[key] for key in SHOWN} for made in found]
        if kind == "gpu" and network == "cnn" and optimizer != "momentum":
            for made in shown:  # statistics follow biases whose gradients are noise
                del made["evaluations"]
        if kind == "gpu":
            for made, own in zip(shown, found, strict=True):
                made["weights"] = _above_noise(own["parameters"], found[0]["moments"])
        return differences(*shown, TOLERANCE)
    return differences(*found)


def _above_noise(
    parameters: dict[str, torch.Tensor], moments: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The numbers of each parameter whose gradients are no noise, by these second moments."""
    return {
        name: value[moments[name].sqrt() > NOISE] if name in moments else value
        for name, value in parameters.items()
    }


def _leave_out_dropout(model: nn.Module) -> None:
    for module in model.modules():
        for name in ("dropout", "p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def try_seed(seed: int) -> str:
    """One network, optimizer and kind of plan; seeds beyond those change weights and batches."""
    kind = KINDS[seed // len(PAIRS) % len(KINDS)]
    network, optimizer = PAIRS[seed % len(PAIRS)]
    found = compare(network, optimizer, kind, seed // (len(PAIRS) * len(KINDS)))
    assert found == [], f"{network}, {optimizer}, {kind}: {'; '.join(found[:2])}"
    return "loops equal to PyTorch's"


def attack(first_seed: int, seconds: float) -> Tally:
    """Train every network with every optimizer under every kind of plan, over and over."""
    torch.set_num_threads(1)
    return try_seeds(try_seed, first_seed, seconds)
