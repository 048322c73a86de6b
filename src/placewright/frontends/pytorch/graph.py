"""A captured PyTorch graph in, a Graph out: nodes become ops with costs, names, modules, phases."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from placewright.errors import GraphError
from placewright.frontends import op_costs
from placewright.frontends.pytorch.errors import at_op
from placewright.frontends.pytorch.kinds import SAME
from placewright.frontends.pytorch.shapes import (
    guessed,
    op_name,
    tensors,
)
from placewright.frontends.pytorch.writes import (
    PART,
    changed,
    meanings,
    writes,
)
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.frontends.pytorch.capture import (
        Capture,
        Memory,
        Port,
    )
    from placewright.frontends.pytorch.kinds import Meaning
    from placewright.frontends.pytorch.shapes import Node

STATES = {"sgd": 0, "momentum": 1, "adam": 2}
"""How many tensors as large as a weight an optimizer keeps for it."""


def build(captured: Capture, name: str, optimizer: str | None) -> Graph:
    """The graph of a capture; with an optimizer, its updates too.

    Raises:
        GraphError: The model makes no tensor, or a training step has no backward ops.
    """
    return drawn(captured, name, optimizer)[0]


def drawn(captured: Capture, name: str, optimizer: str | None) -> tuple[Graph, Draft]:
    """The graph of a capture, and the draft that still knows which node became which op."""
    draft = Draft(captured)
    draft.add_sources()
    draft.add_nodes()
    outputs = draft.outputs()
    if not outputs:
        raise GraphError(f"model {name!r} returns no tensor: there is nothing to compute")
    if optimizer is not None:
        if not any(op.phase == "backward" for op in draft.ops):
            raise GraphError(
                f"model {name!r} has no backward ops: no parameter that requires a gradient "
                "reaches its first floating-point output"
            )
        draft.add_updates(optimizer)
    op_costs.list_unknown("torch", draft.unknown)
    open_sizes = sum(guessed(node) for node in draft.meanings)
    if open_sizes:
        op_costs.logger.warning(
            "%d ops of %r make tensors whose sizes depend on values: taken at their largest",
            open_sizes,
            name,
        )
    return Graph(name, tuple(draft.ops), outputs), draft


class Draft:
    """A graph that is being written, op by op."""

    def __init__(self, captured: Capture) -> None:
        self.captured = captured
        self.meanings = meanings(captured)
        self.read = {source for what in self.meanings.values() for source in what.reads}
        self.ops: list[Op] = []
        self.taken: Counter[str] = Counter()  # how often each name was asked for
        self.unknown: Counter[str] = Counter()
        self.place: dict[Node, list[Tensor | None]] = {}  # where the outputs of a node stand
        self.home: dict[str, Tensor] = {}  # where a weight, state or input stands, by name
        self.forward: dict[int, Op] = {}  # autograd's number → the forward op that has it
        self.made_by: dict[int, Node] = {}  # the node that an op was made of
        self.own: set[Node] = set()  # the nodes that are ops
        self.shown: dict[Tensor, Node] = {}  # the node whose shape a source has
        self.changes: dict[str, Tensor] = {}  # a changed state's new value, by the state's name
        self.gradients: dict[int, list[Node]] = {}  # what an update reads

    def add_sources(self) -> None:
        """What exists before the step: weights, states, constants and inputs."""
        changes = changed(self.captured)
        stored: dict[Memory, Tensor] = {}
        for port in self.captured.enters:
            made = tensors(port.node)[0]
            unread = port.node not in self.read and port.target not in changes
            if made is None or port.role == "tangent" or (port.role == "buffer" and unread):
                continue
            memory = self.captured.memory.get(port.target)
            if memory is None or memory not in stored:
                kind = INPUT if port.role == "input" else WEIGHT
                kind = STATE if port.target in changes else kind
                tensor = self._add_source(port.target, kind, made.bytes, made.dtype)
                if memory is not None:
                    stored[memory] = tensor
            else:
                tensor = stored[memory]  # another name of the same weight
            self.place[port.node] = [tensor]
            self.home[port.target] = tensor
            self.shown.setdefault(tensor, port.node)
        for target in self.captured.parameters:
            memory = self.captured.memory[target]
            if memory not in stored:  # nothing reads it, yet it takes room
                stored[memory] = self._add_source(target, WEIGHT, memory.bytes, memory.dtype)

    def _add_source(self, name: str, kind: str, size: int, dtype: str) -> Tensor:
        module = name.rpartition(".")[0]
        return self._add(Op(name, kind, outputs=(size,), dtype=dtype, module=module))

    def _add(self, op: Op) -> Tensor:
        """Add an op under a name that no other has."""
        name = op.name
        while name in self.taken:
            name = f"{op.name}_{self.taken[op.name]}"
            self.taken[op.name] += 1
        self.taken[name] = 1
        self.ops.append(op if name == op.name else replace(op, name=name))
        return len(self.ops) - 1, 0

    def add_nodes(self) -> None:
        """Every node's op, and every changed state's write as soon as it may be."""
        due = writes(self.captured, self.meanings)
        for port in due.pop(None, ()):
            self._add_change(port)
        for node, what in self.meanings.items():
            if what.kind == PART:
                output = int(str(node.args[1]))
                self.place[node] = [self.place[what.reads[0]][output]]
            elif what.kind == SAME:
                self.place[node] = [self._tensor(what.reads[0])]
            else:
                with at_op(op_name(node)):
                    self._add_node(node, what)
            for port in due.get(node, ()):
                self._add_change(port)

    def _add_node(self, node: Node, what: Meaning) -> None:
        inputs = tuple(self._tensor(source) for source in what.reads)
        made = tensors(node)
        sizes = tuple(tensor.bytes for tensor in made if tensor)
        if what.kind == VIEW and self._whole_weight(inputs[0], sizes):
            self.place[node] = [inputs[0]]
            return
        if what.kind not in op_costs.KNOWN:
            self.unknown[what.kind] += 1
        read = [one for source in what.reads if (one := tensors(source)[0])]
        flops, moved = op_costs.cost(
            what.kind, read, [one for one in made if one], **what.attributes
        )
        module, phase = self._module(node, inputs), _phase(node)
        name = self._name(node, module, phase)
        aliases = what.aliases
        if what.kind == VIEW and not aliases:
            aliases = tuple((output, 0) for output in range(len(sizes)))
        position, _ = self._add(
            Op(
                name,
                what.kind,
                tuple(dict.fromkeys(inputs)),
                sizes,
                flops,
                moved,
                dtype=_dtype([*read, *(one for one in made if one)]),
                module=module,
                phase=phase,
                aliases=aliases,
            )
        )
        if phase == "forward":
            self.forward.setdefault(node.meta.get("seq_nr", -1), self.ops[position])
        self.made_by[position] = node
        self.own.add(node)
        outputs = iter(range(len(sizes)))
        self.place[node] = [(position, next(outputs)) if one else None for one in made]

    def _tensor(self, node: Node) -> Tensor:
        """Where a node that is read stands; constants and the loss's gradient come when needed."""
        if node not in self.place:
            (made,) = tensors(node)
            assert made is not None
            if node.op == "get_attr":
                self.place[node] = [
                    self._add_source(str(node.target), WEIGHT, made.bytes, made.dtype)
                ]
            else:
                loss = next(port.node for port in self.captured.leaves if port.role == "output")
                one = Op("loss.backward.ones", "copy", (self._tensor(loss),), (made.bytes,))
                one = replace(one, moved=made.bytes, dtype=made.dtype, phase="backward")
                self.place[node] = [self._add(one)]
        tensor = self.place[node][0]
        assert tensor is not None
        return tensor

    def _whole_weight(self, tensor: Tensor, sizes: tuple[int, ...]) -> bool:
        """Whether a view of these sizes shows all of a weight: its readers read the weight."""
        op = self.ops[tensor[0]]
        return op.kind == WEIGHT and sizes == op.outputs

    def _module(self, node: Node, inputs: Sequence[Tensor]) -> str:
        """The path of the module that a node belongs to, or that what it reads belongs to."""
        stack = _modules(node)
        if stack:
            path = re.sub(r"@\d+", "", list(stack.values())[-1][0])
            prefix = self.captured.prefix
            return "" if path + "." == prefix else path.removeprefix(prefix)
        return self.ops[inputs[-1][0]].module if inputs else ""

    def _name(self, node: Node, module: str, phase: str) -> str:
        """Its module's path and its own name; of a backward op, its forward op's name before it.

        Sums of gradients have no forward op.
        """
        name = _short(op_name(node))
        if phase == "forward":
            return f"{module}.{name}" if module else name
        forward = self.forward.get(node.meta.get("seq_nr", -1)) if _modules(node) else None
        owner = forward.name if forward and forward.module == module else module
        name = re.sub(r"^(.*_)?backward(_data)?$", "", name)
        return ".".join(part for part in (owner, "backward", name) if part)

    def _add_change(self, port: Port) -> None:
        """Let the op that makes a state's new value write it in place, or else a copy."""
        state, (position, output) = self.home[port.target], self._tensor(port.node)
        self.changes[port.target] = (position, output)
        op, stored = self.ops[position], self.ops[state[0]]
        (size,) = stored.outputs
        free = output not in [made for made, _ in op.aliases] and op.kind != VIEW
        if state in op.inputs and free and op.outputs[output] == size:
            aliases = (*op.aliases, (output, op.inputs.index(state)))
            self.ops[position] = replace(op, aliases=aliases)
        elif not self._written(position, output, state):
            self.changes[port.target] = self._add(
                Op(
                    f"{port.target}.write",
                    "copy",
                    ((position, output), state),
                    (size,),
                    moved=op.outputs[output] + size,
                    dtype=stored.dtype,
                    module=stored.module,
                    aliases=((0, 1),),
                )
            )

    def _written(self, position: int, output: int, state: Tensor) -> bool:
        """Whether a tensor is the state's own memory already."""
        while (position, output) != state:
            op = self.ops[position]
            source = dict(op.aliases).get(output)
            if source is None:
                return False
            position, output = op.inputs[source]
        return True

    def outputs(self) -> tuple[Tensor, ...]:
        """What the model returns, and gradients of inputs."""
        inputs = {port.target for port in self.captured.enters if port.role == "input"}
        kept = [
            self._tensor(port.node)
            for port in self.captured.leaves
            if port.role == "output" or (port.role == "gradient" and port.target in inputs)
        ]
        return tuple(dict.fromkeys(kept))

    def add_updates(self, optimizer: str) -> None:
        """One update for each weight that gets a gradient, on the weight's device."""
        gradients: dict[Tensor, list[Node]] = {}
        for port in self.captured.leaves:
            if port.role == "gradient" and self.ops[self.home[port.target][0]].kind == WEIGHT:
                gradients.setdefault(self.home[port.target], []).append(port.node)
        for weight, nodes in gradients.items():
            parts = [self._tensor(node) for node in nodes]
            stored = self.ops[weight[0]]
            self.ops[weight[0]] = replace(stored, colocate=stored.name)
            size = stored.outputs[0]
            one = op_costs.Tensor((size * 8 // op_costs.bits(stored.dtype),), stored.dtype)
            states = STATES[optimizer]
            flops, moved = op_costs.cost(
                "optimizer",
                [one] * (1 + len(parts) + states),
                [one] * (1 + states),
                ops=op_costs.OPTIMIZER[optimizer],
            )
            position, _ = self._add(
                Op(
                    f"{stored.name}.update",
                    "optimizer",
                    (weight, *parts),
                    flops=flops,
                    moved=moved,
                    resident=states * size,
                    dtype=stored.dtype,
                    module=stored.module,
                    phase="update",
                    colocate=stored.name,
                )
            )
            self.gradients[position] = nodes


def _short(name: str) -> str:
    """An op's name without what PyTorch adds to tell its own variants apart."""
    if "scaled_dot_product" in name:
        return "attention_backward" if name.endswith("_backward") else "attention"
    name = name.replace("::", ".").strip("_").removeprefix("native_")
    return re.sub(r"_legit\w*", "", name)


def _modules(node: Node) -> Mapping[str, tuple[str, str]] | None:
    """The modules, outermost first, in whose call a node or its forward op was made."""
    return node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")


def _phase(node: Node) -> str:
    return "backward" if node.meta.get("partitioner_tag") == "is_backward" else "forward"


def _dtype(tensors: Sequence[op_costs.Tensor]) -> str:
    """The dtype of the arithmetic: of the first tensor that is no whole number or truth."""
    for tensor in tensors:
        if "float" in tensor.dtype or "complex" in tensor.dtype:
            return tensor.dtype
    return tensors[-1].dtype
