"""A program, its model and a plan in; proof out that the plan does what it promises.

The plan is run, and its outputs and gradients are held to those of the model itself on one device,
the place of every op to the plan, and the memory of every device to what was predicted.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import VerifyError
from placewright.frontends.pytorch.values import tensors_in
from placewright.graph import STATE
from placewright.runtime.executor import Executor
from placewright.runtime.micro_batches import updates_of
from placewright.runtime.program.sources import (
    given,
    run_alone,
    stored,
)
from placewright.runtime.weight_storage import gather
from placewright.simulator import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.runtime.instructions import Turn
    from placewright.runtime.program.program import Program

TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-3,
    torch.float16: 2e-2,
    torch.bfloat16: 4e-2,
}
"""The largest difference, as a share of the largest number, that is put down to rounding."""
FLAT = 1e-3
"""A gradient below so much of the largest one is held to that: a key's bias has rounding alone."""

MEMORY = 0.1
"""How much more memory than predicted a device may use, as a share of it."""

SLACK = 64 * 2**20
"""And beyond that: what a GPU's libraries keep for themselves."""

SEED = 20_261_115


@dataclass(frozen=True)
class Verified:
    """What was seen when a plan was verified.

    Args:
        difference: The largest difference of an output or gradient, as a share of the largest
            number in it.
        ops: How many ops ran where the plan has them.
        peak: The most bytes each device held at once, by name.
        predicted: What the simulator says of that; empty where no problem was given.
    """

    difference: float
    ops: int
    peak: Mapping[str, int]
    predicted: Mapping[str, int]


def verify(
    program: Program,
    model: torch.nn.Module,
    plan: Plan,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    where: Mapping[str, str] | None = None,
    problem: Problem | None = None,
    tolerance: float | None = None,
) -> Verified:
    """Run a plan once and hold it to its promises.

    The model's weights are moved where the plan has them; a training step's updates are taken back.

    Args:
        problem: What the plan was made for, to hold memory to its prediction.
        tolerance: In place of those by dtype.

    Raises:
        VerifyError: An output, a gradient, an op's device or a device's memory is not as promised;
            the message says which.
    """
    kwargs = dict(kwargs or {})
    gather(model)  # an earlier plan may have left it on several devices
    expected = _expected(program, model, args, kwargs)
    before = {name: tensor.detach().clone() for name, tensor in _changing(program, model).items()}
    meter = _Meter(program)
    parts = [tensor for tensors in program.gradients.values() for tensor in tensors]
    wrong: list[str] = []
    with Executor(
        program, model, plan, where, keep=parts, seed=SEED, graphs=False, watch=meter
    ) as run:
        meter.begin(run)
        made = run(*_copied(args), **_copied(kwargs))
        # Copies: an output may be a state that is about to be put back.
        found = {f"output {at}": one.clone() for at, one in enumerate(tensors_in(made))}
        learned = {f"the gradient of {name!r}": name for name in program.gradients}
        for said, name in learned.items():
            found[said] = _summed(run, name, program.gradients[name])
        peak = meter.end(run)
        wrong += meter.wrong(run)
    with torch.no_grad():
        for name, value in before.items():
            _find(model, name).copy_(value)
    difference = 0.0
    steepest = max(
        (_largest(value) for name, value in expected.items() if name in learned), default=0
    )
    for name, value in expected.items():
        least = FLAT * steepest if name in learned else 0.0
        share, message = _differ(name, found[name], value, tolerance, least)
        difference = max(difference, share)
        wrong += message
    predicted = {} if problem is None else _predicted(problem, plan, peak, wrong)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise VerifyError(f"{wrong[0]}{more}")
    return Verified(difference, meter.count, peak, predicted)


