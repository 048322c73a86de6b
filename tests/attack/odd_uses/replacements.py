"""Odd uses where a weight becomes something else, moves in memory, or outlives the model."""

from __future__ import annotations

import gc
import threading

import torch
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import TiedWords, plain, words
from attack.odd_uses.weights import three
from torch import nn
from torch.utils.checkpoint import checkpoint


@odd_use(plain)
def weight_becomes_a_buffer(model):
    def change():
        bias = model[0].bias.detach() + 1
        del model[0].bias
        model[0].register_buffer("bias", bias)

    return three(model, change)


@odd_use(plain)
def weight_becomes_an_attribute(model):
    def change():
        bias = model[0].bias.detach() + 1
        del model[0].bias
        model[0].bias = bias

    return three(model, change)


@odd_use(plain)
def layers_trade_places(model):
    def change():
        with torch.random.fork_rng(devices=[]):
            model[0], model[4] = nn.Sequential(model[4], nn.Linear(8, 16)), nn.Linear(8, 8)

    return three(model, change)


@odd_use(plain)
def weight_is_expanded(model):
    def change():
        model[0].bias.data = torch.ones(1).expand(16)

    return three(model, change)


@odd_use(plain)
def array_of_numpy_changes_a_weight(model):
    if model[0].weight.is_cuda:
        return None

    def change():
        array = model[0].weight.detach().numpy()
        array *= 1.5

    return three(model, change)


@odd_use(plain, gpu=False)
def weights_move_to_shared_memory(model):
    def change():
        model.share_memory()

    return three(model, change), model[0].weight.is_shared()


@odd_use(TiedWords)
def embedding_and_head_grow(model):
    """As `resize_token_embeddings` of transformers does it."""
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        made = [model(words())]
        old = model.words.weight
        model.words = nn.Embedding(14, 8)
        model.words.weight[:11] = old
        model.head = nn.Linear(8, 14, bias=False)
        model.head.weight = model.words.weight
        made += [model(words()), model(words(1, vocabulary=14))]
    model(words()).sum().backward()
    return made, model.head.weight is model.words.weight


@odd_use(plain)
def alias_of_a_weight_is_changed_after_a_call(model):
    model.eval()
    with torch.no_grad():
        made = [model(rows())]
        alias = model[2].weight.detach()
        made += [model(rows(1)), model(rows(count=2))]
        alias.mul_(2)
        return made, model(rows()), alias


@odd_use(plain)
def state_dict_outlives_the_model(model, runs):
    model.eval()
    with torch.no_grad():
        made = [model(rows()), model(rows(count=2))]
    state = model.state_dict()
    part = state["0.weight"][3:5]
    runs.remove()
    for index in (0, 2, 4):
        model[index] = nn.Identity()
    gc.collect()
    return made, state, part


class WeightsAmongOutputs(nn.Module):
    """Outputs are weights, parts of them and views; which ones depends on an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, which=0):
        if which == 0:
            return self.one(x), self.one.weight[:2], self.two.weight.t()
        if which == 1:
            return self.two(torch.relu(self.one(x))), self.one.bias.unsqueeze(0)
        return self.two(x), self.one.weight, self.two.bias.expand(3, 8)


@odd_use(WeightsAmongOutputs)
def outputs_of_several_graphs_are_held(model):
    """What one graph returned stays as it was while others run and take its memory."""
    model.eval()
    with torch.no_grad():
        return [model(rows(seed, 2 + seed % 3), seed * 7 % 3) for seed in range(12)]


@odd_use(plain)
def weight_is_frozen_within_a_pipeline(model, runs):
    """Guards fail while other calls are in flight."""

    def calls():
        for seed in range(9):
            if seed == 4:
                model[0].weight.requires_grad_(False)
            if seed == 6:
                model[2].bias.data = model[2].bias.data.clone()
            yield (rows(seed),)

    return list(runs.pipeline(calls(), in_flight=3)), model[0].weight.requires_grad


class Checkpointed(nn.Module):
    """A reentrant checkpoint, so that calls run eagerly."""

    is_exportable = False

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.two(checkpoint(lambda y: torch.relu(self.one(y)).sin(), x, use_reentrant=True))


@odd_use(Checkpointed)
def checkpoint_of_another_model_runs_at_once(model):
    """The other one is no placed model: what eager calls do to checkpoints is not its."""
    made = []
    with torch.random.fork_rng(devices=[]):
        other = Checkpointed()
    other.load_state_dict(model.state_dict())
    inside, end = threading.Event(), threading.Event()

    def train_other():
        x = rows().requires_grad_()
        inside.wait()
        other(x).square().sum().backward()
        made.append(x.grad)
        end.set()

    def meet(module, args):
        inside.set()
        end.wait(20)

    thread = threading.Thread(target=train_other)
    thread.start()
    handle = model.one.register_forward_pre_hook(meet)
    x = rows().requires_grad_()
    y = model(x)
    handle.remove()
    y.square().sum().backward()
    thread.join()
    return y, x.grad, made, {name: weight.grad for name, weight in other.named_parameters()}
