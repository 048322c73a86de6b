"""A training step under a plan: forward, backward and the update of all weights.

    python examples/training_step.py

Needs the extra `torch`. Weights, their gradients and the states of Adam take four times the memory
of the weights alone, which is what the plan must fit. The losses are compared with those of an
ordinary loop on a copy of the model.
"""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn

import placewright as pw

RATE = 1e-3


class Classifier(nn.Module):
    """A network whose output is its loss."""

    def __init__(self, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        sizes = [64, *[width] * layers, 10]
        pairs = itertools.pairwise(sizes)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return nn.functional.cross_entropy(x, labels)


def build() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """The model and a batch, for `placewright place FILE:build --training --optimizer adam`."""
    torch.manual_seed(0)
    return Classifier(), (torch.randn(32, 64), torch.randint(10, (32,)))


def main() -> None:
    model, batch = build()
    graph = pw.from_torch(model, batch, training=True, optimizer="adam")
    weights = sum(weight.nbytes for weight in model.parameters())
    problem = pw.Problem(
        graph,
        pw.Cluster.parse("V100+cpu"),
        limits={"gpu0": 3 * weights},  # three of the four
    )
    result = pw.solve(problem, budget="1s", seed=0)
    print(result)

    ordinary = copy.deepcopy(model)
    optimizer = torch.optim.Adam(ordinary.parameters(), lr=RATE)
    real = None if torch.cuda.is_available() else {"gpu0": "cpu:1", "cpu": "cpu:1"}
    pw.apply(result, model, device_map=real, optimizer="adam")
    placed = model.placed
    assert isinstance(placed, pw.runtime.PlacedModel)
    for step in range(5):
        optimizer.zero_grad()
        expected = ordinary(*batch)
        expected.backward()
        optimizer.step()
        loss, wanted = placed.train_step(*batch).item(), expected.item()
        print(f"step {step}: loss {loss:.6f}, of an ordinary loop {wanted:.6f}")
        assert abs(loss - wanted) < 1e-4


if __name__ == "__main__":
    main()
