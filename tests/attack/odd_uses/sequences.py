"""Random sequences of actions, done to a model and to a placed copy, compared after each action.

Seeds below the number of pairs of a case and a kind of plan try the table; those above, sequences.
"""

from __future__ import annotations

import random
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from attack.odd_uses import changes
from attack.odd_uses.actions import ACTIONS, WEIGHTS, Session
from attack.odd_uses.comparison import attempt, differences, snapshot
from attack.odd_uses.harness import (
    STREAMING_TOLERANCE,
    PlacedRuns,
    Runs,
    is_skipped,
    judge,
    load_examples,
    model_states,
    random_states,
    seed_all,
    set_random_states,
    watchdog,
)
from attack.odd_uses.placing import devices_of, make_plan, place
from attack.odd_uses.subjects import SUBJECTS
from attack.odd_uses.table import CASES
from attack.tally import try_seeds

if TYPE_CHECKING:
    from attack.tally import Tally

KINDS = ("alternating", "baselines", "streaming")
SHARED_WEIGHTS = ("residual", "tied")
"""Networks that use a weight more than once in a call."""

LENGTH = 14
"""The most actions in a sequence."""

MODULES = (changes,)
"""They register their actions when they are imported."""


@dataclass(frozen=True)
class Sequence:
    """Actions with the seeds of their parameters, on a network under a kind of plan."""

    network: str
    kind: str
    actions: tuple[tuple[str, int], ...]

    @classmethod
    def of_seed(cls, seed: int) -> Sequence:
        rng = random.Random(seed)
        names = rng.choices(list(ACTIONS), list(WEIGHTS.values()), k=rng.randrange(3, LENGTH + 1))
        if rng.random() < 0.5:  # models in eval mode are served, and take other paths
            names = ["switch_the_model", "call_without_gradients", *names]
        return cls(
            rng.choice(list(SUBJECTS)),
            rng.choice(KINDS),
            tuple((name, rng.randrange(10**6)) for name in names),
        )

    @property
    def tolerance(self) -> float:
        """0 for equality to the bit.

        Under autocast, PyTorch casts a weight once and sums the gradients of its uses in bfloat16,
        whose precision is 2**-8. Its compiler casts at each use and sums in float32. Streamed
        weights are aligned otherwise, so that sums differ in a last bit. Training enlarges that: of
        weights that change no output, such as the biases of keys, gradients are 1e-9 instead of
        zero, and Adam moves them by its learning rate of 0.01 in either direction.
        """
        names = [name for name, _ in self.actions]
        is_streaming = self.kind == "streaming"
        if is_streaming and "train" in names:
            return 0.1
        if "call_under_autocast" in names and (is_streaming or self.network in SHARED_WEIGHTS):
            return 2**-6
        return STREAMING_TOLERANCE if is_streaming else 0

    def without(self, index: int) -> Sequence:
        actions = (*self.actions[:index], *self.actions[index + 1 :])
        return Sequence(self.network, self.kind, actions)

    def __str__(self) -> str:
        names = ", ".join(name for name, _ in self.actions)
        return f"{self.network} ({self.kind}): {names}"


class Copy:
    """One of the two models, with random states of its own."""

    def __init__(self, sequence: Sequence, placed: bool) -> None:
        subject = SUBJECTS[sequence.network]
        plan = make_plan(
            ("subject", sequence.network),
            sequence.kind,
            subject.build,
            lambda: (subject.batch(0, 4),),
        )
        seed_all()
        model = subject.build()
        runs: Any = None
        if placed:
            model = place(model, plan)
            runs = PlacedRuns(model, sequence.kind, plan)
        else:
            runs = Runs(model, None)
        self.session = Session(model, subject, runs)
        seed_all()
        self.random_states = random_states()

    def do(self, name: str, seed: int) -> Any:
        """Do an action; all that can be observed."""
        set_random_states(self.random_states)
        value = attempt(ACTIONS[name], self.session, random.Random(seed))
        self.random_states = random_states()
        made = {
            "action": value,
            "outputs": self.session.outputs,
            "seen": self.session.seen,
            **model_states(self.session.model),
            "random": self.random_states,
        }
        return snapshot(made)


def first_difference(sequence: Sequence) -> tuple[int, list[str]] | None:
    """The index of the first action after which the two copies differ, and what differs."""
    load_examples()
    with devices_of(sequence.kind), watchdog(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own, placed = Copy(sequence, False), Copy(sequence, True)
        try:
            for index, (name, seed) in enumerate(sequence.actions):
                made = own.do(name, seed), placed.do(name, seed)
                found = differences(*made, sequence.tolerance)
                if found:
                    return index, found
        finally:
            attempt(lambda: placed.session.model.placed.remove())
            torch.set_grad_enabled(True)
            if "torch._dynamo" in sys.modules:
                torch._dynamo.reset()
    return None


def smallest(sequence: Sequence) -> tuple[Sequence, list[str]]:
    """A sequence that still differs, as short as dropping single actions makes it."""
    found = first_difference(sequence)
    assert found is not None
    sequence = Sequence(sequence.network, sequence.kind, sequence.actions[: found[0] + 1])
    index = len(sequence.actions) - 2
    while index >= 0:
        shorter = sequence.without(index)
        again = first_difference(shorter)
        if again is not None:
            found = again
            kept = shorter.actions[: again[0] + 1]
            sequence = Sequence(sequence.network, sequence.kind, kept)
        index = min(index, len(sequence.actions) - 1) - 1
    return sequence, found[1]


def try_sequence(seed: int, shrink: bool = True) -> str:
    """Try the sequence of a seed; an AssertionError says what differs after which actions."""
    sequence = Sequence.of_seed(seed)
    found = first_difference(sequence)
    if found is None:
        return "sequences without a difference"
    if not shrink:
        last = sequence.actions[found[0]][0]
        raise AssertionError(f"{sequence}: after {last}: {'; '.join(found[1][:2])}")
    shortest, what = smallest(sequence)
    raise AssertionError(f"{shortest}: {'; '.join(what[:2])}")


def try_seed(seed: int) -> str:
    """A case of the table under a kind of plan, or a sequence."""
    pairs = [(name, kind) for kind in KINDS for name in sorted(CASES)]
    if seed >= len(pairs):
        return try_sequence(seed - len(pairs))
    name, kind = pairs[seed]
    if is_skipped(CASES[name], kind):
        return "odd uses that are none under this kind of plan"
    word, found = judge(CASES[name], kind)
    assert word != "differ", f"{kind} {name}: {'; '.join(found[:2])}"
    return "odd uses without a difference"


def attack(first_seed: int, seconds: float) -> Tally:
    """Try the table, then random sequences."""
    torch.set_num_threads(1)
    return try_seeds(try_seed, first_seed, seconds)
