"""A framework's ops in, one by one, with their shapes; a Graph out.

What the frontends that read files and traces share: names made unique, costs from `kinds`,
subgraphs as one op, shapes that nobody knows, ops that nothing needs.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from placewright import graph
from placewright.errors import GraphError
from placewright.frontends.op_costs import (
    KNOWN,
    Tensor,
    cost,
    list_unknown,
    logger,
)
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MOST_DIMENSIONS = 64  # as numpy 2
MOST_ELEMENTS = 2**50  # so that bytes and FLOPs stay far from every limit
STORED = (WEIGHT, STATE, INPUT)


class Value(NamedTuple):
    """One tensor of a draft.

    Args:
        source: The op and output that make it; None for a literal, which no op makes.
        constant: What it holds (a numpy array), where that is known and small.
    """

    source: graph.Tensor | None
    tensor: Tensor
    constant: Any = None


def checked(what: str, shape: Iterable[int], dtype: str) -> Tensor:
    """A tensor of a plausible size.

    Raises:
        GraphError: A dimension is negative, or there are absurdly many elements or dimensions.
    """
    sizes = tuple(int(size) for size in shape)
    shown = str(sizes) if len(sizes) <= 8 else f"({', '.join(map(str, sizes[:8]))}, ...)"
    if any(size < 0 for size in sizes):
        raise GraphError(f"{what} has shape {shown}: sizes must be 0 or more")
    elements = 1
    for size in sizes:
        elements *= size
        if elements > MOST_ELEMENTS:
            raise GraphError(f"{what} has shape {shown}: expected at most 2**50 elements")
    if len(sizes) > MOST_DIMENSIONS:
        raise GraphError(f"{what} has {len(sizes)} dimensions: expected at most {MOST_DIMENSIONS}")
    return Tensor(sizes, dtype)


def check_sizes(given: Mapping[str, Iterable[int]], what: str) -> None:
    """Refuse sizes by name, as a user gives them, that are not whole numbers from 0.

    Raises:
        GraphError: The message names the first one.
    """
    for name, sizes in given.items():
        known = isinstance(sizes, Sequence) and not isinstance(sizes, str)
        if not known or any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in sizes):
            raise GraphError(f"{what} has {name!r}: {sizes!r}: expected whole numbers from 0")


@dataclass
class Draft:
    """Ops in topological order, as a frontend adds them.

    Args:
        unknown: Ops of the framework without a known cost, and how many of each.
        unsized: How to describe each op whose shape is not known, though its inputs' shapes are.
        untimed: Loops of unknown trip count.
        captured: For a child, each value of its parent that it reads: there, and here.
    """

    name: str
    framework: str
    ops: list[Op] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    unsized: list[str] = field(default_factory=list)
    untimed: list[str] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    captured: dict[graph.Tensor, tuple[Value, Value]] = field(default_factory=dict)

    def add(
        self,
        name: str,
        kind: str,
        inputs: Sequence[Value],
        outputs: Sequence[Tensor],
        *,
        moved: int | None = None,
        aliases: Sequence[tuple[int, int]] | None = None,
        module: str = "",
        phase: str = "forward",
        colocate: str | None = None,
        workspace: int = 0,
        dtype: str | None = None,
        after: Sequence[Value] = (),
        **attributes: Any,
    ) -> list[Value]:
        """Add an op and give the values it makes; what it reads, the draft must hold already.

        Args:
            kind: Of `kinds`, or the framework's own name for an op that has no cost there.
            moved: Where the table's figure is not meant.
            aliases: (output, input) pairs; by default a view is its first input's memory.
            after: What it waits for and does not read.
            attributes: What the cost of the kind depends on.
        """
        if kind not in KNOWN:
            self.unknown[kind] += 1
        real = [at for at, value in enumerate(inputs) if value.source is not None]
        if aliases is None:
            aliases = [(0, 0)] if kind == VIEW and inputs and outputs else []
        if kind == VIEW and inputs and not real:
            kind = "copy"  # of a literal: its memory must come from somewhere
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
            self.unique(name),
            kind,
            tuple(value.source for value in (*inputs, *after) if value.source is not None),
            tuple(tensor.bytes for tensor in outputs),
            flops=flops,
            moved=traffic if moved is None else moved,
            workspace=workspace,
            dtype=dtype or arithmetic([*tensors, *outputs]),
            module=module,
            phase=phase,
            colocate=colocate,
            aliases=tuple((output, real.index(at)) for output, at in aliases if at in real),
        )
        self.ops.append(op)
        return [Value((len(self.ops) - 1, at), tensor) for at, tensor in enumerate(outputs)]

    def unique(self, name: str) -> str:
        """A name, with a number behind it if an op has that name already."""
        name = name or "op"
        while name in self.names:
            self.names[name] += 1
            name = f"{name}_{self.names[name]}"
        self.names[name] = 0
        return name

    def own(self, name: str) -> str:
        """The framework's name for an op, as the kind of one that `kinds` does not know."""
        return f"{self.framework}.{name}" if name in KNOWN else name

    def child(self, name: str) -> Draft:
        """A draft for a subgraph that is to become one op of this one."""
        return Draft(name, self.framework, [], self.unknown, self.unsized, self.untimed)

    def capture(self, value: Value) -> Value:
        """A value of the parent draft, as one of this child."""
        if value.source is None:
            return value
        if value.source not in self.captured:
            op = Op(self.unique("captured"), INPUT, outputs=(value.tensor.bytes,))
            self.ops.append(op)
            own = value._replace(source=(len(self.ops) - 1, 0))
            self.captured[value.source] = (value, own)
        return self.captured[value.source][1]

    def graph(self, outputs: Sequence[Value], keep: Iterable[int] = ()) -> Graph:
        """The graph of the ops that the outputs or those to `keep` depend on, once all are known.

        Raises:
            GraphError: The shape of some op is not known.
        """
        if self.unsized:
            more = f" ({len(self.unsized) - 1} other ops too)" if len(self.unsized) > 1 else ""
            raise GraphError(self.unsized[0] + more)
        list_unknown(self.framework, self.unknown)
        if self.untimed:
            logger.warning(
                "%s loops of unknown trip count, counted as one trip: %s",
                self.framework,
                ", ".join(self.untimed[:8]) + (", ..." if len(self.untimed) > 8 else ""),
            )
        made = [value.source for value in outputs if value.source is not None]
        needed = {source for source, _ in made} | set(keep)
        for position in reversed(range(len(self.ops))):
            if position in needed:
                needed.update(source for source, _ in self.ops[position].inputs)
        place = {old: new for new, old in enumerate(sorted(needed))}
        ops = [
            replace(
                self.ops[old],
                inputs=tuple((place[source], output) for source, output in self.ops[old].inputs),
            )
            for old in place
        ]
        ends = dict.fromkeys((place[source], output) for source, output in made)
        return Graph(self.name, tuple(ops), tuple(ends))

    def enclose(
        self,
        name: str,
        bodies: Sequence[tuple[Draft, int]],
        inputs: Sequence[Value],
        outputs: Sequence[Tensor],
        *,
        module: str = "",
        phase: str = "forward",
    ) -> list[Value]:
        """Add children as one op: each child's costs, as many times as it runs."""
        read = list(inputs)
        held = {value.source for value in read}
        for child, _ in bodies:
            read += [value for source, (value, _) in child.captured.items() if source not in held]
            held.update(child.captured)
            for op in child.ops:
                if op.kind == WEIGHT:
                    stored = replace(op, name=self.unique(f"{name}.{op.name}"))
                    self.ops.append(stored)
                    size = Tensor((op.outputs[0],), "uint8")
                    read.append(Value((len(self.ops) - 1, 0), size))
        return self.add(
            name,
            "opaque",
            read,
            outputs,
            flops=sum(child.flops * trips for child, trips in bodies),
            moved=sum(child.moved * trips for child, trips in bodies),
            workspace=max((child.peak() for child, _ in bodies), default=0),
            dtype=next((child.dtype for child, _ in bodies if child.flops), None),
            module=module,
            phase=phase,
        )

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self.ops)

    @property
    def moved(self) -> int:
        return sum(op.moved for op in self.ops)

    @property
    def dtype(self) -> str:
        """The dtype of most of the arithmetic."""
        work: Counter[str] = Counter()
        for op in self.ops:
            work[op.dtype] += int(op.flops)
        return work.most_common(1)[0][0] if work else "float32"

    def peak(self) -> int:
        """Most bytes that the ops' outputs need at once, run in order."""
        last: dict[graph.Tensor, int] = {}
        for position, op in enumerate(self.ops):
            for tensor in op.inputs:
                last[tensor] = position
        freed: Counter[int] = Counter()
        live = most = 0
        for position, op in enumerate(self.ops):
            if op.kind not in STORED:
                own = {output for output, _ in op.aliases}
                for output, size in enumerate(op.outputs):
                    if output not in own:
                        live += size
                        freed[last.get((position, output), len(self.ops))] += size
                most = max(most, live + op.workspace)
            live -= freed[position]
        return most


