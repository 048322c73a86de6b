"""A plan and a model in; the model out, which behaves as before and runs where the plan says."""

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
    Watched,
    back,
    bare,
    call_key,
)
from placewright.runtime.eager import Follow, readers_of
from placewright.runtime.executor import Executor
from placewright.runtime.micro_batches import share_states
from placewright.runtime.plan_matching import carry
from placewright.runtime.program.program import program_of
from placewright.runtime.real_devices import Place, find_places
from placewright.runtime.weight_loading import load_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from placewright.runtime.program.optimizer_step import Rule, States
    from placewright.runtime.program.program import Program

MOST_CAPTURED = 8
"""Shapes of which the captured programs are kept at a time."""


def apply(
    plan: Plan | Result | str | os.PathLike[str],
    model: torch.nn.Module,
    weights: str | os.PathLike[str] | None = None,
    where: Mapping[str, str] | None = None,
    optimizer: str | Rule | None = None,
    graphs: bool | None = None,
) -> torch.nn.Module:
    """Let a model run under a plan. The model itself is changed and given back.

    Its weights move where the plan has them. A call is captured the first time, and again for every
    other shape of arguments that comes up twice; what is not captured runs under the same placement
    function by function, and so does what needs gradients. Outputs come back on the device of the
    first tensor among the arguments. `model.placed` has the rest: `step` (a whole training step),
    `stream` (several calls in flight), `remove`.

    Args:
        plan: A plan, a result, or a file that holds one.
        weights: A safetensors file, an index of several or their folder, for a model on `meta`:
            its tensors go straight to their devices.
        where: Places of the plan's devices by name, where the names do not say them, such as
            `{"gpu0": "cuda:1"}`.
        optimizer: Of `step`: `sgd`, `momentum`, `adam` or a `Rule`.
        graphs: Whether runs of ops on a GPU are captured as CUDA graphs; None: if that is quicker.

    Raises:
        PlanError: The plan was made for another model.
        ExecutionError: A device is not here, or has no room.
        FileError: A file cannot be read.
    """
    if not isinstance(plan, Plan | Result):
        plan = files.load(plan, "plan")
    found = plan.plan if isinstance(plan, Result) else plan
    if isinstance(getattr(model, "placed", None), Placed):
        raise PlanError("the model runs under a plan already: model.placed.remove() first")
    placed = Placed(found, model, where, optimizer, graphs)
    if weights is not None:
        load_weights(model, weights, placed.homes)
    placed.settle()
    placed.install()
    return model


