"""Odd uses of whole training steps, pipelines and micro-batches."""

from __future__ import annotations

import torch
from attack.odd_uses.comparison import Raised, attempt
from attack.odd_uses.harness import odd_use, rows
from attack.odd_uses.networks import Loss, TiedWords, mlp, plain, words
from torch import nn

CLOSE = 2e-6
"""An update may round otherwise than PyTorch's fused one."""


def batch(seed=0, count=4):
    return rows(seed, count), rows(seed + 50, count)


def steps(runs, count=3):
    return [runs.train_step(*batch(seed)) for seed in range(count)]


@odd_use(Loss, optimizer="sgd", tolerance=CLOSE)
def steps_of_sgd(model, runs):
    return steps(runs, 5)


@odd_use(Loss, optimizer="momentum", tolerance=CLOSE)
def steps_of_momentum(model, runs):
    return steps(runs, 5)


@odd_use(Loss, optimizer="adam", tolerance=1e-5)
def steps_of_adam(model, runs):
    return steps(runs, 5)


@odd_use(Loss, optimizer="sgd", tolerance=CLOSE)
def batch_norm_is_frozen_in_steps(model, runs):
    model.norm.eval()
    first = steps(runs)
    model.norm.train()
    return first, steps(runs)


@odd_use(lambda: Loss(0.5), example=Loss.example, optimizer="sgd", tolerance=CLOSE)
def dropout_is_off_in_steps(model, runs):
    model.drop.eval()
    return steps(runs)


@odd_use(lambda: Loss(0.5), example=Loss.example, optimizer="sgd", tolerance=CLOSE)
def dropout_draws_in_steps(model, runs):
    return steps(runs)


@odd_use(lambda: Loss(0.5), example=Loss.example, optimizer="sgd", tolerance=CLOSE)
def steps_in_eval_mode(model, runs):
    model.eval()
    first = steps(runs, 2)
    model.train()
    return first, steps(runs, 2)


@odd_use(Loss, optimizer="sgd", tolerance=CLOSE)
def weights_are_frozen_after_a_step(model, runs):
    made = steps(runs, 1)
    model.first.weight.requires_grad_(False)
    return made, steps(runs, 2)


@odd_use(Loss, optimizer="adam", tolerance=1e-5)
def weights_are_frozen_then_unfrozen(model, runs):
    model.first.requires_grad_(False)
    made = steps(runs, 2)
    model.first.requires_grad_(True)
    return made, steps(runs, 2)


@odd_use(Loss, optimizer="sgd", tolerance=CLOSE)
def keywords_in_the_order_of_the_caller(model, runs):
    x, y = batch()
    made = [runs.train_step(x=x, target=y), runs.train_step(target=y, x=x), runs.train_step(x, y)]
    return made, runs.train_step(x, target=y)


class OptionalLoss(Loss):
    """Takes plain values among its keywords."""

    def forward(self, x, use_cache=True, labels=None):
        loss = super().forward(x, x if labels is None else labels)
        return loss * 2 if use_cache else loss


@odd_use(OptionalLoss, example=lambda: (rows(), False, rows(50)), optimizer="sgd", tolerance=CLOSE)
def plain_values_among_the_keywords(model, runs):
    x, y = batch()
    return runs.train_step(x=x, use_cache=False, labels=y), runs.train_step(x, labels=y)


@odd_use(Loss, optimizer="sgd", tolerance=CLOSE)
def tensor_hook_on_a_weight_in_steps(model, runs):
    model.first.weight.register_hook(lambda gradient: gradient * 0)
    return steps(runs, 2)


@odd_use(Loss, optimizer="sgd", tolerance=CLOSE)
def forward_hook_in_steps(model, runs):
    seen = []
    model.norm.register_forward_hook(lambda _m, _args, y: seen.append(y.detach().sum()))
    return steps(runs, 3), seen


@odd_use(Loss, optimizer="adam", tolerance=1e-5)
def batch_size_changes_in_steps(model, runs):
    return [runs.train_step(*batch(count, count)) for count in (4, 2, 4, 7, 2, 4)]


