"""The command line as a newcomer runs it, and the model of one."""

from __future__ import annotations

import pytest
from cli.conftest import run as run

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Decoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.layers = nn.ModuleList([Block(width) for _ in range(4)])
        self.head = nn.Linear(width, 100)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def build(batch=2, tokens=8):
    return Decoder(), (torch.zeros(batch, tokens, dtype=torch.long),)

def make():
    raise AssertionError("a model was built in vain")
    return Decoder()
"""


@pytest.fixture
def model(tmp_path):
    """A file with a small decoder: 4 layers of 131 KiB."""
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(MODEL)
    return "model.py:build"
