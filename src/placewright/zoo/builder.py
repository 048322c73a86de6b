"""A network that is being written: sizes in elements go in op by op, a Graph comes out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from placewright.errors import ConfigError
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op, Tensor

BYTES = {"bfloat16": 2, "float32": 4}  # of one element
LARGEST = 2**50  # bytes of a tensor: sums over a graph stay within 64 bits


@dataclass
class Draft:
    """Ops so far, each with the weight that it reads; all of one dtype."""

    dtype: str
    ops: list[Op] = field(default_factory=list)

    def add(
        self,
        name: str,
        kind: str,
        reads: list[Tensor],
        elements: int,
        flops: int = 0,
        parameters: int = 0,
    ) -> Tensor:
        """Add an op, and before it the weight that it reads, if it has parameters.

        An op moves what it reads and what it makes once; a view moves nothing.
        """
        if parameters:
            reads = [*reads, self.add(f"{name}.weight", WEIGHT, [], parameters)]
        size = elements * BYTES[self.dtype]
        if size > LARGEST:
            raise ConfigError(f"op {name!r} would make {size:,} bytes: choose smaller sizes")
        still = kind in (WEIGHT, STATE, INPUT, VIEW)
        read = sum(self.ops[source].outputs[output] for source, output in reads)
        op = Op(
            name,
            kind,
            tuple(reads),
            (size,),
            flops=float(flops),
            moved=0 if still else read + size,
            dtype=self.dtype,
            module=name.removesuffix(".weight").rpartition(".")[0],
            aliases=((0, 0),) if kind == VIEW else (),
        )
        self.ops.append(op)
        return len(self.ops) - 1, 0

    def linear(self, name: str, read: Tensor, rows: int, width: int, out: int) -> Tensor:
        """Rows of `width` elements times a weight of width x out."""
        return self.add(name, "linear", [read], rows * out, 2 * rows * width * out, width * out)

    def convolution(
        self, name: str, read: Tensor, batch: int, side: int, channels: int, out: int, kernel: int
    ) -> Tensor:
        """A convolution that keeps the side, and the activation after it."""
        pixels, taps = batch * side * side, kernel * kernel
        made = self.add(
            f"{name}.convolution",
            "convolution",
            [read],
            pixels * out,
            2 * pixels * out * channels * taps,
            channels * out * taps,
        )
        return self.add(f"{name}.relu", "relu", [made], pixels * out, pixels * out)

    def graph(self, name: str) -> Graph:
        return Graph(name, tuple(self.ops))

    def training(self, name: str) -> Graph:
        """The forward ops, a backward pass and an update of every weight.

        The last op is the loss. An op with a weight has two gradient ops, one for the weight and
        one for what else it reads, with its own FLOPs each; any other op has one.
        """
        forward = [op for op in self.ops if op.kind not in _STILL]
        place = {op.name: at for at, op in enumerate(self.ops)}
        gradients: dict[Tensor, list[Tensor]] = {}
        last = len(self.ops) - 1
        gradients[last, 0] = [(last, 0)]
        updates: dict[int, list[Tensor]] = {}
        for op in reversed(forward):
            flow = [
                g
                for out in range(len(op.outputs))
                for g in gradients.get((place[op.name], out), [])
            ]
            if not flow:
                continue
            weights = [read for read in op.inputs if self.ops[read[0]].kind == WEIGHT]
            others = [read for read in op.inputs if self.ops[read[0]].kind not in _STILL]
            if weights:
                read = [*flow, *(each for each in op.inputs if each not in weights)]
                made = self._gradient(op, f"{op.name}.weight_gradient", read, weights)
                for weight, each in zip(weights, made, strict=True):
                    updates.setdefault(weight[0], []).append(each)
            if others:
                made = self._gradient(op, f"{op.name}.gradient", [*flow, *op.inputs], others)
                for read_, each in zip(others, made, strict=True):
                    gradients.setdefault(read_, []).append(each)
        for at, parts in updates.items():
            home = self.ops[at]
            self.ops[at] = replace(home, colocate=home.name)
            size = home.outputs[0]
            self.ops.append(
                Op(
                    f"{home.name}.update",
                    "optimizer",
                    ((at, 0), *parts),
                    (0,),
                    flops=2.0 * size / BYTES[self.dtype],
                    moved=(2 + len(parts)) * size,
                    dtype=self.dtype,
                    module=home.module,
                    phase="update",
                    colocate=home.name,
                )
            )
        return Graph(name, tuple(self.ops))

    def _gradient(
        self, op: Op, name: str, reads: list[Tensor], wanted: list[Tensor]
    ) -> list[Tensor]:
        """Add a gradient op that makes the gradients of these tensors."""
        reads = list(dict.fromkeys(reads))
        sizes = [self.ops[source].outputs[output] for source, output in wanted]
        moved = sum(self.ops[source].outputs[output] for source, output in reads) + sum(sizes)
        self.ops.append(
            replace(
                op,
                name=name,
                inputs=tuple(reads),
                outputs=tuple(sizes),
                kind="elementwise" if op.kind == VIEW else op.kind,
                moved=moved,
                phase="backward",
                aliases=(),
            )
        )
        return [(len(self.ops) - 1, output) for output in range(len(sizes))]


_STILL = (WEIGHT, STATE, INPUT)
