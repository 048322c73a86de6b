"""The table of odd uses: each is done to a model and to a placed copy, and must look the same."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import random
import signal
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from attack.odd_uses.comparison import Raised, Tolerance, differences, snapshot
from attack.odd_uses.placing import LEARNING_RATE, devices_of, make_plan, place

from placewright.errors import PlacewrightError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from placewright import Plan

WATCHDOG = 120
"""Seconds after which a use is ended: a deadlock, not a slow machine."""

GPU_TOLERANCE = {None: 2e-3, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""By dtype; float64, too, may be made of float32."""
STREAMING_TOLERANCE = 1e-5  # streamed weights are aligned otherwise, so sums differ in a last bit

GPU_WARNINGS = (
    "RNN module weights are not part of single contiguous chunk of memory",
    "Attempting to run cuBLAS, but there was no current CUDA context",
)
"""Streamed weights of recurrent networks are not adjacent, and threads of autograd have no context
at first: PyTorch says so once of each, and goes on."""


class Verdict(NamedTuple):
    """What came of a use.

    Args:
        word: `equal`, `refused` or `differ`.
        found: What differs.
    """

    word: str
    found: list[str]


CASES: dict[str, OddUse] = {}
"""All odd uses, by name."""


@dataclass(frozen=True)
class OddUse:
    """One odd use.

    Args:
        build: Makes the model; the random numbers are seeded.
        use: Does the odd use and returns all that can be observed. With a second parameter it gets
            the `Runs` of the model, too.
        example: Arguments of the call that the plan is made for.
        refusal: Words of the error with which the placed model may refuse the use instead.
        must_refuse: Whether it must.
        optimizer: The optimizer of a training plan; None for a plan of calls.
        tolerance: 0 for equality to the bit.
        gpu: Whether the use makes sense where the devices are real GPUs.
        slow: Whether it takes more than a second.
        isolated: Whether it is judged in a process of its own, which it may end.
        workers_only: Whether it is no use where devices are GPUs, pretended or real.
        warns: The kind of warning that the placed model may give.
    """

    name: str
    build: Callable[[], torch.nn.Module]
    use: Callable[..., Any]
    example: Callable[[], tuple[Any, ...]]
    refusal: str | None = None
    must_refuse: bool = False
    optimizer: str | None = None
    tolerance: float = 0
    gpu: bool = True
    slow: bool = False
    isolated: bool = False
    warns: str = ""
    workers_only: bool = False


