"""The placed model: behaves as before, and runs on the devices that a plan names."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from placewright import files
from placewright.errors import ExecutionError, GraphError, PlanError
from placewright.plan import Plan
from placewright.result import Result
from placewright.runtime.call_cache import (
    ModelFingerprint,
    call_key,
    to_caller_device,
    unplaced_copy,
)
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.eager_fallback import EagerPlacement, find_compute_devices
from placewright.runtime.executor import Executor
from placewright.runtime.micro_batches import share_optimizer_states
from placewright.runtime.plan_matching import match_plan
from placewright.runtime.program.program import build_program
from placewright.runtime.real_devices import RealDevice, find_real_devices
from placewright.runtime.weight_loading import load_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from placewright.runtime.program.optimizer_step import OptimizerRule, OptimizerState
    from placewright.runtime.program.program import Program

MAX_CAPTURED = 8
"""How many captured programs are kept at a time, one per shape of arguments."""


def apply(
    plan: Plan | Result | str | os.PathLike[str],
    model: torch.nn.Module,
    weights: str | os.PathLike[str] | None = None,
    device_map: Mapping[str, str] | None = None,
    optimizer: str | OptimizerRule | None = None,
    cuda_graphs: bool | None = None,
) -> torch.nn.Module:
    """Let a model run under a plan. The model itself is changed and returned.

    Its weights move to the devices that the plan names. The first call is captured, and so is every
    other shape of arguments that occurs twice. Other calls, and those that need gradients, run
    eagerly under the same placement. Outputs are on the device of the first tensor among the
    arguments. `model.placed` has the rest: `train_step` (a whole training step), `pipeline`
    (several calls in flight), `remove`.

    Args:
        plan: A plan, a result, or a file that holds one.
        weights: A safetensors file, an index of several or their folder, for a model on `meta`:
            its tensors go straight to their devices.
        device_map: Real devices of some of the plan's devices, by name, such as
            `{"gpu0": "cuda:1"}`; the others are found by name.
        optimizer: The optimizer of `train_step`: `sgd`, `momentum`, `adam` or an `OptimizerRule`.
        cuda_graphs: Whether runs of ops on a GPU are captured as CUDA graphs; None: if that is
            faster.

    Raises:
        PlanError: The plan was made for another model.
        ExecutionError: A device is missing, or has too little memory.
        FileError: A file cannot be read.
    """
    if not isinstance(plan, Plan | Result):
        plan = files.load(plan, "plan")
    bare_plan = plan.plan if isinstance(plan, Result) else plan
    if isinstance(getattr(model, "placed", None), PlacedModel):
        raise PlanError("the model runs under a plan already: model.placed.remove() first")
    placed_model = PlacedModel(bare_plan, model, device_map, optimizer, cuda_graphs)
    if weights is not None:
        load_weights(model, weights, placed_model.torch_devices)
    placed_model.move_weights()
    placed_model.install()
    return model


class PlacedModel:
    """A model that runs under a plan; `apply` sets it as `model.placed`."""

    def __init__(
        self,
        plan: Plan,
        model: torch.nn.Module,
        device_map: Mapping[str, str] | None,
        optimizer: str | OptimizerRule | None,
        cuda_graphs: bool | None,
    ) -> None:
        self.plan, self.model, self.device_map = plan, model, device_map
        self.optimizer, self.cuda_graphs = optimizer, cuda_graphs
        self.real_devices: tuple[RealDevice, ...] = find_real_devices(plan.device_names, device_map)
        self.torch_devices = {
            name: self.real_devices[device].torch_name
            for name, device in zip(plan.ops, plan.placement.tolist(), strict=True)
        }
        self.executors: OrderedDict[Hashable, Executor] = OrderedDict()
        self.train_executors: dict[Hashable, Executor] = {}
        self.optimizer_states: dict[str, OptimizerState] = {}  # by weight, shared by all programs
        self.capture_errors: dict[Hashable, str] = {}  # shapes that cannot be captured, and why
        self.call_keys: set[Hashable] = set()
        self.staging_buffers: dict[str, torch.Tensor] = {}  # shared by all programs
        self.eager: EagerPlacement | None = None
        self.forward: Callable[..., Any] = model.forward
        self._lock = threading.RLock()
        self._check()

    def _check(self) -> None:
        known = set(self.plan.ops)
        names = [name for name, _ in self.model.named_parameters()]
        missing = [name for name in names if name not in known]
        if missing and len(missing) == len(names):
            raise PlanError(
                f"the plan was made for another model: it places none of its {len(names)} "
                f"parameters, such as {missing[0]!r}"
            )
        if (
            any(real_device.is_gpu for real_device in self.real_devices)
            and not current_backend().device_count()
        ):
            cuda_device = next(
                real_device for real_device in self.real_devices if real_device.is_gpu
            )
            raise ExecutionError(
                f"device {cuda_device.name!r} is a CUDA device, and this machine has none: "
                f"map it to another one, such as device_map={{{cuda_device.name!r}: 'cpu'}}"
            )

    # -- the model -----------------------------------------------------------------------------

    def move_weights(self) -> None:
        """Move every parameter and buffer that the plan places to its device."""
        tensors = dict(self._named_tensors())
        targets = [
            (name, stored_tensor)
            for name, stored_tensor in tensors.items()
            if name in self.torch_devices
        ]
        # Weights that leave a GPU move first: both might not fit.
        for name, tensor in sorted(targets, key=lambda pair: self.torch_devices[pair[0]] != "cpu"):
            if not tensor.is_meta:
                tensor.data = tensor.data.to(self.torch_devices[name])
        self.fingerprint = ModelFingerprint(self.model)
        self.eager = EagerPlacement(
            find_compute_devices(self.plan, self.real_devices, tensors),
            {
                torch.device(real_device.torch_name): max(0, int(size))
                for real_device, size in zip(self.real_devices, self._staging_sizes(), strict=True)
            },
        )

    def _named_tensors(self) -> list[tuple[str, torch.Tensor]]:
        return [*self.model.named_parameters(), *self.model.named_buffers()]

    def _staging_sizes(self) -> list[int]:
        staging = self.plan.staging
        return [0] * len(self.real_devices) if staging is None else staging.tolist()

    def install(self) -> None:
        """Redirect the model's calls to this object."""
        model: Any = self.model
        self._saved_attributes = {
            k: v for k, v in vars(model).items() if k in ("forward", "_apply")
        }
        model.placed = self
        model.forward = self._new_forward()
        self._model_apply = model._apply
        model._apply = self._apply
        self._hook = model.register_load_state_dict_post_hook(self._recapture_if_changed)

    def _new_forward(self) -> Callable[..., Any]:
        @functools.wraps(self.forward)  # libraries read its signature
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._call(*args, **kwargs)

        return forward

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ExecutionError(
            "a model that runs under a plan cannot be copied or pickled: copy or save it after "
            "model.placed.remove(), or save its state_dict()"
        )

    def remove(self) -> torch.nn.Module:
        """Restore the model as it was; its weights stay where they are."""
        self.recapture()
        model: Any = self.model
        for name in ("placed", "forward", "_apply"):
            model.__dict__.pop(name, None)
        model.__dict__.update(self._saved_attributes)
        self._hook.remove()
        return self.model

    def recapture(self) -> None:
        """Drop all captured programs; the next call is captured again, with the current weights."""
        with self._lock:
            self._close_executors()
            self.move_weights()

    def _close_executors(self) -> None:
        for executor in (*self.executors.values(), *self.train_executors.values()):
            executor.close()
        self.executors.clear()
        self.train_executors.clear()

    def _recapture_if_changed(self, *_: object) -> None:
        """Drop captured programs if a module or the address of a tensor has changed."""
        if self.fingerprint.changed:
            self.recapture()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Cast or move the model, and move its weights to their devices again."""
        result = self._model_apply(*args, **kwargs)
        self.recapture()
        return result

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(sorted(kwargs.items()))
        with self._lock:
            self._recapture_if_changed()
            executor = (
                None if self._needs_gradients(args, kwargs) else self.find_executor(args, kwargs)
            )
            if executor is None:
                return self._run_eager(args, kwargs)
            self._finish_others(executor)
            return to_caller_device(executor(*args, **kwargs), args, kwargs)

    def _finish_others(self, executor: Executor) -> None:
        """Wait for steps of other programs in flight: they share the staging buffers."""
        for other in (*self.executors.values(), *self.train_executors.values()):
            if other is not executor:
                other.finish_steps()

    def _needs_gradients(self, args: Any, kwargs: Any) -> bool:
        if not torch.is_grad_enabled():
            return False
        if self.model.training:
            return any(parameter.requires_grad for parameter in self.model.parameters())
        leaves = pytree.tree_leaves((args, kwargs))
        return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)

    def find_executor(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Executor | None:
        """The executor of calls of this shape, captured if necessary; None: they run eagerly."""
        key = call_key(self.fingerprint, args, kwargs)
        if key is None or key in self.capture_errors or self.model.training:
            return None
        if key in self.executors and not self.executors[key].broken:
            self.executors.move_to_end(key)
            return self.executors[key]
        if self.call_keys and key not in self.call_keys:  # a shape that may not occur again
            self.call_keys.add(key)
            return None
        self.call_keys.add(key)
        try:
            program = build_program(self.unplaced_model(hooks=False), args, kwargs)
            if program.capture.value_dependent:
                raise GraphError("its branches depend on values")
            if not program.has_plain_outputs:  # for example a cache, which the next call passes in
                raise GraphError("it returns an object that PyTorch does not know")
            executor = self._new_executor(program)
        except GraphError as error:
            self.capture_errors[key] = str(error)
            return None
        while len(self.executors) >= MAX_CAPTURED:
            self.executors.popitem(last=False)[1].close()
        self.executors[key] = executor
        return executor

    def _new_executor(self, program: Program) -> Executor:
        """An executor of a program under the plan.

        Other executors hold the addresses of weights. So weights are not packed while there are
        others; and if a weight moves nevertheless, since it is pinned now, the others are dropped.
        """
        plan, has_others = (
            match_plan(self.plan, program.graph),
            bool(self.executors or self.train_executors),
        )
        executor = Executor(
            program,
            self.model,
            plan,
            self.device_map,
            cuda_graphs=self.cuda_graphs,
            staging_buffers=self.staging_buffers,
            pack_weights=not has_others,
        )
        if self.fingerprint.changed:
            self._close_executors()
            self.fingerprint = ModelFingerprint(self.model)
        return executor

    def unplaced_model(self, hooks: bool = True) -> torch.nn.Module:
        """A copy of the model without the plan, which shares all parameters and buffers."""
        return unplaced_copy(self.model, ("placed", "forward", "_apply"), hooks)

    def _run_eager(self, args: Any, kwargs: Any) -> Any:
        assert self.eager is not None
        self.eager.begin_call()
        with self.eager:
            outputs = self.forward(*args, **kwargs)
        return to_caller_device(outputs, args, kwargs)

    def pipeline(self, calls: Iterator[tuple[Any, ...]], in_flight: int = 4) -> Iterator[Any]:
        """Run several calls with several steps in flight; yields their results in order.

        Args:
            calls: The positional arguments of each call; consecutive calls of one shape are in
                flight together.
            in_flight: How many steps may be in flight at once.

        Raises:
            ExecutionError: Steps of this model change states, so that they cannot overlap.
        """
        from placewright.runtime.in_flight import pipelined_results

        for key, group in groupby(calls, lambda args: call_key(self.fingerprint, args, {})):
            first_call = next(group)
            with self._lock:
                self._recapture_if_changed()
                self.call_keys.add(key)
                executor = self.find_executor(first_call, {})
                if executor is None:
                    reason = self.why_not_captured(first_call)
                    raise ExecutionError(f"calls of this shape cannot be captured: {reason}")
                self._finish_others(executor)
            results = pipelined_results(executor, first_call, group, in_flight)  # noqa: B031
            while True:
                with self._lock:  # other threads may call in between
                    item = next(results, None)
                if item is None:
                    break
                yield to_caller_device(item[1], item[0], {})

    def why_not_captured(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str:
        """Why calls of this shape are not captured."""
        key = call_key(self.fingerprint, args, kwargs or {})
        if key is None:
            return "an argument is neither a tensor nor a plain value"
        if key in self.capture_errors:
            return self.capture_errors[key]
        if self.model.training:
            return "the model is in training mode"
        if self._needs_gradients(args, kwargs or {}):
            return "an argument requires its gradient"
        if key in self.executors:
            return "they are captured"
        return "no call of this shape has occurred twice"

    def train_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run one training step under the plan: loss, gradients and the update of all weights.

        Raises:
            PlanError: The plan is not for a training step.
        """
        with self._lock:
            self._recapture_if_changed()
            executor = self._train_executor(args, kwargs)
            self._finish_others(executor)
            loss: torch.Tensor = executor(*args, **kwargs)
            return loss

    def train_micro_batches(
        self, micro_batches: Iterable[tuple[Any, ...]], in_flight: int = 4
    ) -> list[torch.Tensor]:
        """Run one training step in micro-batches, several of them in flight; their losses.

        Args:
            micro_batches: The positional arguments of each, all of one shape.

        Raises:
            PlanError: The plan is not for a training step.
            ExecutionError: A step changes states besides weights, so micro-batches cannot overlap.
        """
        from placewright.runtime.micro_batches import train_micro_batches

        calls = list(micro_batches)
        with self._lock:
            self._recapture_if_changed()
            executor = self._train_executor(calls[0] if calls else (), {})
            self._finish_others(executor)
            return train_micro_batches(executor, calls, in_flight)

    def _train_executor(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Executor:
        """The executor of training steps of this shape."""
        kwargs = dict(sorted(kwargs.items()))
        if not any(name.endswith(".update") for name in self.plan.ops):
            raise PlanError("the plan is not for a training step: plan with --training")
        key = call_key(self.fingerprint, args, kwargs)
        if key not in self.train_executors or self.train_executors[key].broken:
            program = build_program(
                self.unplaced_model(), args, kwargs, True, self.optimizer or "sgd"
            )
            executor = self._new_executor(program)
            share_optimizer_states(executor.jobs.values(), self.optimizer_states)
            self.train_executors[key] = executor
        return self.train_executors[key]
