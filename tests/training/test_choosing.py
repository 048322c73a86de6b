"""Choosing: the weights that place what is held back best, and not the last ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from placewright import Cluster, Problem, zoo  # noqa: E402
from placewright.training import Environment, Trainer, recipe  # noqa: E402
from placewright.training.choosing import Chosen, _liked  # noqa: E402
from placewright.training.recipes import of_several  # noqa: E402


def test_the_weights_that_did_best_on_what_is_held_back_are_kept():
    cluster = Cluster.parse("2xP100")
    problems = [Problem(zoo.load(f"layered:ops=24,seed={seed}"), cluster) for seed in range(5)]
    made = of_several(recipe("placeto", groups=8))
    trainer = Trainer([Environment(each) for each in problems[:3]], made, 0, 240, device="cpu")
    chosen = Chosen(problems[3:], every=2)
    states = []

    def watch(now):
        before = len(chosen.looks)
        chosen(now)
        if len(chosen.looks) > before:
            states.append({name: one.clone() for name, one in now.policy.state_dict().items()})
        return True

    trainer.run(watch)
    assert len(chosen.looks) >= 3
    chosen.settle(trainer)
    scores = [score for _, score in chosen.looks]
    assert chosen.judged == 2 * len(scores)
    best = scores.index(min(scores))
    if best < len(states):
        kept = trainer.policy.state_dict()
        assert all(torch.equal(kept[name], one) for name, one in states[best].items())
    again = sum(torch.tensor(_liked(trainer, each)).log() for each in problems[3:]) / 2
    assert float(again) == pytest.approx(min(scores), rel=1e-4)
