"""NetworkBuilder: collects the ops of a network, sized in elements, and builds its Graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from placewright.errors import ConfigError
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op, Tensor

ELEMENT_BYTES = {"bfloat16": 2, "float32": 4}  # per element
MAX_TENSOR_BYTES = 2**50  # bytes of a tensor: sums over a graph stay within 64 bits


@dataclass
class NetworkBuilder:
    """Collects ops and the weights that they read, all of one dtype."""

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

        An op moves its inputs and outputs once; a view moves nothing.
        """
        if parameters:
            reads = [*reads, self.add(f"{name}.weight", WEIGHT, [], parameters)]
        size = elements * ELEMENT_BYTES[self.dtype]
        if size > MAX_TENSOR_BYTES:
            raise ConfigError(f"op {name!r} would make {size:,} bytes: choose smaller sizes")
        moves_nothing = kind in (WEIGHT, STATE, INPUT, VIEW)
        bytes_read = sum(self.ops[source].outputs[output] for source, output in reads)
        op = Op(
            name,
            kind,
            tuple(reads),
            (size,),
            flops=float(flops),
            bytes_moved=0 if moves_nothing else bytes_read + size,
            dtype=self.dtype,
            module=name.removesuffix(".weight").rpartition(".")[0],
            aliases=((0, 0),) if kind == VIEW else (),
        )
        self.ops.append(op)
        return len(self.ops) - 1, 0

    def linear(self, name: str, source: Tensor, rows: int, width: int, out: int) -> Tensor:
        """Rows of `width` elements times a weight of width x out."""
        return self.add(name, "linear", [source], rows * out, 2 * rows * width * out, width * out)

    def convolution(
        self, name: str, source: Tensor, batch: int, side: int, channels: int, out: int, kernel: int
    ) -> Tensor:
        """A convolution that keeps the side, and the activation after it."""
        pixels, taps = batch * side * side, kernel * kernel
        features = self.add(
            f"{name}.convolution",
            "convolution",
            [source],
            pixels * out,
            2 * pixels * out * channels * taps,
            channels * out * taps,
        )
        return self.add(f"{name}.relu", "relu", [features], pixels * out, pixels * out)

    def graph(self, name: str) -> Graph:
        return Graph(name, tuple(self.ops))

    def training_graph(self, name: str) -> Graph:
        """The forward ops, a backward pass and an update of every weight.

        The last op is the loss. An op with a weight has two gradient ops, one for the weight and
        one for its other inputs, each with the FLOPs of the op; any other op has one.
        """
        forward = [op for op in self.ops if op.kind not in _SOURCE_KINDS]
        position = {op.name: at for at, op in enumerate(self.ops)}
        gradients: dict[Tensor, list[Tensor]] = {}
        loss = len(self.ops) - 1
        gradients[loss, 0] = [(loss, 0)]
        updates: dict[int, list[Tensor]] = {}
        for op in reversed(forward):
            output_gradients = [
                g
                for out in range(len(op.outputs))
                for g in gradients.get((position[op.name], out), [])
            ]
            if not output_gradients:
                continue
            weights = [read for read in op.inputs if self.ops[read[0]].kind == WEIGHT]
            activations = [
                read for read in op.inputs if self.ops[read[0]].kind not in _SOURCE_KINDS
            ]
            if weights:
                read = [
                    *output_gradients,
                    *(tensor for tensor in op.inputs if tensor not in weights),
                ]
                new_gradients = self._add_gradient(op, f"{op.name}.weight_gradient", read, weights)
                for weight, tensor in zip(weights, new_gradients, strict=True):
                    updates.setdefault(weight[0], []).append(tensor)
            if activations:
                new_gradients = self._add_gradient(
                    op, f"{op.name}.gradient", [*output_gradients, *op.inputs], activations
                )
                for source, tensor in zip(activations, new_gradients, strict=True):
                    gradients.setdefault(source, []).append(tensor)
        for at, parts in updates.items():
            weight_op = self.ops[at]
            self.ops[at] = replace(weight_op, colocate=weight_op.name)
            size = weight_op.outputs[0]
            self.ops.append(
                Op(
                    f"{weight_op.name}.update",
                    "optimizer",
                    ((at, 0), *parts),
                    (0,),
                    flops=2.0 * size / ELEMENT_BYTES[self.dtype],
                    bytes_moved=(2 + len(parts)) * size,
                    dtype=self.dtype,
                    module=weight_op.module,
                    phase="update",
                    colocate=weight_op.name,
                )
            )
        return Graph(name, tuple(self.ops))

    def _add_gradient(
        self, op: Op, name: str, reads: list[Tensor], targets: list[Tensor]
    ) -> list[Tensor]:
        """Add an op that computes the gradients of these tensors."""
        reads = list(dict.fromkeys(reads))
        sizes = [self.ops[source].outputs[output] for source, output in targets]
        moved = sum(self.ops[source].outputs[output] for source, output in reads) + sum(sizes)
        self.ops.append(
            replace(
                op,
                name=name,
                inputs=tuple(reads),
                outputs=tuple(sizes),
                kind="elementwise" if op.kind == VIEW else op.kind,
                bytes_moved=moved,
                phase="backward",
                aliases=(),
            )
        )
        return [(len(self.ops) - 1, output) for output in range(len(sizes))]


_SOURCE_KINDS = (WEIGHT, STATE, INPUT)
