"""GraphBuilder: collects the ops of a framework one by one and builds the Graph.

The frontends that read files and jaxprs share it: unique names, costs from `op_costs`, subgraphs as
one op, errors for unknown shapes, removal of unneeded ops.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from placewright import graph
from placewright.errors import GraphError, printable
from placewright.frontends.op_costs import (
    KNOWN_KINDS,
    TensorSpec,
    cost,
    logger,
    warn_unknown_ops,
)
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_DIMENSIONS = 64  # as in numpy 2
MAX_ELEMENTS = 2**50  # bytes and FLOPs stay far below every limit
STORED_KINDS = (WEIGHT, STATE, INPUT)


class TensorValue(NamedTuple):
    """One tensor of a graph under construction.

    Args:
        source: The op and output that produce it; None for a literal.
        constant: Its contents (a numpy array), if they are known and small.
    """

    source: graph.Tensor | None
    tensor: TensorSpec
    constant: Any = None


def tensor_spec(label: str, shape: Iterable[int], dtype: str) -> TensorSpec:
    """A tensor of a plausible size.

    Raises:
        GraphError: A dimension is negative, or there are too many elements or dimensions.
    """
    sizes = tuple(int(size) for size in shape)
    shape_text = str(sizes) if len(sizes) <= 8 else f"({', '.join(map(str, sizes[:8]))}, ...)"
    if any(size < 0 for size in sizes):
        raise GraphError(f"{label} has shape {shape_text}: sizes must be 0 or more")
    elements = 1
    for size in sizes:
        elements *= size
        if elements > MAX_ELEMENTS:
            raise GraphError(f"{label} has shape {shape_text}: expected at most 2**50 elements")
    if len(sizes) > MAX_DIMENSIONS:
        raise GraphError(f"{label} has {len(sizes)} dimensions: expected at most {MAX_DIMENSIONS}")
    return TensorSpec(sizes, dtype)


def check_sizes(sizes_by_name: Mapping[str, Iterable[int]], argument: str) -> None:
    """Refuse sizes that a user gives by name if they are not whole numbers from 0.

    Raises:
        GraphError: The message names the first one.
    """
    for name, sizes in sizes_by_name.items():
        is_sequence = isinstance(sizes, Sequence) and not isinstance(sizes, str)
        if not is_sequence or any(
            isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in sizes
        ):
            raise GraphError(f"{argument} has {name!r}: {sizes!r}: expected whole numbers from 0")


class UniqueNames:
    """Makes the names of ops unique."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next(self, name: str) -> str:
        """The name, with a number appended if it was returned before."""
        name = name or "op"
        while name in self._counts:
            self._counts[name] += 1
            name = f"{name}_{self._counts[name]}"
        self._counts[name] = 0
        return name


