"""Verifies a plan: outputs, gradients, devices and memory against one device.

The plan is run. Its outputs and gradients are compared with those of the model on one device, the
device of every op with the plan, and the memory of every device with the prediction.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import VerifyError
from placewright.frontends.pytorch.values import tensors_in
from placewright.graph import STATE
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.executor import Executor
from placewright.runtime.micro_batches import weight_updates
from placewright.runtime.program.sources import (
    input_tensors,
    model_tensors,
    run_on_one_device,
)
from placewright.runtime.weight_storage import gather_to_host
from placewright.simulator import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.runtime.instructions import Instruction
    from placewright.runtime.program.program import Program

TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-3,
    torch.float16: 2e-2,
    torch.bfloat16: 4e-2,
}
"""The largest difference, as a share of the largest number, that counts as rounding."""
GRADIENT_FLOOR = 1e-3
"""Gradients are compared relative to at least this share of the largest one.

The gradient of a key's bias, for example, is rounding alone.
"""

MEMORY_TOLERANCE = 0.1
"""How much more memory than predicted a device may use, as a share of the prediction."""

LIBRARY_BYTES = 64 * 2**20
"""Bytes in addition to that, which a GPU's libraries keep."""

SEED = 20_261_115


@dataclass(frozen=True)
class Verification:
    """The result of verifying a plan.

    Args:
        difference: The largest difference of an output or gradient, as a share of the largest
            number in it.
        ops: How many ops ran on the device of the plan.
        peak: The peak bytes of each device, by name.
        predicted: The simulator's prediction of them; empty without a problem.
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
    device_map: Mapping[str, str] | None = None,
    problem: Problem | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Run a plan once, and compare it with one device and with the prediction.

    The model's weights move to the plan's devices; updates of a training step are undone.

    Args:
        problem: The problem that the plan solves, to compare memory with the prediction.
        tolerance: Replaces the tolerances by dtype.

    Raises:
        VerifyError: An output, a gradient, an op's device or a device's memory differs; the message
            says which.
    """
    kwargs = dict(kwargs or {})
    gather_to_host(model)  # an earlier plan may have left its weights on several devices
    expected = expected_tensors(program, model, args, kwargs)
    saved = {
        name: tensor.detach().clone() for name, tensor in _changed_tensors(program, model).items()
    }
    monitor = _OpMonitor(program)
    gradient_tensors = [tensor for tensors in program.gradients.values() for tensor in tensors]
    errors: list[str] = []
    with Executor(
        program,
        model,
        plan,
        device_map,
        keep_tensors=gradient_tensors,
        seed=SEED,
        cuda_graphs=False,
        on_op=monitor,
    ) as executor:
        monitor.begin(executor)
        outputs = executor(*copy_tensors(args), **copy_tensors(kwargs))
        # Copies: an output may be a state that is restored below.
        actual = {
            f"output {index}": output.clone() for index, output in enumerate(tensors_in(outputs))
        }
        gradient_names = {f"the gradient of {name!r}": name for name in program.gradients}
        for label, name in gradient_names.items():
            actual[label] = sum_gradient(executor, program.gradients[name])
        peak = monitor.end(executor)
        errors += monitor.misplaced_ops(executor)
    with torch.no_grad():
        for name, value in saved.items():
            _find_tensor(model, name).copy_(value)
    difference, least = 0.0, gradient_floor(program, expected)
    for name, value in expected.items():
        floor = least if name in gradient_names else 0.0
        relative, message = compare_tensors(name, actual[name], value, tolerance, floor)
        difference = max(difference, relative)
        errors += message
    predicted = {} if problem is None else _check_peaks(problem, plan, peak, errors)
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise VerifyError(f"{errors[0]}{more}")
    return Verification(difference, monitor.op_count, peak, predicted)


