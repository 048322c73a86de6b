"""A PyTorch model and example arguments in, a Program out: its Graph, each op of which can be run.

An op of the graph is one thing to run: `program.runner(position, device)` is a function from the
tensors that the op reads to the tensors that it makes. Nothing here decides where or when.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from placewright.errors import ConfigError, GraphError, nearest
from placewright.frontends.op_costs import OPTIMIZER
from placewright.frontends.pytorch.capture import (
    Capture,
    capture,
    returned,
)
from placewright.frontends.pytorch.graph import Draft, drawn
from placewright.frontends.pytorch.kinds import SAME
from placewright.frontends.pytorch.shapes import (
    Node,
    layout,
    op_name,
)
from placewright.frontends.pytorch.values import tensors_in
from placewright.frontends.pytorch.writes import PART
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Tensor
from placewright.runtime.program.optimizer_step import Rule, Update
from placewright.runtime.program.runners import (
    Read,
    Runner,
    View,
    attribute,
    runner,
    view_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CLONES = ("clone", "lift_fresh_copy", "_to_copy")


@dataclass(frozen=True)
class Source:
    """What exists before the step: a weight, a state or an input.

    Args:
        role: `parameter`, `buffer`, `constant` or `input`.
        names: What the model calls it; several names share one memory.
        leaf: Of an input, which leaf of the call's arguments it is; else -1.
    """

    position: int
    role: str
    names: tuple[str, ...]
    leaf: int = -1


@dataclass(frozen=True)
class Output:
    """One tensor that the model returns.

    Args:
        views: Free views to be taken of the graph's tensor.
        copied: Whether the model returns a copy of what is a weight's or a state's own memory.
    """

    tensor: Tensor
    views: tuple[View, ...] = ()
    copied: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """A graph that can be run, op by op.

    Args:
        sources: By position; what takes no turn and is no view.
        outputs: The tensors that the model returns, in the order of its own structure; of a
            training step the loss alone.
        template: What the model returns, with shapes and no data; of a training step None.
        gradients: Of a training step, the tensors that make up each weight's gradient, by name.
        rule: How a training step updates its weights.
    """

    graph: Graph
    draft: Draft = field(repr=False)
    sources: Mapping[int, Source] = field(repr=False)
    outputs: tuple[Output, ...] = field(repr=False)
    template: Any = field(default=None, repr=False)
    gradients: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict, repr=False)
    rule: Rule | None = None

    @property
    def captured(self) -> Capture:
        return self.draft.captured

    @property
    def training(self) -> bool:
        return self.rule is not None

    @property
    def changes(self) -> dict[Tensor, Tensor]:
        """Each state that a step changes, and its new value."""
        return {self.draft.home[name]: new for name, new in self.draft.changes.items()}

    @cached_property
    def inputs(self) -> dict[int, int]:
        """Which leaf of a call's arguments each input is, by position."""
        return {at: one.leaf for at, one in self.sources.items() if one.role == "input"}

    @cached_property
    def values(self) -> dict[Tensor, torch.Tensor]:
        """Shape, layout and dtype of each tensor of the graph: tensors without data."""
        found: dict[Tensor, torch.Tensor] = {}
        for node, places in self.draft.place.items():
            if node in self.draft.meanings and node not in self.draft.own:
                continue  # another name or view of a tensor
            value: Any = node.meta.get("val")
            if value is None and node.op == "get_attr":
                value = attribute(node)
            made = list(value) if isinstance(value, list | tuple) else [value]
            for place, one in zip(places, made, strict=True):
                if place is not None:
                    found.setdefault(place, one)
        for position, op in enumerate(self.graph.ops):
            if (position, 0) in found or not op.outputs:
                continue
            if op.kind == WEIGHT:  # nothing reads it
                memory = self.captured.memory[op.name]
                dtype = getattr(torch, memory.dtype)
                size = memory.bytes // dtype.itemsize
                found[position, 0] = torch.empty(size, dtype=dtype, device="meta")
            elif op.kind == "optimizer":
                found[position, 0] = torch.empty(0, device="meta")
            else:  # a written state
                found[position, 0] = found[op.inputs[1]]
        return found

    @property
    def plain(self) -> bool:
        """Whether the model returns tensors and plain values in containers that PyTorch knows."""
        leaves = pytree.tree_leaves(self.template)
        return not any(tensors_in(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor))

    def runner(
        self,
        position: int,
        device: torch.device | str,
        in_place: bool = False,
        seed: int | None = None,
    ) -> Runner:
        """A function that runs one op on a device: what it reads in, what it makes out.

        Args:
            in_place: Let an op whose output is an input's memory (`Op.aliases`) change that input;
                else it makes a changed copy.
            seed: Draw random numbers from here, on any device the same; None: as PyTorch does.

        Raises:
            GraphError: It is a weight, a state or an input; or it needs a number that is made of a
                tensor's values.
        """
        op, place = self.graph.ops[position], torch.device(device)
        if op.kind in (WEIGHT, STATE, INPUT):
            raise GraphError(f"op {op.name!r} is of kind {op.kind!r}: there is nothing to run")
        if position in self.draft.gradients:
            assert self.rule is not None
            nodes = self.draft.gradients[position]
            reads = [self._read(position, node, place) for node in nodes]
            return Update(self.rule, reads)
        if position not in self.draft.made_by:
            if op.phase == "backward":
                like = self.values[position, 0]
                return lambda values: (torch.ones(like.shape, dtype=like.dtype, device=place),)
            if in_place:
                return lambda values: (values[1].copy_(values[0].view_as(values[1])),)
            return lambda values: (values[0].to(values[1].dtype).view_as(values[1]).clone(),)
        node, what = self.draft.made_by[position], self.draft.meanings[self.draft.made_by[position]]
        if in_place and what.kind == VIEW and len(what.reads) > 1:
            return lambda values: (values[0],)  # written where it belongs already
        slots = {source: self._read(position, source, place) for source in what.reads}
        moved = in_place and any(output == 0 and source == 0 for output, source in op.aliases)
        scattered = moved and what.kind == "scatter"
        run = runner(node, slots, place, scattered, seed)
        if not in_place or scattered or op.kind == VIEW:
            return run
        return partial(_written, run, op.aliases)

    def returned(self, values: Sequence[torch.Tensor]) -> Any:
        """What the model returns, given the values of `outputs`: in the model's own structure."""
        if self.template is None:
            return values[0]
        waiting = iter(values)
        leaves, spec = pytree.tree_flatten(self.template)
        made = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                made.append(next(waiting))
            elif inside := tensors_in(leaf):
                memo: dict[int, Any] = {id(one): next(waiting) for one in inside}
                made.append(copy.deepcopy(leaf, memo))
            else:
                made.append(leaf)
        return pytree.tree_unflatten(made, spec)

    def _read(self, position: int, node: Node, device: torch.device) -> Read:
        """Where an op finds the value of a node."""
        tensor, views = resolve(self.draft, node, device)
        return Read(self.graph.ops[position].inputs.index(tensor), views)