@dataclass
class GraphBuilder:
    """Ops in topological order, as a frontend adds them.

    Args:
        unknown_ops: Count of each op of the framework without a known cost.
        unsized_ops: A message for each op whose output shape is unknown while its input shapes
            are known.
        unbounded_loops: Loops of unknown trip count.
        captures: In a child, each value of the parent that it reads: the parent's and its own.
    """

    name: str
    framework: str
    ops: list[Op] = field(default_factory=list)
    unknown_ops: Counter[str] = field(default_factory=Counter)
    unsized_ops: list[str] = field(default_factory=list)
    unbounded_loops: list[str] = field(default_factory=list)
    names: UniqueNames = field(default_factory=UniqueNames)
    captures: dict[graph.Tensor, tuple[TensorValue, TensorValue]] = field(default_factory=dict)

    def add(
        self,
        name: str,
        kind: str,
        inputs: Sequence[TensorValue],
        outputs: Sequence[TensorSpec],
        *,
        moved: int | None = None,
        aliases: Sequence[tuple[int, int]] | None = None,
        module: str = "",
        phase: str = "forward",
        colocate: str | None = None,
        workspace: int = 0,
        dtype: str | None = None,
        control_inputs: Sequence[TensorValue] = (),
        **attributes: Any,
    ) -> list[TensorValue]:
        """Add an op whose inputs were added before, and return its outputs.

        Args:
            kind: One of `op_costs`, or the framework's own name for an op without a cost there.
            moved: Bytes moved, if not those of the table.
            aliases: (output, input) pairs; by default a view shares its first input's memory.
            control_inputs: Values that it waits for without reading them.
            attributes: Arguments of the kind's cost.
        """
        if kind not in KNOWN_KINDS:
            self.unknown_ops[kind] += 1
        real_inputs = [at for at, value in enumerate(inputs) if value.source is not None]
        if aliases is None:
            aliases = [(0, 0)] if kind == VIEW and inputs and outputs else []
        if kind == VIEW and inputs and not real_inputs:
            kind = "copy"  # a literal has no memory to share
        tensors = [value.tensor for value in inputs]
        try:
            flops, traffic = cost(kind, tensors, outputs, **attributes)
        except IndexError:
            raise GraphError(
                f"op {name!r} of kind {kind!r} reads {len(tensors)} tensors and makes "
                f"{len(outputs)}: expected more"
            ) from None
        except OverflowError:
            raise GraphError(
                f"op {name!r} of kind {kind!r} does more than can be counted"
            ) from None
        op = Op(
            self.names.next(name),
            kind,
            tuple(value.source for value in (*inputs, *control_inputs) if value.source is not None),
            tuple(tensor.bytes for tensor in outputs),
            flops=flops,
            bytes_moved=traffic if moved is None else moved,
            workspace=workspace,
            dtype=dtype or arithmetic_dtype([*tensors, *outputs], 0),
            module=module,
            phase=phase,
            colocate=colocate,
            aliases=tuple(
                (output, real_inputs.index(at)) for output, at in aliases if at in real_inputs
            ),
        )
        self.ops.append(op)
        return [TensorValue((len(self.ops) - 1, at), tensor) for at, tensor in enumerate(outputs)]

    def framework_kind(self, name: str) -> str:
        """The framework's name for an op, as the kind of an op that `op_costs` does not have."""
        return f"{self.framework}.{name}" if name in KNOWN_KINDS else name

    def child(self, name: str) -> GraphBuilder:
        """A builder for a subgraph that becomes one op of this graph."""
        return GraphBuilder(
            name, self.framework, [], self.unknown_ops, self.unsized_ops, self.unbounded_loops
        )

    @contextmanager
    def forget_on_error(self) -> Iterator[None]:
        """Forget what was recorded for warnings and errors if reading a subgraph fails."""
        unknown_ops = self.unknown_ops.copy()
        unsized_count, loop_count = len(self.unsized_ops), len(self.unbounded_loops)
        try:
            yield
        except GraphError:
            self.unknown_ops.clear()
            self.unknown_ops.update(unknown_ops)
            del self.unsized_ops[unsized_count:], self.unbounded_loops[loop_count:]
            raise

    def capture(self, value: TensorValue) -> TensorValue:
        """A value of the parent, as an input of this child."""
        if value.source is None:
            return value
        if value.source not in self.captures:
            op = Op(self.names.next("captured"), INPUT, outputs=(value.tensor.bytes,))
            self.ops.append(op)
            inner = value._replace(source=(len(self.ops) - 1, 0))
            self.captures[value.source] = (value, inner)
        return self.captures[value.source][1]

    def graph(self, outputs: Sequence[TensorValue], keep: Iterable[int] = ()) -> Graph:
        """The graph of the ops that the outputs, or the ops to `keep`, depend on.

        Raises:
            GraphError: The output shape of an op is unknown.
        """
        if self.unsized_ops:
            others = (
                f" ({len(self.unsized_ops) - 1} other ops too)" if len(self.unsized_ops) > 1 else ""
            )
            raise GraphError(self.unsized_ops[0] + others)
        warn_unknown_ops(self.framework, self.unknown_ops)
        if self.unbounded_loops:
            logger.warning(
                "%s loops of unknown trip count, counted as one trip: %s",
                self.framework,
                printable(", ".join(self.unbounded_loops[:8]))
                + (", ..." if len(self.unbounded_loops) > 8 else ""),
            )
        output_tensors = [value.source for value in outputs if value.source is not None]
        needed = {source for source, _ in output_tensors} | set(keep)
        for position in reversed(range(len(self.ops))):
            if position in needed:
                needed.update(source for source, _ in self.ops[position].inputs)
        new_position = {old: new for new, old in enumerate(sorted(needed))}
        ops = [
            replace(
                self.ops[old],
                inputs=tuple(
                    (new_position[source], output) for source, output in self.ops[old].inputs
                ),
            )
            for old in new_position
        ]
        graph_outputs = dict.fromkeys(
            (new_position[source], output) for source, output in output_tensors
        )
        return Graph(self.name, tuple(ops), tuple(graph_outputs))

    def add_subgraph(
        self,
        name: str,
        bodies: Sequence[tuple[GraphBuilder, int]],
        inputs: Sequence[TensorValue],
        outputs: Sequence[TensorSpec],
        *,
        module: str = "",
        phase: str = "forward",
    ) -> list[TensorValue]:
        """Add children as one op that costs each child times the number of its runs."""
        reads = list(inputs)
        known_sources = {value.source for value in reads}
        for child, _ in bodies:
            reads += [
                value
                for source, (value, _) in child.captures.items()
                if source not in known_sources
            ]
            known_sources.update(child.captures)
            for op in child.ops:
                if op.kind == WEIGHT:
                    weight = replace(op, name=self.names.next(f"{name}.{op.name}"))
                    self.ops.append(weight)
                    spec = TensorSpec((op.outputs[0],), "uint8")
                    reads.append(TensorValue((len(self.ops) - 1, 0), spec))
        return self.add(
            name,
            "opaque",
            reads,
            outputs,
            flops=sum(child.flops * trips for child, trips in bodies),
            moved=sum(child.bytes_moved * trips for child, trips in bodies),
            workspace=max((child.peak_bytes() for child, _ in bodies), default=0),
            dtype=next((child.dtype for child, _ in bodies if child.flops), None),
            module=module,
            phase=phase,
        )

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self.ops)

    @property
    def bytes_moved(self) -> int:
        return sum(op.bytes_moved for op in self.ops)

    @property
    def dtype(self) -> str:
        """The dtype with the most FLOPs."""
        flops_by_dtype: Counter[str] = Counter()
        for op in self.ops:
            flops_by_dtype[op.dtype] += int(op.flops)
        return flops_by_dtype.most_common(1)[0][0] if flops_by_dtype else "float32"

    def peak_bytes(self) -> int:
        """Peak bytes of the ops' outputs, run in order."""
        last_use: dict[graph.Tensor, int] = {}
        for position, op in enumerate(self.ops):
            for tensor in op.inputs:
                last_use[tensor] = position
        freed_at: Counter[int] = Counter()
        live = peak = 0
        for position, op in enumerate(self.ops):
            if op.kind not in STORED_KINDS:
                aliased = {output for output, _ in op.aliases}
                for output, size in enumerate(op.outputs):
                    if output not in aliased:
                        live += size
                        freed_at[last_use.get((position, output), len(self.ops))] += size
                peak = max(peak, live + op.workspace)
            live -= freed_at[position]
        return peak