def expected_tensors(
    program: Program, model: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Outputs and gradients of the unplaced model on one device; the model is left unchanged."""
    is_random = any(op.kind == "random" for op in program.graph.ops)
    if is_random:  # the model itself would draw different numbers
        sources = model_tensors(program, model) | input_tensors(program, args, kwargs)
        values = run_on_one_device(
            program, {index: leaf.cpu() for index, leaf in sources.items()}, "cpu", SEED
        )
        expected = {
            f"output {index}": values[output.tensor] for index, output in enumerate(program.outputs)
        }
        for name, tensors in program.gradients.items():
            total = sum(values[tensor] for tensor in tensors)
            assert isinstance(total, torch.Tensor)
            expected[f"the gradient of {name!r}"] = total
        return expected
    saved = {
        name: tensor.detach().clone() for name, tensor in _changed_tensors(program, model).items()
    }
    training = model.training
    model.train(program.training)
    try:
        if not program.training:
            with torch.no_grad():
                outputs = model(*copy_tensors(args), **copy_tensors(kwargs))
            return {
                f"output {index}": leaf.clone() for index, leaf in enumerate(tensors_in(outputs))
            }
        return _reference_gradients(program, model, args, kwargs)
    finally:
        model.train(training)
        with torch.no_grad():
            for name, value in saved.items():
                _find_tensor(model, name).copy_(value)


def _reference_gradients(
    program: Program, model: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, torch.Tensor]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    saved_grads = {name: parameter.grad for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    outputs = tensors_in(model(*copy_tensors(args), **copy_tensors(kwargs)))
    loss = next(output for output in outputs if output.is_floating_point())
    loss = loss.sum() if loss.dim() else loss
    loss.backward()  # type: ignore[no-untyped-call]
    expected = {"output 0": loss.detach()}
    for name in program.gradients:
        grad = parameters[name].grad
        assert grad is not None
        expected[f"the gradient of {name!r}"] = grad.detach()
    for name, parameter in parameters.items():
        parameter.grad = saved_grads[name]
    return expected


def _changed_tensors(program: Program, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that a step changes: buffers, and weights with an update."""
    ops, tensors = program.graph.ops, {}
    for position, source in program.sources.items():
        is_updated = ops[position].name in program.gradients
        if source.role != "input" and (ops[position].kind == STATE or is_updated):
            tensors[source.names[0]] = _find_tensor(model, source.names[0])
    return tensors


def _find_tensor(model: torch.nn.Module, name: str) -> torch.Tensor:
    owner: Any = model
    for part in name.split("."):
        owner = getattr(owner, part)
    tensor: torch.Tensor = owner
    return tensor.detach()


def copy_tensors(value: Any) -> Any:
    """A call's arguments with copied tensors: a step may change its arguments."""
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value
    )


def sum_gradient(executor: Executor, tensors: Sequence[Any]) -> torch.Tensor:
    """A weight's gradient, of its parts that an executor has kept."""
    total = executor.kept_tensors[tensors[0]]
    for tensor in tensors[1:]:
        total = total + executor.kept_tensors[tensor].to(total.device)
    return total


def gradient_floor(program: Program, expected: Mapping[str, torch.Tensor]) -> float:
    """The least that a difference of gradients is relative to."""
    labels = [f"the gradient of {name!r}" for name in program.gradients]
    largest = max((_largest_magnitude(expected[label]) for label in labels), default=0.0)
    return GRADIENT_FLOOR * largest


def _largest_magnitude(value: torch.Tensor) -> float:
    finite = value[value.isfinite()]
    return float(finite.abs().max().item()) if finite.numel() else 0.0


def compare_tensors(
    name: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerance: float | None = None,
    floor: float = 0.0,
) -> tuple[float, list[str]]:
    """The largest difference of two tensors, relative to the largest number, and what is wrong.

    Args:
        tolerance: Replaces the tolerance by dtype.
        floor: The least that a difference is relative to.
    """
    if actual.shape != expected.shape and actual.numel() == expected.numel():
        actual = actual.reshape(expected.shape)
    if actual.shape != expected.shape:
        return 1.0, [
            f"{name} has shape {tuple(actual.shape)}: one device gives {tuple(expected.shape)}"
        ]
    actual_values, expected_values = (
        actual.detach().cpu().double(),
        expected.detach().cpu().double(),
    )
    same = (actual_values == expected_values) | (actual_values.isnan() & expected_values.isnan())
    differences = torch.where(same, 0.0, (actual_values - expected_values).abs())
    largest = max(_largest_magnitude(expected_values), floor, 1e-6)
    relative = differences.max().item() / largest if differences.numel() else 0.0
    limit = TOLERANCE.get(expected.dtype, 0.0) if tolerance is None else tolerance
    if relative <= limit:
        return relative, []
    return relative, [
        f"{name} differs from one device's by {relative:.3g} of its largest number: "
        f"expected at most {limit:.3g}"
    ]