def program_of(
    model: torch.nn.Module,
    args: Sequence[Any] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
    optimizer: str | Rule | None = None,
    name: str | None = None,
) -> Program:
    """A program of one call of a model, or of one training step; see `from_torch`.

    Args:
        optimizer: Its name, or a rule with a rate of its own.

    Raises:
        GraphError: The model cannot be exported, or what it returns cannot be told.
        ConfigError: The optimizer is unknown, or given without training.
    """
    if optimizer is not None and not training:
        raise ConfigError(f"optimizer is {optimizer!r}, but training is false: give training=True")
    rule = optimizer if isinstance(optimizer, Rule) else Rule(optimizer or "sgd")
    if rule.name not in OPTIMIZER:
        raise ConfigError(f"optimizer {rule.name!r} is unknown: {nearest(rule.name, OPTIMIZER)}")
    if not isinstance(model, torch.nn.Module):
        raise GraphError(f"model is of type {type(model).__name__!r}: expected a torch.nn.Module")
    args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    captured = capture(model, args, kwargs or {}, training)
    graph, draft = drawn(captured, name or type(model).__name__, rule.name if training else None)
    outputs = tuple(_output(draft, port.node) for port in captured.leaves if port.role == "output")
    template = None if training else _template(model, args, kwargs or {}, captured)
    if template is not None and len(tensors_in(template)) != len(outputs):
        raise GraphError(
            f"model {graph.name!r} returns {len(tensors_in(template))} tensors, its capture "
            f"{len(outputs)}: expected as many"
        )
    gradients: dict[str, tuple[Tensor, ...]] = {}
    for position, nodes in draft.gradients.items():
        weight = graph.ops[graph.ops[position].inputs[0][0]].name
        parts = (resolve(draft, node, torch.device("cpu"))[0] for node in nodes)
        gradients[weight] = tuple(parts)
    return Program(
        graph,
        draft,
        _sources(graph, draft),
        outputs,
        template,
        gradients,
        rule if training else None,
    )