def _expected(
    program: Program, model: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Outputs and gradients of the model itself, on one device, left as it was."""
    drawn = any(op.kind == "random" for op in program.graph.ops)
    if drawn:  # the model itself would draw other numbers
        sources = stored(program, model) | given(program, args, kwargs)
        values = run_alone(program, {at: one.cpu() for at, one in sources.items()}, "cpu", SEED)
        found = {f"output {at}": values[out.tensor] for at, out in enumerate(program.outputs)}
        for name, tensors in program.gradients.items():
            total = sum(values[tensor] for tensor in tensors)
            assert isinstance(total, torch.Tensor)
            found[f"the gradient of {name!r}"] = total
        return found
    before = {name: tensor.detach().clone() for name, tensor in _changing(program, model).items()}
    training = model.training
    model.train(program.training)
    try:
        if not program.training:
            with torch.no_grad():
                made = model(*_copied(args), **_copied(kwargs))
            return {f"output {at}": one.clone() for at, one in enumerate(tensors_in(made))}
        return _trained(program, model, args, kwargs)
    finally:
        model.train(training)
        with torch.no_grad():
            for name, value in before.items():
                _find(model, name).copy_(value)


def _trained(
    program: Program, model: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, torch.Tensor]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    kept = {name: parameter.grad for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    made = tensors_in(model(*_copied(args), **_copied(kwargs)))
    loss = next(one for one in made if one.is_floating_point())
    loss = loss.sum() if loss.dim() else loss
    loss.backward()  # type: ignore[no-untyped-call]
    found = {"output 0": loss.detach()}
    for name in program.gradients:
        grad = parameters[name].grad
        assert grad is not None
        found[f"the gradient of {name!r}"] = grad.detach()
    for name, parameter in parameters.items():
        parameter.grad = kept[name]
    return found


def _changing(program: Program, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a step changes: buffers, and weights that get an update."""
    ops, found = program.graph.ops, {}
    for position, source in program.sources.items():
        updated = ops[position].name in program.gradients
        if source.role != "input" and (ops[position].kind == STATE or updated):
            found[source.names[0]] = _find(model, source.names[0])
    return found


def _find(model: torch.nn.Module, name: str) -> torch.Tensor:
    owner: Any = model
    for part in name.split("."):
        owner = getattr(owner, part)
    tensor: torch.Tensor = owner
    return tensor.detach()


def _copied(value: Any) -> Any:
    """A call's arguments with tensors of their own: a step may change what it is given."""
    return torch.utils._pytree.tree_map(
        lambda one: one.clone() if isinstance(one, torch.Tensor) else one, value
    )


def _summed(run: Executor, name: str, tensors: Sequence[Any]) -> torch.Tensor:
    total = run.kept[tensors[0]]
    for tensor in tensors[1:]:
        total = total + run.kept[tensor].to(total.device)
    return total


def _largest(value: torch.Tensor) -> float:
    sound = value[value.isfinite()]
    return float(sound.abs().max().item()) if sound.numel() else 0.0


def _differ(
    name: str, made: torch.Tensor, expected: torch.Tensor, tolerance: float | None, least: float
) -> tuple[float, list[str]]:
    if made.shape != expected.shape and made.numel() == expected.numel():
        made = made.reshape(expected.shape)
    if made.shape != expected.shape:
        return 1.0, [
            f"{name} has shape {tuple(made.shape)}: one device gives {tuple(expected.shape)}"
        ]
    mine, other = made.detach().cpu().double(), expected.detach().cpu().double()
    same = (mine == other) | (mine.isnan() & other.isnan())
    apart = torch.where(same, 0.0, (mine - other).abs())
    largest = max(_largest(other), least, 1e-6)
    share = apart.max().item() / largest if apart.numel() else 0.0
    most = TOLERANCE.get(expected.dtype, 0.0) if tolerance is None else tolerance
    if share <= most:
        return share, []
    return share, [
        f"{name} differs from one device's by {share:.3g} of its largest number: "
        f"expected at most {most:.3g}"
    ]


def _predicted(
    problem: Problem, plan: Plan, peak: Mapping[str, int], wrong: list[str]
) -> dict[str, int]:
    timeline = simulate(problem, plan)
    found = {
        device.name: int(most)
        for device, most in zip(problem.cluster.devices, timeline.peak, strict=True)
    }
    for name, most in peak.items():
        promised = sum(found.get(one, 0) for one in name.split("+"))
        if most > promised * (1 + MEMORY) + SLACK:
            wrong.append(f"device {name!r} held {most} bytes: the plan promises {promised}")
    return found


@dataclass
class _Meter:
    """Sees every op of one step: where it ran, and how much memory its device held."""

    program: Program
    seen: dict[int, str] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.seen)

    def begin(self, run: Executor) -> None:
        self.run = run
        self.resident = {at: self._resident(run, at) for at in run.jobs}
        for place in run.places:
            if place.kind == "cuda":
                torch.cuda.synchronize(place.index)
                torch.cuda.reset_peak_memory_stats(place.index)

    def __call__(self, device: int, step: Any, turn: Turn, made: Sequence[torch.Tensor]) -> None:
        """Note where an op ran, as its tensors and the thread tell."""
        place = self.run.places[device]
        tensors = [one for one in made if isinstance(one, torch.Tensor)]  # some ops make less
        homes = {str(one.device) for one in tensors if one.numel()}
        if place.kind == "cuda":
            right = homes <= {place.torch_name}
            self.seen[turn.position] = place.name if right else ", ".join(sorted(homes))
            return
        thread = threading.current_thread().name.removeprefix("placewright-")
        self.seen[turn.position] = thread if homes <= {"cpu"} else ", ".join(sorted(homes))
        held = {}
        for value in (*step.env.values(), *step.copies.values()):
            if isinstance(value, torch.Tensor) and not value.is_cuda:
                storage = value.untyped_storage()
                held[storage.data_ptr()] = storage.nbytes()
        own = self._own(device)
        total = sum(size for place_of, size in held.items() if place_of not in own)
        self.peak[device] = max(self.peak.get(device, 0), total)

    def _own(self, device: int) -> set[int]:
        """Memory that is resident, so that it is not counted again."""
        found = {one.untyped_storage().data_ptr() for one in self.run.homes[device].values()}
        room = self.run.jobs[device].rooms.get(self.run.places[device].name)
        return found if room is None else {*found, room.untyped_storage().data_ptr()}

    @staticmethod
    def _resident(run: Executor, device: int) -> int:
        part, home = run.script.parts[device], run.homes[device]
        held = {
            home[tensor].untyped_storage().data_ptr(): home[tensor].untyped_storage().nbytes()
            for tensor in part.stored
            if tensor in home
        }
        return sum(held.values()) + (part.staging.room if part.staging is not None else 0)

    def end(self, run: Executor) -> dict[str, int]:
        """The most bytes that each device held."""
        found: dict[str, int] = {}
        gpus: dict[int, list[str]] = {}
        for number, job in run.jobs.items():
            if job.place.kind == "cuda":
                gpus.setdefault(job.place.index, []).append(job.place.name)
                continue
            states = sum(state.nbytes for one in updates_of([job]) for state in one.update.states)
            found[job.place.name] = self.resident[number] + self.peak.get(number, 0) + states
        for index, names in gpus.items():  # the streams of one GPU share its memory
            found["+".join(names)] = torch.cuda.max_memory_allocated(index)
        return found

    def wrong(self, run: Executor) -> list[str]:
        """What ran elsewhere than the plan says, or not at all."""
        found = []
        row = {name: at for at, name in enumerate(run.plan.ops)}
        for position in run.script.order:
            op = self.program.graph.ops[position]
            planned = run.plan.devices[run.plan.device[row[op.name]]]
            seen = self.seen.get(position)
            if seen != planned:
                ran = "did not run" if seen is None else f"ran on {seen!r}"
                found.append(f"op {op.name!r} {ran}: the plan has it on {planned!r}")
        return found