def arithmetic_dtype(tensors: Sequence[TensorSpec], default: int) -> str:
    """The dtype of an op's arithmetic: the first floating-point or complex one.

    Args:
        default: Index of the tensor whose dtype counts if all are integers or booleans.
    """
    dtypes = [tensor.dtype for tensor in tensors] or ["float32"]
    floating = (dtype for dtype in dtypes if "float" in dtype or "complex" in dtype)
    return next(floating, dtypes[default])


def word_set(text: str) -> frozenset[str]:
    """The words of a text, for long lists of op types."""
    return frozenset(text.split())


def first_line(error: BaseException) -> str:
    """The first line of an error's text that is not blank."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def topological_order(
    name: str, names: Sequence[str], sources: Sequence[Iterable[int]]
) -> list[int]:
    """Positions in topological order, otherwise in the given order.

    Raises:
        GraphError: There is a cycle; the message spells it out.
    """
    unnamed_ops = [
        Op(str(at), inputs=tuple((source, 0) for source in reads))
        for at, reads in enumerate(sources)
    ]
    if not unnamed_ops:
        return []
    if all(source < at for at, reads in enumerate(sources) for source in reads):
        return list(range(len(unnamed_ops)))
    named_ops = [replace(op, name=label) for op, label in zip(unnamed_ops, names, strict=True)]
    try:
        return [int(op.name) for op in graph.sort_topologically(name, unnamed_ops).ops]
    except GraphError:
        graph.sort_topologically(
            name, named_ops
        )  # reports the same cycle by the names that the user knows
        raise


def contracted_size(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """The product of the sizes that an einsum equation sums over.

    Raises:
        GraphError: The equation does not match the shapes.
    """
    operands, arrow, result = equation.replace(" ", "").partition("->")
    terms = operands.split(",")
    if not all(letter in string.ascii_letters for letter in result.replace("...", "", 1)):
        raise GraphError(f"einsum {equation!r} makes {result!r}: expected letters")
    sizes: dict[str, int] = {}
    if len(terms) != len(shapes):
        raise GraphError(f"einsum {equation!r} has {len(terms)} terms for {len(shapes)} inputs")
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in _labelled_sizes(term, shape):
            sizes[label] = max(size, sizes.get(label, 0))
    if not arrow:
        result = "".join(label for label in sizes if operands.count(label) == 1)
    product = 1
    for label, size in sizes.items():
        product *= 1 if label in result else size
    return product


def _labelled_sizes(term: str, shape: Sequence[int]) -> Iterator[tuple[str, int]]:
    """The labels of a term with their sizes, without those of `...`."""
    head, dots, tail = term.partition("...")
    letters = string.ascii_letters
    fits = len(head) + len(tail) <= len(shape) if dots else len(head) == len(shape)
    if not fits or any(label not in letters for label in head + tail):
        raise GraphError(f"einsum term {term!r} does not fit shape {tuple(shape)}")
    yield from zip(head, shape, strict=False)
    yield from zip(tail, shape[len(shape) - len(tail) :], strict=True)