def resolve(draft: Draft, node: Node, device: torch.device) -> tuple[Tensor, tuple[View, ...]]:
    """The graph's tensor that a node's value is taken from, and the free views to take of it."""
    views: list[View] = []
    while node in draft.meanings and node not in draft.own:
        what = draft.meanings[node]
        if what.kind == PART:
            break
        if what.kind != SAME:
            views.append(view_of(node, what.reads[0], device))
        node = what.reads[0]
    tensor = draft.place[node][0]
    assert tensor is not None
    if node.op == "placeholder" and tensor in draft.shown:
        sizes, steps = layout(node)
        if layout(draft.shown[tensor]) != (sizes, steps):  # another view of one memory
            views.append(lambda value: value.as_strided(sizes, steps))
    return tensor, tuple(reversed(views))


def _output(draft: Draft, node: Node) -> Output:
    tensor, views = resolve(draft, node, torch.device("cpu"))
    copied = False
    while node in draft.meanings and draft.meanings[node].kind == SAME:
        copied = copied or op_name(node) in _CLONES
        node = draft.meanings[node].reads[0]
    return Output(tensor, views, copied)


def _template(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], captured: Capture
) -> Any:
    if not captured.drafted:
        return returned(model, args, kwargs)
    with torch.no_grad():
        return model(*args, **kwargs)


def _sources(graph: Graph, draft: Draft) -> dict[int, Source]:
    captured, found = draft.captured, {}
    leaves = {name: at for at, name in reversed(list(enumerate(captured.names)))}
    names: dict[int, list[str]] = {}
    roles: dict[int, str] = {}
    for port in captured.enters:
        place = draft.place.get(port.node)
        if port.role != "tangent" and place and place[0] is not None:
            position = place[0][0]
            names.setdefault(position, []).append(port.target)
            roles.setdefault(position, port.role)
    for position, op in enumerate(graph.ops):
        if op.kind in (WEIGHT, STATE, INPUT):
            role = roles.get(position, "parameter" if op.name in captured.memory else "constant")
            called = names.get(position, [op.name])
            memory = captured.memory.get(called[0])
            called += [name for name, own in captured.memory.items() if own == memory]
            leaf = leaves[called[0]] if role == "input" else -1
            found[position] = Source(position, role, tuple(dict.fromkeys(called)), leaf)
    return found


def _written(run: Runner, aliases: Sequence[tuple[int, int]], values: Any) -> list[torch.Tensor]:
    """Run an op, then put its outputs where they belong."""
    made = list(run(values))
    for output, source in aliases:
        made[output] = values[source].copy_(made[output])
    return made
