"""Odd uses of optimizers and training loops."""

from __future__ import annotations

import copy

import torch
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import TiedWords, conv, images, mlp, plain, words
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, TensorDataset


def train(model, optimizer, steps=4, batch=rows):
    losses = []
    for seed in range(steps):
        optimizer.zero_grad()
        loss = model(batch(seed)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses


def states_of(optimizer):
    return copy.deepcopy(optimizer.state_dict())


@odd_use(mlp)
def adam(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return train(model, optimizer), states_of(optimizer)


@odd_use(mlp)
def sgd_with_momentum_and_decay(model):
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    )
    return train(model, optimizer), states_of(optimizer)


@odd_use(plain)
def foreach_and_fused(model):
    made = []
    for how in ({"foreach": True}, {"foreach": False}, {"fused": True}):
        made += train(model, torch.optim.AdamW(model.parameters(), lr=0.01, **how), 2)
    return made


@odd_use(plain)
def parameter_groups(model):
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 0.1},
            {"params": [model[2].weight], "weight_decay": 0.5},
            {"params": model[4].parameters()},
        ],
        lr=0.01,
    )
    made = train(model, optimizer, 2)
    optimizer.add_param_group({"params": [model[2].bias], "lr": 1.0})
    return made, train(model, optimizer, 2), states_of(optimizer)


@odd_use(plain)
def lbfgs(model):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = model(rows()).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(3)]


@odd_use(plain)
def learning_rate_schedule(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6)
    made = []
    for _ in range(5):
        made += train(model, optimizer, 1)
        schedule.step()
    return made, schedule.get_last_lr()


@odd_use(plain)
def gradients_are_clipped(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = []
    for seed in range(3):
        optimizer.zero_grad()
        (model(rows(seed)) * 100).square().mean().backward()
        made.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
    return made


@odd_use(plain)
def grad_scaler(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, made = torch.amp.GradScaler("cpu", init_scale=8.0), []
    for seed in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = model(rows(seed))
        loss = y.float().square().mean() * (float("inf") if seed == 2 else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        made += [y, scaler.get_scale()]
    return made


@odd_use(mlp, refusal="cannot be copied")
def averaged_copy_of_the_model(model):
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = []
    for seed in range(3):
        made += train(model, optimizer, 1, lambda _, seed=seed: rows(seed))
        average.update_parameters(model)
    average.eval()
    with torch.no_grad():
        return made, average(rows()), dict(average.state_dict())


@odd_use(mlp)
def moving_average_by_hand(model):
    shadow = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        train(model, optimizer, 1)
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                shadow[name].lerp_(value, 0.1)
    model.eval()
    own = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        made = [model(rows())]
        model.load_state_dict(shadow)
        made.append(model(rows()))
        model.load_state_dict(own)
        made.append(model(rows()))
    return made, train(model.train(), optimizer, 2)


@odd_use(mlp)
def batch_norm_is_updated_after_averaging(model):
    swa_utils.update_bn([rows(seed) for seed in range(4)], model)
    return model(rows())


@odd_use(plain)
def optimizer_of_frozen_parts(model):
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam([w for w in model.parameters() if w.requires_grad], lr=0.01)
    made = train(model, optimizer)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    made += train(model, optimizer)
    model[4].requires_grad_(False)
    return made, train(model, optimizer)


@odd_use(mlp)
def data_loader_with_a_last_batch(model):
    data = DataLoader(TensorDataset(rows(count=22)), batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = []
    for _ in range(2):
        for (x,) in data:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            made.append(loss)
        model.eval()
        with torch.no_grad():
            made += [model(x) for (x,) in data]
        model.train()
    return made


class Sparse(nn.Module):
    example = staticmethod(lambda: (words(),))

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8, sparse=True), nn.Linear(8, 11)
        self.bag = nn.EmbeddingBag(11, 8, mode="mean", sparse=True)

    def forward(self, x):
        return self.head(self.words(x) + self.bag(x)[:, None])


@odd_use(Sparse)
def sparse_gradients(model):
    made = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(3):
        optimizer.zero_grad()
        loss = model(words(seed)).square().mean()
        loss.backward()
        optimizer.step()
        gradient = model.words.weight.grad
        made += [loss, gradient.is_sparse, gradient.to_dense()]
    return made


class Bounded(nn.Module):
    """Its embedding renormalizes rows of its weight when they are read."""

    example = staticmethod(lambda: (words(),))

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8, max_norm=0.5), nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.words(x))


@odd_use(Bounded)
def embedding_changes_its_weight_in_forward(model):
    model.eval()
    with torch.no_grad():
        made = [model(words()), model(words()), model(words(1))]
    model.train()
    y = model(words(2))
    y.sum().backward()
    return made, y, model.words.weight


@odd_use(TiedWords)
def tied_weights_with_adam(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return train(model, optimizer, 4, words), states_of(optimizer)


def train_images(model, optimizer):
    made = train(model, optimizer, 3, lambda _: images()[0])
    model.eval()
    with torch.no_grad():
        return made, model(images()[0]), model(images()[0][:1])


@odd_use(conv, example=images)
def convolution_and_batch_norm_train(model):
    # The norm takes this bias away: its gradient is 1e-9 instead of zero on the fake GPU, by which
    # Adam would move it by its learning rate in either direction (by 0.0054 in 3 steps).
    model[0].bias.requires_grad_(False)
    return train_images(model, torch.optim.Adam(model.parameters(), lr=0.01))


@odd_use(conv, example=images)
def convolution_with_its_bias_and_batch_norm_train(model):
    return train_images(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@odd_use(plain)
def optimizer_outlives_a_load(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 2)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    made = train(model, optimizer, 2)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    return made, train(model, optimizer, 2)


@odd_use(plain)
def capturable_and_differentiable(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    return train(model, optimizer)


@odd_use(plain, refusal="double backward")
def meta_learning_step(model):
    """A step of the weights inside the graph, then a gradient through it."""
    names, weights = zip(*model.named_parameters(), strict=True)
    loss = model(rows()).square().mean()
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    fast = {n: w - 0.1 * g for n, w, g in zip(names, weights, gradients, strict=True)}
    outer = torch.func.functional_call(model, fast, (rows(1),)).square().mean()
    outer.backward()
    return outer


@odd_use(plain, example=lambda: (rows(),))
def optimizer_made_before_the_plan(model, runs):
    """Made after removal and before: the parameters are the same objects."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = train(model, optimizer)
    runs.recapture()
    made += train(model, optimizer)
    runs.remove()
    return made, train(model, optimizer)


@odd_use(mlp)
def gradient_hooks_and_zero_grad_in_place(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = []
    for seed in range(4):
        loss = model(rows(seed)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=seed % 2 == 0)
        made.append(loss)
    return made, [w.grad for w in model.parameters()]