class Placed:
    """A model that runs under a plan: what `apply` leaves at `model.placed`."""

    def __init__(
        self,
        plan: Plan,
        model: torch.nn.Module,
        where: Mapping[str, str] | None,
        optimizer: str | Rule | None,
        graphs: bool | None,
    ) -> None:
        self.plan, self.model, self.where = plan, model, where
        self.optimizer, self.graphs = optimizer, graphs
        self.places: tuple[Place, ...] = find_places(plan.devices, where)
        self.homes = {
            name: self.places[device].torch_name
            for name, device in zip(plan.ops, plan.device.tolist(), strict=True)
        }
        self.executors: OrderedDict[Hashable, Executor] = OrderedDict()
        self.trainers: dict[Hashable, Executor] = {}
        self.states: dict[str, States] = {}  # the optimizer's, by weight: of all trainers
        self.refused: dict[Hashable, str] = {}  # shapes that cannot be captured, and why
        self.seen: set[Hashable] = set()
        self.rooms: dict[str, torch.Tensor] = {}  # staging rooms, which all programs share
        self.follow: Follow | None = None
        self.forward: Callable[..., Any] = model.forward
        self._busy = threading.RLock()
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
        if any(place.kind == "cuda" for place in self.places) and not torch.cuda.is_available():
            gone = next(place for place in self.places if place.kind == "cuda")
            raise ExecutionError(
                f"device {gone.name!r} is a CUDA device, and this machine has none: "
                f"say another place, such as where={{{gone.name!r}: 'cpu'}}"
            )

    # -- the model -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Move every parameter and buffer that the plan places to its home."""
        stored = dict(self._stored())
        placed = [(name, one) for name, one in stored.items() if name in self.homes]
        # What leaves a GPU goes first, or there might be no room for what comes.
        for name, tensor in sorted(placed, key=lambda pair: self.homes[pair[0]] != "cpu"):
            if not tensor.is_meta:
                tensor.data = tensor.data.to(self.homes[name])
        self.watched = Watched(self.model)
        self.follow = Follow(
            readers_of(self.plan, self.places, stored),
            {
                torch.device(place.torch_name): max(0, int(room))
                for place, room in zip(self.places, self._rooms(), strict=True)
            },
        )

    def _stored(self) -> list[tuple[str, torch.Tensor]]:
        return [*self.model.named_parameters(), *self.model.named_buffers()]

    def _rooms(self) -> list[int]:
        staging = self.plan.staging
        return [0] * len(self.places) if staging is None else staging.tolist()

    def install(self) -> None:
        """Let calls of the model come here."""
        model: Any = self.model
        self._own = {k: v for k, v in vars(model).items() if k in ("forward", "_apply")}
        model.placed = self
        model.forward = self._as_forward()
        self._moves = model._apply
        model._apply = self._apply
        self._hook = model.register_load_state_dict_post_hook(self._look)

    def _as_forward(self) -> Callable[..., Any]:
        @functools.wraps(self.forward)  # others ask for its arguments' names
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._call(*args, **kwargs)

        return forward

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ExecutionError(
            "a model that runs under a plan cannot be copied or pickled: copy or save it after "
            "model.placed.remove(), or save its state_dict()"
        )

    def remove(self) -> torch.nn.Module:
        """Let the model run as before; its weights stay where they are."""
        self.forget()
        model: Any = self.model
        for name in ("placed", "forward", "_apply"):
            model.__dict__.pop(name, None)
        model.__dict__.update(self._own)
        self._hook.remove()
        return self.model

    def forget(self) -> None:
        """Drop all that was captured; the next call captures anew, with the weights as they are."""
        with self._busy:
            self._drop()
            self.settle()

    def _drop(self) -> None:
        for executor in (*self.executors.values(), *self.trainers.values()):
            executor.close()
        self.executors.clear()
        self.trainers.clear()

    def _look(self, *_: object) -> None:
        """Forget what was captured if the model has changed: a module, or where a tensor lies."""
        if self.watched.changed:
            self.forget()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """The model is cast or moved: weights go home again afterwards."""
        made = self._moves(*args, **kwargs)
        self.forget()
        return made

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = dict(sorted(kwargs.items()))
        with self._busy:
            self._look()
            executor = None if self._needs_gradients(args, kwargs) else self.find(args, kwargs)
            if executor is None:
                return self._by_function(args, kwargs)
            self._finish_others(executor)
            return back(executor(*args, **kwargs), args, kwargs)

    def _finish_others(self, executor: Executor) -> None:
        """Let steps of others end that are in flight: they share their staging rooms."""
        for other in (*self.executors.values(), *self.trainers.values()):
            if other is not executor:
                other.finish()

    def _needs_gradients(self, args: Any, kwargs: Any) -> bool:
        if not torch.is_grad_enabled():
            return False
        if self.model.training:
            return any(parameter.requires_grad for parameter in self.model.parameters())
        leaves = pytree.tree_leaves((args, kwargs))
        return any(isinstance(one, torch.Tensor) and one.requires_grad for one in leaves)

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Executor | None:
        """What runs calls of this shape, captured if need be; None: it is not to be captured."""
        key = call_key(self.watched, args, kwargs)
        if key is None or key in self.refused or self.model.training:
            return None
        if key in self.executors and not self.executors[key].broken:
            self.executors.move_to_end(key)
            return self.executors[key]
        if self.seen and key not in self.seen:  # a shape that may never come again
            self.seen.add(key)
            return None
        self.seen.add(key)
        try:
            program = program_of(self.model_as_it_was(hooks=False), args, kwargs)
            if program.captured.drafted:
                raise GraphError("its branches depend on values")
            if not program.plain:  # a cache, say, which the caller hands back and we cannot read
                raise GraphError("it returns an object that PyTorch does not know")
            made = self._executor(program)
        except GraphError as error:
            self.refused[key] = str(error)
            return None
        while len(self.executors) >= MOST_CAPTURED:
            self.executors.popitem(last=False)[1].close()
        self.executors[key] = made
        return made

    def _executor(self, program: Program) -> Executor:
        """What runs a program under the plan.

        Others read weights where they lie: they are not laid out anew while there are any, and if
        one moves all the same, since it is pinned now, others are captured anew.
        """
        plan, others = carry(self.plan, program.graph), bool(self.executors or self.trainers)
        made = Executor(
            program,
            self.model,
            plan,
            self.where,
            graphs=self.graphs,
            rooms=self.rooms,
            lay_out=not others,
        )
        if self.watched.changed:
            self._drop()
            self.watched = Watched(self.model)
        return made

    def model_as_it_was(self, hooks: bool = True) -> torch.nn.Module:
        """A model whose calls do not come here, sharing all parameters and buffers."""
        return bare(self.model, ("placed", "forward", "_apply"), hooks)

    def _by_function(self, args: Any, kwargs: Any) -> Any:
        assert self.follow is not None
        self.follow.begin()
        with self.follow:
            made = self.forward(*args, **kwargs)
        return back(made, args, kwargs)

    def stream(self, calls: Iterator[tuple[Any, ...]], in_flight: int = 4) -> Iterator[Any]:
        """What the model returns for each of some calls, in order, with several in flight.

        Args:
            calls: The positional arguments of each; those of one shape that follow each other are
                in flight together.
            in_flight: How many steps may be under way at once.

        Raises:
            ExecutionError: Steps of this model change states, so that they cannot overlap.
        """
        from placewright.runtime.in_flight import in_order

        for key, several in groupby(calls, lambda args: call_key(self.watched, args, {})):
            first = next(several)
            with self._busy:
                self._look()
                self.seen.add(key)
                executor = self.find(first, {})
                if executor is None:
                    what = f"calls of this shape cannot be captured: {self.reason(first)}"
                    raise ExecutionError(what)
                self._finish_others(executor)
            steps = in_order(executor, first, several, in_flight)  # noqa: B031 - the rest of them
            while True:
                with self._busy:  # others may call meanwhile
                    found = next(steps, None)
                if found is None:
                    break
                yield back(found[1], found[0], {})

    def reason(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str:
        """Why calls of this shape are not captured, or that they are."""
        key = call_key(self.watched, args, kwargs or {})
        if key is None:
            return "an argument is neither a tensor nor a plain value"
        if key in self.refused:
            return self.refused[key]
        if self.model.training:
            return "the model is in training mode"
        if self._needs_gradients(args, kwargs or {}):
            return "an argument asks for its gradient"
        if key in self.executors:
            return "they are captured"
        return "no call of this shape has come twice"

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One training step under the plan: the loss, its gradients and the update of all weights.

        Raises:
            PlanError: The plan is not one of a training step.
        """
        with self._busy:
            self._look()
            executor = self._trainer(args, kwargs)
            self._finish_others(executor)
            made: torch.Tensor = executor(*args, **kwargs)
            return made

    def step_in_parts(
        self, parts: Iterable[tuple[Any, ...]], in_flight: int = 4
    ) -> list[torch.Tensor]:
        """One training step of a batch in parts, several of them in flight: the parts' losses.

        Args:
            parts: The positional arguments of each, all of one shape.

        Raises:
            PlanError: The plan is not one of a training step.
            ExecutionError: A step changes states beside its weights, so that parts cannot overlap.
        """
        from placewright.runtime.micro_batches import train_step

        calls = list(parts)
        with self._busy:
            self._look()
            executor = self._trainer(calls[0] if calls else (), {})
            self._finish_others(executor)
            return train_step(executor, calls, in_flight)

    def _trainer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Executor:
        """What runs training steps of this shape."""
        kwargs = dict(sorted(kwargs.items()))
        if not any(name.endswith(".update") for name in self.plan.ops):
            raise PlanError("the plan is not one of a training step: plan with --training")
        key = call_key(self.watched, args, kwargs)
        if key not in self.trainers or self.trainers[key].broken:
            program = program_of(
                self.model_as_it_was(), args, kwargs, True, self.optimizer or "sgd"
            )
            made = self._executor(program)
            share_states(made.jobs.values(), self.states)
            self.trainers[key] = made
        return self.trainers[key]
