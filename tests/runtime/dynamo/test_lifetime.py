"""A model that nobody has any more is collected, and threads of its executors end."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from models import nn, place, torch

pytestmark = pytest.mark.usefixtures("frozen_heap")
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """Two layers, with a graph break between them if it breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.breaks = nn.Linear(4, 4), nn.Linear(4, 2), False

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.last(x)


def call(model):
    with torch.no_grad():
        for count in (3, 2):
            model(X[:count])


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).sum().backward()
    optimizer.step()


def break_graphs(model):
    model.breaks = True
    call(model)
    train(model)


def train_steps(model):
    model.placed.train_step(X)
    model.breaks = True
    model.placed.train_step(X)


def stream(model):
    with torch.no_grad():
        list(model.placed.pipeline([(X,)] * 3))


USES = [call, train, break_graphs, train_steps, stream]


def new_threads(before):
    """Threads that began since; the one that tqdm leaves behind is not ours."""
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name != "tqdm_monitor"
    ]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of TorchDynamo after a graph break
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_a_model_is_collected_and_its_threads_end(use):
    before = threading.enumerate()
    model = place(Model(), X, training=True)
    use(model)
    weight = weakref.ref(model.first.weight)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert weight() is None
    for thread in new_threads(before):
        thread.join(60)
    assert not new_threads(before)


def test_threads_end_with_remove_and_with_recapture():
    before = threading.enumerate()
    model = place(Model().eval(), X)
    for end in (model.placed.recapture, model.placed.remove):
        call(model)
        assert new_threads(before)
        end()
        for thread in new_threads(before):
            thread.join(60)
        assert not new_threads(before)
    call(model)
    assert not new_threads(before)