def _check_peaks(
    problem: Problem, plan: Plan, peaks: Mapping[str, int], errors: list[str]
) -> dict[str, int]:
    timeline = simulate(problem, plan)
    predicted = {
        device.name: int(peak_bytes)
        for device, peak_bytes in zip(problem.cluster.devices, timeline.peak, strict=True)
    }
    for name, peak_bytes in peaks.items():
        predicted_bytes = sum(predicted.get(part, 0) for part in name.split("+"))
        if peak_bytes > predicted_bytes * (1 + MEMORY_TOLERANCE) + LIBRARY_BYTES:
            errors.append(
                f"device {name!r} held {peak_bytes} bytes: the plan predicts {predicted_bytes}"
            )
    return predicted


@dataclass
class _OpMonitor:
    """Observes every op of one step: its device, and the memory that the device held."""

    program: Program
    ran_on: dict[int, str] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)

    @property
    def op_count(self) -> int:
        return len(self.ran_on)

    def begin(self, executor: Executor) -> None:
        self.executor = executor
        self.resident_bytes = {
            number: self._count_resident(executor, number) for number in executor.jobs
        }
        for real_device in executor.real_devices:
            if real_device.is_gpu:
                current_backend().synchronize(real_device.index)
                current_backend().reset_peak(real_device.index)

    def __call__(
        self, device: int, step: Any, instruction: Instruction, outputs: Sequence[torch.Tensor]
    ) -> None:
        """Note an op's device, by its tensors and the thread."""
        real_device = self.executor.real_devices[device]
        # Some ops return less than tensors.
        tensors = [tensor for tensor in outputs if isinstance(tensor, torch.Tensor)]
        torch_devices = {str(tensor.device) for tensor in tensors if tensor.numel()}
        if real_device.is_gpu:
            matches = torch_devices <= {real_device.torch_name}
            self.ran_on[instruction.position] = (
                real_device.name if matches else ", ".join(sorted(torch_devices))
            )
            return
        thread = threading.current_thread().name.removeprefix("placewright-")
        self.ran_on[instruction.position] = (
            thread if torch_devices <= {"cpu"} else ", ".join(sorted(torch_devices))
        )
        storage_bytes = {}
        for value in (*step.env.values(), *step.copies.values()):
            if isinstance(value, torch.Tensor) and not value.is_cuda:
                storage = value.untyped_storage()
                storage_bytes[storage.data_ptr()] = storage.nbytes()
        resident = self._resident_storages(device)
        total = sum(size for pointer, size in storage_bytes.items() if pointer not in resident)
        self.peak[device] = max(self.peak.get(device, 0), total)

    def _resident_storages(self, device: int) -> set[int]:
        """Addresses of resident storages, which are counted already."""
        pointers = {
            tensor.untyped_storage().data_ptr()
            for tensor in self.executor.resident[device].values()
        }
        buffer = self.executor.jobs[device].staging_buffers.find(
            self.executor.real_devices[device].name
        )
        return pointers if buffer is None else {*pointers, buffer.untyped_storage().data_ptr()}

    @staticmethod
    def _count_resident(executor: Executor, device: int) -> int:
        instructions, resident = executor.instructions.per_device[device], executor.resident[device]
        storage_bytes = {
            resident[tensor].untyped_storage().data_ptr(): resident[tensor]
            .untyped_storage()
            .nbytes()
            for tensor in instructions.resident
            if tensor in resident
        }
        return sum(storage_bytes.values()) + (
            instructions.staging.capacity if instructions.staging is not None else 0
        )

    def end(self, executor: Executor) -> dict[str, int]:
        """The peak bytes of each device."""
        peaks: dict[str, int] = {}
        gpus: dict[int, list[str]] = {}
        for number, job in executor.jobs.items():
            if job.real_device.is_gpu:
                gpus.setdefault(job.real_device.index, []).append(job.real_device.name)
                continue
            states = sum(
                state.nbytes for update in weight_updates([job]) for state in update.update.momenta
            )
            peaks[job.real_device.name] = (
                self.resident_bytes[number] + self.peak.get(number, 0) + states
            )
        for index, names in gpus.items():  # the streams of one GPU share its memory
            peaks["+".join(names)] = current_backend().peak_bytes(index)
        return peaks

    def misplaced_ops(self, executor: Executor) -> list[str]:
        """Messages about ops that ran on another device than planned, or not at all."""
        messages = []
        row_of = {name: index for index, name in enumerate(executor.plan.ops)}
        for position in executor.instructions.order:
            op = self.program.graph.ops[position]
            planned = executor.plan.device_names[executor.plan.placement[row_of[op.name]]]
            actual = self.ran_on.get(position)
            if actual != planned:
                outcome = "did not run" if actual is None else f"ran on {actual!r}"
                messages.append(f"op {op.name!r} {outcome}: the plan has it on {planned!r}")
        return messages
