"""The nodes of a GraphDef in, ops of a draft out; functions are inlined on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError, nearest
from placewright.frontends.graph_builder import (
    STORED,
    Draft,
    Value,
    checked,
    topological,
)
from placewright.frontends.graphdef.control_flow import FLOW
from placewright.frontends.graphdef.folds import fold
from placewright.frontends.graphdef.kinds import (
    SETTINGS,
    describe,
    updates,
)
from placewright.frontends.graphdef.protos import (
    constant,
    made_dtype,
    output_shapes,
    text,
)
from placewright.frontends.graphdef.scope import (
    CALLS,
    Scope,
    parse,
)
from placewright.frontends.graphdef.setup import step_only
from placewright.frontends.graphdef.shapes import infer
from placewright.frontends.op_costs import Tensor
from placewright.graph import INPUT, VIEW, WEIGHT, Graph

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_CALLS = 64  # one inside the other
MOST_NODES = 500_000  # with functions inlined: calls of calls grow fast
AGAIN = ("NextIteration", "RefNextIteration")
MERGES = ("Merge", "RefMerge")
NONE = Tensor((0,), "bool")  # what a control edge carries


class Reader:
    """Reads one GraphDef into a draft.

    Args:
        devices: The device string of each op, by its name in the graph.
    """

    def __init__(self, graph: Any, shapes: Mapping[str, Sequence[int]], draft: Draft) -> None:
        self.nodes = list(graph.node)
        self.functions = {entry.signature.name: entry for entry in graph.library.function}
        self.shapes = shapes
        self.draft = draft
        self.devices: dict[str, str] = {}
        self.calls: list[str] = []
        self.count = 0
        self.groups: dict[str, str] = {}  # colocation: each node's leader, by path and name
        self.places: dict[str, int] = {}  # where the op of a node stands, by path and name
        self.keys: dict[int, str] = {}  # and the other way round
        self.seen: set[str] = set()

    def graph(self, outputs: Sequence[str] | None) -> Graph:
        scope = Scope(self.draft)
        nodes = step_only(self.nodes) if outputs is None else self.ancestors(outputs)
        self.run(scope, nodes)
        for name in self.shapes:
            if name.partition(":")[0] not in self.seen:
                raise GraphError(f"shapes has {name!r}: {nearest(name, sorted(self.seen))}")
        self.colocate()
        ops = self.draft.ops
        if outputs is None:
            sinks = self.sinks()
            ends = [Value((at, k), NONE) for at in sinks for k in range(len(ops[at].outputs))]
            return self.draft.graph(ends, [at for at, op in enumerate(ops) if op.kind == INPUT])
        made = [
            self.stored(scope, name, at)
            for name in outputs
            for at in range(len(scope.values.get(name) or ()))
        ]
        keep = [self.places[name] for name in outputs if name in self.places]
        return self.draft.graph([value for value in made if value is not None], keep)

    def sinks(self) -> list[int]:
        """The ops that nothing reads and that are there for their own sake.

        A bare read of a variable is not, nor, where variables are updated, what differentiation
        left over.
        """
        ops = self.draft.ops
        read = {source for op in ops for source, _ in op.inputs}
        training = any(op.phase == "update" for op in ops)
        found = []
        for at, op in enumerate(ops):
            bare = op.kind == VIEW and op.inputs and ops[op.inputs[0][0]].kind == WEIGHT
            left_over = training and op.phase == "backward"
            if at not in read and op.kind not in STORED and not bare and not left_over:
                found.append(at)
        return found

    def ancestors(self, outputs: Iterable[str]) -> list[Any]:
        """The nodes that the wanted ones need."""
        known = {node.name: node for node in self.nodes}
        waiting = list(outputs)
        found = set()
        for name in waiting:
            if name not in known:
                raise GraphError(f"there is no op {name!r}: {nearest(name, known)}")
        while waiting:
            name = waiting.pop()
            if name not in found and name in known:
                found.add(name)
                waiting += [parse(entry, {}, False)[0] for entry in known[name].input]
        return [node for node in self.nodes if node.name in found]

    def run(self, scope: Scope, nodes: Sequence[Any]) -> None:
        """Add nodes, in topological order."""
        ops = {node.name: node.op for node in nodes}
        if len(ops) < len(nodes):
            [(twice, _)] = Counter(node.name for node in nodes).most_common(1)
            raise GraphError(f"two ops are named {twice!r}: names must be unique")
        position = {node.name: at for at, node in enumerate(nodes)}
        sources = []
        for node in nodes:
            names = [parse(entry, ops, scope.functional)[0] for entry in node.input]
            pairs = zip(names, node.input, strict=True)
            scope.waited.update(name for name, entry in pairs if entry.startswith("^"))
            if node.op in MERGES:
                names = [name for name in names if ops.get(name) not in AGAIN]
            sources.append(sorted({position[name] for name in names if name in position}))
        frames = {text(node, "frame_name") for node in nodes if node.op in ("Enter", "RefEnter")}
        scope.draft.untimed += sorted(frames)
        labels = [node.name for node in nodes]
        for at in topological(self.draft.name, labels, sources):
            node = nodes[at]
            self.count += 1
            if self.count > MOST_NODES:
                raise GraphError(f"its functions call for more than {MOST_NODES:,} ops")
            try:
                self.node(scope, node, ops)
            except GraphError as error:
                message = str(error)
                if not message.startswith("op "):
                    message = f"op {scope.name(node)!r} of type {node.op!r}: {message}"
                raise GraphError(message) from None

    def node(self, scope: Scope, node: Any, ops: Mapping[str, str]) -> None:
        """Add one node: inline it, compute it, or make it an op."""
        inputs: list[Value | None] = []
        read: list[tuple[str, int]] = []
        after: list[Value] = []
        for entry in node.input:
            name, at = parse(entry, ops, scope.functional)
            if node.op in MERGES and ops.get(name) in AGAIN:
                continue
            if entry.startswith("^"):
                after += [scope.done[name]] if name in scope.done else []
                continue
            if name not in scope.values:
                raise GraphError(f"it reads {name!r}, which is not in the graph")
            made = scope.values[name]
            if made is not None and not 0 <= at < len(made):
                raise GraphError(f"it reads output {at} of {name!r}, which has {len(made)}")
            inputs.append(None if made is None else made[at])
            read.append((name, at))
        self.seen.add(scope.name(node))
        self.group(scope, node)
        if node.op == "Const":
            tensor, held = constant(node.attr["value"].tensor)
            scope.values[node.name] = [Value(None, tensor, held)]
            scope.constants[node.name] = node
            return
        settings = SETTINGS.get(node.op, ())
        for at, (name, output) in enumerate(read):
            value = inputs[at]
            setting = at in settings or at - len(read) in settings
            if not setting or value is None or value.constant is None:
                inputs[at] = self.stored(scope, name, output)
        if node.op in CALLS or node.op in self.functions:
            called = node.attr["f"].func.name if node.op in CALLS else node.op
            scope.values[node.name] = list(self.call(scope, node.name, called, inputs))
            self.finish(scope, node, after)
        elif node.op in FLOW:
            FLOW[node.op](self, scope, node, inputs, after)
        else:
            self.op(scope, node, inputs, after)

    def op(
        self, scope: Scope, node: Any, inputs: Sequence[Value | None], after: Sequence[Value]
    ) -> None:
        known = [value for value in inputs if value is not None]
        outputs = self.outputs(scope, node, known, complete=len(known) == len(inputs))
        if outputs is None:
            scope.values[node.name] = None
            if len(known) == len(inputs):
                scope.draft.unsized.append(_open(node, scope.name(node)))
            return
        constants = fold(node, known, outputs)
        if constants is not None and not after:
            pairs = zip(outputs, constants, strict=True)
            scope.values[node.name] = [Value(None, tensor, array) for tensor, array in pairs]
            scope.constants[node.name] = node
            return
        kind, more = describe(node, known, outputs)
        if kind in STORED:
            known, after = [], []
        name = scope.name(node)
        there = kind in STORED or (kind == VIEW and not after and self.stands(scope, known))
        waited = node.name in scope.waited and not there
        if kind == VIEW and node.op in ("NoOp", "ControlTrigger", "TensorListReserve"):
            known = []
        if outputs and len(outputs) == len(known) > 1 and kind == VIEW:
            more["aliases"] = [(at, at) for at in range(len(outputs))]
        made = scope.draft.add(
            name,
            kind or scope.draft.own(node.op),
            known,
            [*outputs, *([NONE] if waited or not outputs else [])],
            after=after,
            module=name.rpartition("/")[0].replace("/", "."),
            phase=self.phase(scope, node, [*known, *after]),
            **more,
        )
        at = len(scope.draft.ops) - 1
        if waited:
            scope.done[node.name] = Value((at, len(outputs)), NONE)
        scope.values[node.name] = list(made[: len(outputs)])
        self.note(scope, node, at, known)

    def stands(self, scope: Scope, values: Sequence[Value]) -> bool:
        """Whether all of these are weights, or views of weights that nobody waits for."""
        ops = [scope.draft.ops[value.source[0]] for value in values if value.source is not None]
        viewed = [
            op.kind == WEIGHT
            or (op.kind == VIEW and all(scope.draft.ops[at].kind == WEIGHT for at, _ in op.inputs))
            for op in ops
        ]
        return bool(ops) and all(viewed)

    def stored(self, scope: Scope, name: str, at: int) -> Value | None:
        """A value that ops can read: a constant of several elements becomes a weight."""
        values = scope.values[name]
        value = None if values is None else values[at]
        if values is None or value is None or value.source is not None:
            return value
        if value.constant is not None and value.tensor.elements == 1:
            return value
        node = scope.constants[name]
        label = scope.name(node) + (f":{at}" if at else "")
        module = label.rpartition("/")[0].replace("/", ".")
        [made] = scope.draft.add(label, WEIGHT, (), [value.tensor], module=module)
        self.note(scope, node, len(scope.draft.ops) - 1, ())
        values[at] = made._replace(constant=value.constant)
        return values[at]

    def note(self, scope: Scope, node: Any, at: int, inputs: Sequence[Value]) -> None:
        """Keep an op's device and what it must share a device with."""
        if scope.draft is not self.draft:
            return
        self.places[scope.path + node.name] = at
        self.keys[at] = scope.path + node.name
        self.devices[self.draft.ops[at].name] = node.device
        if updates(node.op) and inputs and inputs[0].source is not None:
            root = inputs[0].source[0]
            while self.draft.ops[root].kind == VIEW and self.draft.ops[root].inputs:
                root = self.draft.ops[root].inputs[0][0]
            if self.draft.ops[root].kind == WEIGHT:
                self.join(scope.path + node.name, self.keys[root])

    def outputs(
        self, scope: Scope, node: Any, inputs: Sequence[Value], complete: bool
    ) -> list[Tensor] | None:
        """The tensors a node makes: as the user says, as it notes itself, or as its op has it."""
        name = scope.name(node)
        given = [self.shapes[key] for key in (name, f"{name}:0") if key in self.shapes]
        while given and f"{name}:{len(given)}" in self.shapes:
            given.append(self.shapes[f"{name}:{len(given)}"])
        if given:
            return [checked("it", shape, made_dtype(node, inputs)) for shape in given]
        if not complete:
            return None
        made = infer(node, inputs)
        noted = output_shapes(node)
        if made is None and noted and None not in noted:
            made = [(shape, made_dtype(node, inputs)) for shape in noted if shape is not None]
        return None if made is None else [checked("it", shape, dtype) for shape, dtype in made]

    def phase(self, scope: Scope, node: Any, inputs: Sequence[Value]) -> str:
        """The phase of an op, by its name and by what it reads."""
        if updates(node.op):
            return "update"
        steps = scope.name(node).split("/")
        if any(step.startswith(("gradients", "gradient_tape")) for step in steps):
            return "backward"
        phases = {scope.draft.ops[value.source[0]].phase for value in inputs if value.source}
        return "update" if phases & {"backward", "update"} else "forward"

    def call(
        self, scope: Scope, label: str, name: str, inputs: Sequence[Value | None]
    ) -> list[Value | None]:
        """Add the nodes of a function in place of its call."""
        if name not in self.functions:
            raise GraphError(f"it calls {name!r}, which is not in the library")
        if name in self.calls:
            raise GraphError(f"function {name!r} calls itself: that cannot be unrolled")
        if len(self.calls) == MOST_CALLS:
            raise GraphError(f"its functions call one another more than {MOST_CALLS} deep")
        function = self.functions[name]
        arguments = [entry.name for entry in function.signature.input_arg]
        if len(arguments) != len(inputs):
            raise GraphError(
                f"it calls {name!r} with {len(inputs)} arguments: expected {len(arguments)}"
            )
        inner = scope.inner(scope.draft, f"{scope.path}{label}/")
        inner.values = {key: [value] for key, value in zip(arguments, inputs, strict=True)}
        self.calls.append(name)
        self.run(inner, list(function.node_def))
        self.calls.pop()
        ops = {node.name: node.op for node in function.node_def}
        made: list[Value | None] = []
        for entry in function.signature.output_arg:
            node, at = parse(function.ret[entry.name], ops, functional=True)
            values = inner.values.get(node, [])
            if values is not None and at >= len(values):
                raise GraphError(f"function {name!r} gives {entry.name!r}, which nothing makes")
            made.append(None if values is None else values[at])
        scope.done.update({f"{label}/{key}": value for key, value in inner.done.items()})
        return made

    def finish(self, scope: Scope, node: Any, after: Sequence[Value]) -> None:
        """For those who wait for a call: all that it makes and waits for itself."""
        if node.name not in scope.waited:
            return
        made = [value for value in scope.values[node.name] or () if value is not None]
        inner = [value for key, value in scope.done.items() if key.startswith(f"{node.name}/")]
        ready = [*made, *inner, *after]
        [scope.done[node.name]] = scope.draft.add(
            f"{scope.name(node)}/done", VIEW, (), [NONE], after=ready
        )

    def group(self, scope: Scope, node: Any) -> None:
        """Note what a node's `_class` attribute says."""
        if "_class" in node.attr and scope.draft is self.draft:
            for entry in node.attr["_class"].list.s:
                label = entry.decode("utf-8", "replace")
                if label.startswith("loc:@"):
                    self.join(scope.path + node.name, scope.path + label[5:])

    def leader(self, key: str) -> str:
        while self.groups.get(key, key) != key:
            key = self.groups[key]
        return key

    def join(self, key: str, other: str) -> None:
        self.groups[self.leader(key)] = self.leader(other)

    def colocate(self) -> None:
        """Give ops that must share a device a label."""
        for key in {*self.groups, *self.groups.values()}:
            if key in self.places:
                at = self.places[key]
                self.draft.ops[at] = replace(self.draft.ops[at], colocate=self.leader(key))


def _open(node: Any, name: str) -> str:
    """What to say about a node whose shape is not known."""
    sizes = node.attr["shape"].shape.dim if "shape" in node.attr else ()
    shown = ", ".join("?" if dim.size < 0 else str(dim.size) for dim in sizes)
    filled = ", ".join("8" if dim.size < 0 else str(dim.size) for dim in sizes) or "8, 16"
    what = f"has shape ({shown})" if shown else "makes a tensor whose shape cannot be inferred"
    option = f"--dims {name}={filled.replace(', ', 'x')}"
    return (
        f"op {name!r} of type {node.op!r} {what}: give it, such as {option} or "
        f"shapes={{{name!r}: ({filled})}}"
    )