def arithmetic(tensors: Iterable[Tensor]) -> str:
    """The dtype of an op's arithmetic: the first that is a floating-point one, or the first."""
    dtypes = [tensor.dtype for tensor in tensors]
    floating = (dtype for dtype in dtypes if "float" in dtype or "complex" in dtype)
    return next(floating, dtypes[0] if dtypes else "float32")


def words(text: str) -> frozenset[str]:
    """The words of a text: how a long list of op types is written."""
    return frozenset(text.split())


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def topological(name: str, names: Sequence[str], sources: Sequence[Iterable[int]]) -> list[int]:
    """Positions in topological order, in the given order as far as that allows.

    Raises:
        GraphError: There is a cycle; the message spells it out.
    """
    bare = [
        Op(str(at), inputs=tuple((source, 0) for source in read)) for at, read in enumerate(sources)
    ]
    if not bare:
        return []
    if all(source < at for at, read in enumerate(sources) for source in read):
        return list(range(len(bare)))
    named = [replace(op, name=label) for op, label in zip(bare, names, strict=True)]
    try:
        return [int(op.name) for op in graph.in_order(name, bare).ops]
    except GraphError:
        graph.in_order(name, named)  # the same cycle, by the names that the user knows
        raise


def summed(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """The product of the sizes that an einsum equation sums over.

    Raises:
        GraphError: The equation and the shapes do not go together.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not all(letter in string.ascii_letters for letter in right.replace("...", "", 1)):
        raise GraphError(f"einsum {equation!r} makes {right!r}: expected letters")
    sizes: dict[str, int] = {}
    if len(terms) != len(shapes):
        raise GraphError(f"einsum {equation!r} has {len(terms)} terms for {len(shapes)} inputs")
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in _labelled(term, shape):
            sizes[label] = max(size, sizes.get(label, 0))
    if not arrow:
        right = "".join(label for label in sizes if left.count(label) == 1)
    product = 1
    for label, size in sizes.items():
        product *= 1 if label in right else size
    return product


def _labelled(term: str, shape: Sequence[int]) -> Iterator[tuple[str, int]]:
    """The labels of a term with their sizes; what `...` stands for is left out."""
    head, dots, tail = term.partition("...")
    letters = string.ascii_letters
    fits = len(head) + len(tail) <= len(shape) if dots else len(head) == len(shape)
    if not fits or any(label not in letters for label in head + tail):
        raise GraphError(f"einsum term {term!r} does not fit shape {tuple(shape)}")
    yield from zip(head, shape, strict=False)
    yield from zip(tail, shape[len(shape) - len(tail) :], strict=True)