@odd_use(Loss, optimizer="sgd", tolerance=CLOSE)
def steps_and_calls_alternate(model, runs):
    made = []
    for seed in range(3):
        made += steps(runs, 1)
        model.eval()
        with torch.no_grad():
            made.append(model(*batch(seed)))
        model.train()
        loss = model(*batch(seed))
        loss.backward()
        model.zero_grad()
        made.append(loss)
    return made


@odd_use(Loss, optimizer="adam", tolerance=1e-5)
def weights_are_loaded_between_steps(model, runs):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    made = steps(runs, 2)
    model.load_state_dict(state)
    made += steps(runs, 2)
    model.first.weight.data = torch.ones(16, 8)
    return made, steps(runs, 2)


@odd_use(Loss, optimizer="sgd", tolerance=CLOSE)
def step_fails_then_works(model, runs):
    calls = ((rows(width=5), rows()), ())
    made = [isinstance(attempt(runs.train_step, *call), Raised) for call in calls]
    return made, steps(runs, 2)


@odd_use(Loss, optimizer="sgd", tolerance=CLOSE)
def step_without_gradients_enabled(model, runs):
    with torch.no_grad():
        return steps(runs, 2)


class TiedLoss(TiedWords):
    def forward(self, x):
        return super().forward(x).square().mean()


@odd_use(TiedLoss, optimizer="adam", tolerance=1e-5)
def tied_weights_in_steps(model, runs):
    made = [runs.train_step(words(seed)) for seed in range(3)]
    return made, model.head.weight is model.words.weight


class NoBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x, target):
        return (self.last(torch.tanh(self.first(x))) - target).square().mean()


@odd_use(NoBatchNorm, example=Loss.example, optimizer="sgd", tolerance=CLOSE)
def micro_batches(model, runs):
    made = runs.train_micro_batches([batch(seed, 2) for seed in range(3)])
    return made, steps(runs, 1), runs.train_micro_batches([batch(seed, 2) for seed in range(2)])


@odd_use(plain)
def pipeline_of_calls(model, runs):
    model.eval()
    return list(runs.pipeline([(rows(seed),) for seed in range(9)], in_flight=3))


@odd_use(plain)
def pipeline_of_several_shapes(model, runs):
    model.eval()
    counts = (4, 4, 2, 2, 4, 1, 1, 4)
    return list(runs.pipeline([(rows(seed, count),) for seed, count in enumerate(counts)]))


@odd_use(plain)
def pipeline_is_left_in_the_middle(model, runs):
    model.eval()
    made = []
    for y in runs.pipeline(((rows(seed),) for seed in range(20)), in_flight=4):
        made.append(y)
        if len(made) == 3:
            break
    with torch.no_grad():
        return made, model(rows()), list(runs.pipeline([(rows(2),)] * 3))


@odd_use(plain)
def pipeline_with_calls_in_between(model, runs):
    model.eval()
    made = []
    with torch.no_grad():
        for seed, y in enumerate(runs.pipeline([(rows(seed),) for seed in range(5)])):
            made += [y, model(rows(seed + 20)), model(rows(seed, 2))]
    return made


@odd_use(mlp, refusal="cannot")
def pipeline_of_a_model_that_changes_states(model, runs):
    model.train()
    return list(runs.pipeline([(rows(seed),) for seed in range(4)]))


@odd_use(plain)
def weights_change_within_a_pipeline(model, runs):
    """A call in flight reads the old weights or the new ones: in_flight=1 leaves no choice."""
    model.eval()
    made = []
    for y in runs.pipeline(((rows(seed),) for seed in range(4)), in_flight=1):
        made.append(y.clone())
    with torch.no_grad():
        model[0].weight.mul_(2)
    return made, list(runs.pipeline([(rows(),)] * 2, in_flight=1))


@odd_use(plain)
def pipeline_of_none(model, runs):
    return list(runs.pipeline([]))


class UnreadDraw(Loss):
    """Draws a number that nothing reads."""

    def forward(self, *batch):
        torch.rand([])
        return super().forward(*batch)


@odd_use(lambda: UnreadDraw(0.5), example=Loss.example, optimizer="sgd", tolerance=CLOSE)
def draws_that_nothing_reads_in_steps(model, runs):
    return steps(runs), torch.rand(2)