def rows(seed: int = 0, count: int = 4, width: int = 8) -> torch.Tensor:
    """Normal numbers that do not touch the global generator."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.float32, device="cpu")


def one_batch() -> tuple[Any, ...]:
    return (rows(),)


def odd_use(
    build: Callable[[], torch.nn.Module],
    example: Callable[[], tuple[Any, ...]] | None = None,
    **settings: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function into the table; the module's `example` gives the arguments of a call."""

    def register(use: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{use.__module__.rpartition('.')[2]}-{use.__name__}"
        assert name not in CASES, name
        call = example or getattr(build, "example", one_batch)
        CASES[name] = OddUse(name, build, use, call, **settings)
        return use

    return register


class Runs:
    """What `model.placed` offers, done by PyTorch itself."""

    def __init__(self, model: torch.nn.Module, optimizer: str | None) -> None:
        self.model, self.optimizer = model, None
        if optimizer is not None:
            parameters = model.parameters()
            self.optimizer = {
                "sgd": lambda: torch.optim.SGD(parameters, lr=LEARNING_RATE),
                "momentum": lambda: torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9),
                "adam": lambda: torch.optim.Adam(parameters, lr=LEARNING_RATE),
            }[optimizer]()

    def train_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        with torch.enable_grad():
            loss = self.model(*args, **kwargs)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train_micro_batches(self, calls: Iterable[tuple[Any, ...]]) -> list[torch.Tensor]:
        assert self.optimizer is not None
        calls, losses = list(calls), []
        for call in calls:
            loss = self.model(*call)
            (loss / len(calls)).backward()
            losses.append(loss.detach())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses

    def pipeline(self, calls: Iterable[tuple[Any, ...]], in_flight: int = 4) -> Iterator[Any]:
        for call in calls:
            with torch.no_grad():
                yield self.model(*call)

    def eager(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def recapture(self) -> None:
        pass

    def remove(self) -> torch.nn.Module:
        return self.model

    def place_too(self, model: torch.nn.Module, *args: Any) -> torch.nn.Module:
        """Another model, placed like this one."""
        return model


class PlacedRuns:
    """The same under a plan."""

    def __init__(self, model: Any, kind: str, plan: Plan) -> None:
        self.model, self.placed, self.kind, self.plan = model, model.placed, kind, plan

    def train_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.placed.train_step(*args, **kwargs).detach().clone()

    def train_micro_batches(self, calls: Iterable[tuple[Any, ...]]) -> list[torch.Tensor]:
        return [loss.detach().clone() for loss in self.placed.train_micro_batches(calls)]

    def pipeline(self, calls: Iterable[tuple[Any, ...]], in_flight: int = 4) -> Iterator[Any]:
        return self.placed.pipeline(iter(calls), in_flight=in_flight)

    def eager(self) -> contextlib.AbstractContextManager[None]:
        return self.placed.eager()

    def recapture(self) -> None:
        self.placed.recapture()

    def remove(self) -> torch.nn.Module:
        return self.placed.remove()

    def place_too(self, model: torch.nn.Module, *args: Any) -> torch.nn.Module:
        if model is self.model:
            return place(model, self.plan)
        key = (type(model).__qualname__, str(model))
        plan = make_plan(key, self.kind, lambda: model, lambda: args or one_batch())
        return place(model, plan)


def seed_all(seed: int = 0) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - models that draw from it are among the cases


def random_states() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002


def set_random_states(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002


def model_states(model: torch.nn.Module) -> dict[str, Any]:
    """What a model shows from outside: weights, gradients, modes, hooks."""
    return {
        "state_dict": dict(model.state_dict()),
        "gradients": {name: weight.grad for name, weight in model.named_parameters()},
        "parameters": {name: weight.requires_grad for name, weight in model.named_parameters()},
        "training": {name: module.training for name, module in model.named_modules()},
    }


@contextlib.contextmanager
def watchdog(seconds: float = WATCHDOG) -> Iterator[None]:
    """End a block that has come to a halt by a TimeoutError."""

    def end(*_: object) -> None:
        raise TimeoutError(f"no answer for {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def observe(case: OddUse, kind: str | None) -> tuple[Any, dict[str, str]]:
    """What a use shows, of the model itself (no kind) or under a plan; and its warnings.

    The warnings are by their kind: the text of the last one.
    """
    plan = None
    if kind is not None:
        seed_all()
        plan = make_plan(
            (case.build.__module__, case.build.__qualname__, case.example.__qualname__),
            kind,
            case.build,
            case.example,
            case.optimizer,
        )
    with (
        warnings.catch_warnings(record=True) as found,
        devices_of(kind or ""),
        _default_settings(),
        watchdog(),
    ):
        warnings.simplefilter("always")
        seed_all()
        model = case.build()
        seed_all()
        try:
            runs: Any
            if plan is None:
                runs = Runs(model, case.optimizer)
            else:
                model = place(model, plan, case.optimizer)
                runs = PlacedRuns(model, kind or "", plan)
            several = len(inspect.signature(case.use).parameters) > 1
            seed_all()
            value = case.use(model, runs) if several else case.use(model)
            made = snapshot({"use": value, **model_states(model), "random": random_states()})
        except PlacewrightError as error:
            made = Raised(error)
        except Exception as error:
            made = Raised(error)
        finally:
            with contextlib.suppress(Exception):
                model.placed.remove()
    return made, {warning.category.__name__: str(warning.message) for warning in found}


@contextlib.contextmanager
def _default_settings() -> Iterator[None]:
    """What a use may leave changed in PyTorch is put back."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(False)
        torch.set_default_device(None)
        if "torch._dynamo" in sys.modules:  # a class of models has a limit of recompilations
            torch._dynamo.reset()


def draws(case: OddUse) -> bool:
    """Whether the use draws random numbers of PyTorch, which a GPU draws otherwise."""
    seed_all()
    start = torch.get_rng_state()
    own, _ = observe(case, None)
    return isinstance(own, Raised) or not torch.equal(own["random"][0], start)


def judge_isolated(case: OddUse, kind: str) -> Verdict:
    """The same in a process of its own."""
    code = (
        "import json, sys, torch; torch.set_num_threads(1)\n"
        "from attack.odd_uses import harness, table\n"
        f"verdict = harness.judge(table.CASES[{case.name!r}], {kind!r}, alone=True)\n"
        "print('verdict', json.dumps(verdict))"
    )
    tests = str(Path(__file__).parents[2])
    made = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tests,
        timeout=2 * WATCHDOG,
    )
    if made.returncode:
        last = (made.stderr.strip().splitlines() or [""])[-1]
        return Verdict("differ", [f"the process ends with {made.returncode}: {last}"])
    return Verdict(*json.loads(made.stdout.rpartition("verdict ")[2]))


def load_examples() -> None:
    """Import what PyTorch imports at the first failed export, since that draws random numbers.

    A case of its own shows it; without this, the first of the others that fails would, too.
    """
    importlib.import_module("torch._export.db.examples")


def is_skipped(case: OddUse, kind: str) -> bool:
    """Whether a use is none under this kind of plan."""
    if kind not in ("gpu", "streaming"):
        return False
    # A GPU draws other random numbers, and so does a capture on the fake one.
    return case.workers_only or (kind == "gpu" and not case.gpu) or draws(case)


def judge(case: OddUse, kind: str, alone: bool = False) -> Verdict:
    """How the model and the placed one compare."""
    if case.isolated and not alone:
        return judge_isolated(case, kind)
    if not case.isolated:
        load_examples()
    if kind == "gpu" and case.optimizer == "adam":  # which makes steps of gradients that are noise
        case = replace(case, optimizer="momentum")
    own, own_warnings = observe(case, None)
    placed, placed_warnings = observe(case, kind)
    if isinstance(placed, Raised):  # by Placewright, or by PyTorch's compiler
        if case.refusal is not None and case.refusal in placed.text:
            return Verdict("refused", [])
    elif case.must_refuse:
        text = f"the use is not refused: expected an error with {case.refusal!r}"
        return Verdict("differ", [text])
    assert not (isinstance(own, Raised) and case.refusal is None), f"the model itself fails: {own}"
    found = differences(own, placed, tolerance_of(case, kind))
    new_warnings = set(placed_warnings) - set(own_warnings) - {case.warns, "ResourceWarning"}
    if not found:
        found = [
            f"warns where the model does not: {category}: {placed_warnings[category][:200]}"
            for category in sorted(new_warnings)
            if kind != "gpu" or not any(text in placed_warnings[category] for text in GPU_WARNINGS)
        ]
    return Verdict("differ" if found else "equal", found)


def tolerance_of(case: OddUse, kind: str) -> Tolerance:
    """The case's own tolerance, or what this kind of plan needs, if that is more."""
    if kind == "gpu":
        return {dtype: max(least, case.tolerance) for dtype, least in GPU_TOLERANCE.items()}
    return max(STREAMING_TOLERANCE if kind == "streaming" else 0, case.tolerance)
