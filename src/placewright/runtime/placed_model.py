"""The placed model: behaves as before, and runs on the devices that a plan names."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from placewright.errors import ExecutionError, PlanError
from placewright.runtime.callbacks import weak_callback
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.dynamo.backend import PlanBackend
from placewright.runtime.dynamo.model_calls import ModelCalls
from placewright.runtime.dynamo.pipeline import pipelined_calls
from placewright.runtime.dynamo.steps import NotInFlight
from placewright.runtime.dynamo.train_step import TrainStep
from placewright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from placewright.plan import Plan
    from placewright.runtime.dynamo.compiled_graph import CompiledGraph
    from placewright.runtime.planned_calls import PlannedCall
    from placewright.runtime.program.host_products import HostKernels
    from placewright.runtime.program.optimizer_step import OptimizerRule

_MISSING: Any = object()


class PlacedModel:
    """A model that runs under a plan; `apply` sets it as `model.placed`.

    Args:
        plan: It places all weights of the model.
        planned_calls: Plans for several calls, of which each graph takes the nearest; none: all
            graphs run under `plan`.
    """

    def __init__(
        self,
        plan: Plan,
        model: torch.nn.Module,
        device_map: Mapping[str, str] | None,
        optimizer: str | OptimizerRule | None = None,
        cuda_graphs: bool | None = None,
        host_kernels: HostKernels = True,
        planned_calls: Sequence[PlannedCall] = (),
    ) -> None:
        self.plan, self.model = plan, model
        self.backend = self._new_backend(device_map, cuda_graphs, host_kernels, planned_calls)
        self.torch_devices = self._torch_devices()
        self._check()
        self.calls = self._new_calls(model)
        self.part_calls = [self._new_calls(part) for part in entry_modules(model)]
        """The calls of modules of the model that a program calls by themselves."""
        for calls in self.part_calls:
            calls.eager_calls = self.calls.eager_calls
        self._saved_attributes: list[tuple[torch.nn.Module, str, Any]] = []
        self.train = self._new_train_step(optimizer)
        self.calls.on_drop = weak_callback(self.train.recapture)

    def _new_backend(
        self,
        device_map: Mapping[str, str] | None,
        cuda_graphs: bool | None,
        host_kernels: HostKernels,
        planned_calls: Sequence[PlannedCall],
    ) -> PlanBackend:
        return PlanBackend(
            self.plan,
            self.model,
            device_map,
            cuda_graphs,
            host_kernels=host_kernels,
            planned_calls=planned_calls,
        )

    def _new_calls(self, module: torch.nn.Module) -> ModelCalls:
        return ModelCalls(module, self.backend)

    def _new_train_step(self, optimizer: str | OptimizerRule | None) -> TrainStep:
        return TrainStep(self.plan, self.calls, optimizer)

    def __repr__(self) -> str:
        weights: Counter[str] = Counter()
        for _, tensor in self.backend.named_tensors():
            weights[str(tensor.device)] += tensor.nbytes
        parts = [f"{format_bytes(size)} of weights on {name}" for name, size in weights.items()]
        count = len(self.graphs)
        parts += [f"{count} graph{'s' * (count != 1)} compiled"]
        parts += [f"{calls} eager calls: {why}" for why, calls in self.eager_calls.items()]
        return f"PlacedModel({type(self.model).__name__}: {'; '.join(parts)})"

    def _torch_devices(self) -> dict[str, str]:
        """The PyTorch device of each op and weight, by name."""
        return {
            name: self.backend.real_devices[device].torch_name
            for name, device in zip(self.plan.ops, self.plan.placement.tolist(), strict=True)
        }

    @property
    def has_gpus(self) -> bool:
        """Whether one of the plan's devices is a GPU."""
        return self.calls.has_gpus

    def use_plan(self, plan: Plan, planned_calls: Sequence[PlannedCall] = ()) -> None:
        """Run under another plan for the same devices; graphs that are compiled stay.

        Args:
            plan: It places all weights of the model.
            planned_calls: Plans for several calls, of which each graph takes the nearest.
        """
        if plan.device_names != self.plan.device_names:
            raise PlanError(
                f"the plan is for the devices {', '.join(plan.device_names)}: expected "
                f"{', '.join(self.plan.device_names)}, as the model was placed for"
            )
        self.train.use_plan(plan)
        self.backend.use_plan(plan, planned_calls)
        self.backend.free_held()  # it lies where the plan before says
        self.plan = plan
        self.torch_devices = self._torch_devices()
        self.move_weights()

    def _check_weight_types(self) -> None:
        """Refuse weights that are made of other tensors: they cannot be moved one by one."""
        tensors: list[tuple[str, Any]] = list(self.backend.named_tensors())
        for name, tensor in tensors:
            if is_traceable_wrapper_subclass(tensor):
                raise PlanError(
                    f"weight {name!r} is a {type(tensor).__name__}, which is made of several "
                    "tensors: with a GPU in the plan weights must be plain tensors; place the "
                    "model before it is quantised or distributed, or plan for CPU workers"
                )

    def _check(self) -> None:
        if self.backend.has_gpus:
            self._check_weight_types()
        known = set(self.plan.ops)
        names = [name for name, _ in self.model.named_parameters()]
        missing = [name for name in names if name not in known]
        if missing and len(missing) == len(names):
            raise PlanError(
                f"the plan was made for another model: it places none of its {len(names)} "
                f"parameters, such as {missing[0]!r}"
            )
        for module in (self.model, *entry_modules(self.model)):
            if not isinstance(getattr(module, "placed", None), PlacedModel | None):
                raise PlanError(
                    f"{type(module).__name__!r} has an attribute 'placed' of its own, the name "
                    "under which a plan is applied: give it another one"
                )
        gpu_names = [device.name for device in self.backend.real_devices if device.is_gpu]
        if gpu_names and not current_backend().device_count():
            name = gpu_names[0]
            raise ExecutionError(
                f"device {name!r} is a CUDA device, and this machine has none: "
                f"map it to another one, such as device_map={{{name!r}: 'cpu'}}"
            )

    # -- the model -----------------------------------------------------------------------------

    def move_weights(self) -> None:
        """Move every parameter and buffer that the plan places to its device."""
        targets = [
            (tensor, torch.device(self.torch_devices[name]))
            for name, tensor in self.backend.named_tensors()
            if name in self.torch_devices
        ]
        move_tensors(targets)

    def install(self) -> None:
        """Redirect the model's calls to this object."""
        model: Any = self.model
        self._model_apply = model._apply
        self.set_attributes(model, _apply=self._apply)
        for calls in (self.calls, *self.part_calls):
            self.set_attributes(calls.model, placed=self, forward=_new_forward(calls))
        if hasattr(model, "get_compiled_call"):  # which transformers calls with a static cache
            self.set_attributes(model, get_compiled_call=lambda _: model.__call__)
        if hasattr(model, "_optimize_model_for_decode"):
            # It takes another form of experts where the first weight is on a GPU: not as planned.
            self.set_attributes(model, _optimize_model_for_decode=contextlib.nullcontext)
        self._hook = model.register_load_state_dict_post_hook(self._after_load)

    def set_attributes(self, module: torch.nn.Module, **attributes: Any) -> None:
        """Set attributes of a module until `remove`."""
        for name, value in attributes.items():
            self._saved_attributes.append((module, name, vars(module).get(name, _MISSING)))
            vars(module)[name] = value

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ExecutionError(
            "a model that runs under a plan cannot be copied or pickled: copy or save it after "
            "model.placed.remove(), or save its state_dict()"
        )

    def remove(self) -> torch.nn.Module:
        """Restore the model as it was; its weights stay where they are."""
        self.recapture()
        while self._saved_attributes:
            module, name, value = self._saved_attributes.pop()
            if value is _MISSING:
                vars(module).pop(name, None)
            else:
                vars(module)[name] = value
        self._hook.remove()
        return self.model

    def recapture(self) -> None:
        """Drop all graphs; the next call is compiled again."""
        for calls in (self.calls, *self.part_calls):
            calls.drop_graphs()

    @property
    def forward(self) -> Callable[..., Any]:
        """The model's own forward, which runs without a plan."""
        return self.calls.forward

    @property
    def eager_calls(self) -> Counter[str]:
        """How many calls ran eagerly, by the reason."""
        return self.calls.eager_calls

    @property
    def predicted_seconds(self) -> dict[str, float]:
        """The predicted time of each planned call, by its name; empty: none is known."""
        return {
            call.name: call.seconds
            for call in self.backend.planned_calls
            if call.name and call.seconds
        }

    @property
    def graphs(self) -> tuple[CompiledGraph, ...]:
        """The graphs that TorchDynamo has handed over so far."""
        return tuple(self.backend.graphs)

    def _after_load(self, *_: object) -> None:
        """Move weights that were loaded to their devices."""
        self.move_weights()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Cast or move the model, and move its weights to their devices again."""
        try:
            result = self._model_apply(*args, **kwargs)
        except RuntimeError as error:
            if "Couldn't swap" not in str(error):
                raise
            raise ExecutionError(  # guards refer to the tensors
                "PyTorch cannot swap the weights of a model that is compiled: cast or move it "
                "after model.placed.remove(), or without set_swap_module_params_on_conversion"
            ) from error
        self.move_weights()
        return result

    # -- calls ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Let calls inside the block run eagerly under the placement, in this thread or another.

        What a compiled call cannot do works there, such as a backward pass of a backward pass.
        """
        with contextlib.ExitStack() as stack:
            for calls in (self.calls, *self.part_calls):
                stack.enter_context(calls.eager())
            yield

    def pipeline(self, calls: Iterable[tuple[Any, ...]], in_flight: int = 4) -> Iterator[Any]:
        """Run several calls with several steps in flight; yields their results in order.

        Args:
            calls: The positional arguments of each call.
            in_flight: How many steps may be in flight at once.

        Results before a call that fails come before its error. A call that is not one graph runs
        alone, in its turn.

        Raises:
            ExecutionError: A call computes nothing, or steps of this model change states, so that
                they cannot overlap.
        """

        def run(args: tuple[Any, ...]) -> Any:
            self.calls.follow_code()
            reason = self.calls.reason_of_hooks()
            if reason:
                raise NotInFlight(reason)
            return self.calls.run_whole(self.calls.compiled, args)

        return pipelined_calls(self.backend, run, lambda args: self.model(*args), calls, in_flight)

    def train_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run one training step under the plan: loss, gradients and the update of all weights.

        Modules keep their own modes, and weights that require no gradient stay as they are. The
        loss is the first floating-point output, summed unless it is a scalar.

        Raises:
            PlanError: The plan is not for a training step.
        """
        return self.train.step(args, kwargs)

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
        return self.train.micro_batches(micro_batches, in_flight)


@torch.no_grad()
def move_tensors(targets: Iterable[tuple[torch.Tensor, torch.device]]) -> None:
    """Move tensors to devices; those on `meta` have no numbers, and stay."""
    # Weights that leave a GPU move first: both might not fit.
    for tensor, device in sorted(targets, key=lambda pair: str(pair[1]) != "cpu"):
        if tensor.device != device and not tensor.is_meta:
            tensor.data = tensor.data.to(device)


def entry_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules of a model that a program calls by themselves: the encoder of an encoder-decoder.

    `generate` of transformers calls it once for each prompt.
    """
    is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    encoder = getattr(model, "get_encoder", lambda: None)() if is_encoder_decoder else None
    return [encoder] if isinstance(encoder, torch.nn.Module) and encoder is not model else []


def _new_forward(calls: ModelCalls) -> Callable[..., Any]:
    @functools.wraps(calls.forward)  # libraries read its signature
    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return calls.forward(*args, **kwargs)  # the caller compiles it
        return calls(args, kwargs)

    return forward
