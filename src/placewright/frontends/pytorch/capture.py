"""Captures a PyTorch model as a graph of aten ops, without running it.

This is the only file, besides `experts`, that uses private APIs of PyTorch, which change from
version to version: `FakeTensorMode`, `aot_export_joint_with_descriptors` and the flags of
`torch.compiler`. It works on fake CPU tensors, which have shapes and no data. (On the `meta` device
the joint graph would silently lack all backward ops.)
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch

from placewright.errors import GraphError
from placewright.frontends.pytorch.copies import (
    ModelCall,
    copy_shapes,
    copy_values,
)
from placewright.frontends.pytorch.decompositions import hide_decompositions
from placewright.frontends.pytorch.errors import (
    as_graph_error,
    describe_error,
    most_specific,
    needs_values,
    refuse_detector,
    value_advice,
)
from placewright.frontends.pytorch.experts import grouped_gradients
from placewright.frontends.pytorch.shapes import has_unlimited_size
from placewright.frontends.pytorch.torch_version import check_planning
from placewright.frontends.pytorch.values import input_names, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# Composite ops that stay whole in a forward graph; all others are decomposed.
WHOLE_OPS = frozenset(
    {
        *("linear", "matmul", "scaled_dot_product_attention"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("layer_norm", "group_norm", "rms_norm", "softmax", "log_softmax", "relu6", "selu"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "pad", "square"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
        *("lstm", "lstm_cell", "gru", "gru_cell", "rnn_tanh", "rnn_relu"),
    }
)
MAX_DRAFT_BYTES = 2**30
"""Bytes of parameters up to which a model may be run to find out which branches it takes."""

_PREFIX = "model."  # of names and module paths in an exported program

logger = logging.getLogger("placewright")


@dataclass(frozen=True)
class Port:
    """An input or output of the captured graph.

    Args:
        role: Of an input: `parameter`, `buffer`, `constant`, `input` or `tangent`. Of an output:
            `output`, `gradient` (of the target) or `change` (the target's new value).
        target: The name of the parameter, buffer, constant or input.
        node: The placeholder, or the node that produces the output.
    """

    role: str
    target: str
    node: torch.fx.Node


ExportedGraph = tuple[torch.fx.Graph, list[Port], list[Port], dict[str, torch.Tensor]]
"""A graph, its inputs, its outputs, and the tensors that are literals in the model's code."""


class StorageSlice(NamedTuple):
    """Where the data of a parameter or buffer are; those of equal slices are tied."""

    storage: int
    offset: int
    bytes: int
    dtype: str


@dataclass(frozen=True)
class Capture:
    """A graph of functional aten ops, without in-place changes.

    Args:
        storage: The storage of every parameter and buffer, by name.
        parameters: The names of the model's parameters, used or not.
        prefix: The prefix of the model's own module paths.
        argument_names: The name of each leaf of the call's arguments, in order.
        literals: Tensors that are literals in the model's code, by name; they have values.
        value_dependent: Whether its branches and sizes depend on the values of the example.
        draws: Nodes that draw random numbers which nothing reads: later numbers depend on them.
    """

    graph: torch.fx.Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    storage: Mapping[str, StorageSlice]
    parameters: tuple[str, ...]
    prefix: str
    argument_names: tuple[str, ...] = ()
    literals: Mapping[str, torch.Tensor] = field(default_factory=dict)
    value_dependent: bool = False
    draws: tuple[torch.fx.Node, ...] = ()


def capture_model(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
) -> Capture:
    """The graph of one call of a model; with `training` also of a loss and its gradients.

    The model is not changed: a copy with fake parameters is captured.

    Raises:
        GraphError: The model cannot be exported; the message names the op or the line.
    """
    check_planning(torch.__version__)
    model = getattr(model, "_orig_mod", model)  # the model inside torch.compile
    subject = f"model {type(model).__name__!r}"
    refuse_detector(model)
    with as_graph_error(f"{subject} cannot be called"):
        names = input_names(model, args, kwargs)
    mode = _fake_mode()
    with _quiet():
        with mode, as_graph_error(f"{subject} cannot be copied"):
            fake_call = copy_shapes(model, args, kwargs)
        with as_graph_error(f"{subject} cannot be exported"):
            call = (model, args, dict(kwargs))
            (graph, inputs, outputs, literals), value_dependent = _try_exports(
                call, fake_call, training, names, mode
            )
    if value_dependent:
        logger.warning(
            "%s depends on values: its branches and sizes are those of the example", subject
        )
    parameters = dict(fake_call[0].named_parameters(remove_duplicate=False))
    buffers = dict(fake_call[0].named_buffers(remove_duplicate=False))
    storage = {name: storage_slice(tensor) for name, tensor in {**parameters, **buffers}.items()}
    return Capture(
        graph,
        tuple(inputs),
        tuple(outputs),
        storage,
        tuple(parameters),
        _PREFIX,
        tuple(names),
        literals,
        value_dependent,
    )


def output_template(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """What a model returns, with tensors that have shapes and no data.

    Models that ask whether they are exported take the same branches as in `capture_model`.

    Raises:
        GraphError: It depends on values.
    """
    model = getattr(model, "_orig_mod", model)
    subject = f"model {type(model).__name__!r} cannot be called on shapes"
    with (
        _quiet(),
        as_graph_error(subject),
        _exporting(),
        _fake_mode(),
        torch.no_grad(),
    ):
        fake_model, args, kwargs = copy_shapes(model, args, kwargs)
        return fake_model.eval()(*args, **kwargs)


class _TensorOutputs(torch.nn.Module):
    """A model that returns the tensors in its outputs as a flat tuple."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(tensors_in(self.model(*args, **kwargs)))


class _LossOutput(_TensorOutputs):
    """A model and a loss: its first floating-point output, summed unless it is a scalar."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        for output in super().forward(*args, **kwargs):
            if output.is_floating_point():
                return (output.sum() if output.dim() else output,)
        raise ValueError("it returns no floating-point tensor that could be a loss")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide PyTorch's logs and warnings about exporting; failures become errors."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            torch.device("cpu"),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """Let `torch.compiler.is_compiling` and `is_exporting` be true, as during an export."""
    with (
        mock.patch.object(torch.compiler, "_is_compiling_flag", True),
        mock.patch.object(torch.compiler, "_is_exporting_flag", True),
    ):
        yield


def _fake_mode() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)


def storage_slice(tensor: torch.Tensor) -> StorageSlice:
    """Where a tensor's data are."""
    storage, dtype = tensor.untyped_storage()._cdata, str(tensor.dtype).removeprefix("torch.")
    return StorageSlice(storage, int(tensor.storage_offset()), tensor.nbytes, dtype)


def _try_exports(
    call: ModelCall, fake_call: ModelCall, training: bool, names: Sequence[str], mode: Any
) -> tuple[ExportedGraph, bool]:
    """The first export that succeeds, and whether it is a draft export, which runs the model.

    An export by shapes with a size that has no limit is the last choice.
    """
    errors: list[Exception] = []
    unlimited: ExportedGraph | None = None
    for strict in (True, False):
        try:
            with mode:
                exported = _export_by_shapes(fake_call, training, names, strict)
            if not _has_unlimited_sizes(exported):
                return exported, False
            unlimited = exported
        except Exception as error:
            errors.append(error)
    needs_example = unlimited is not None or needs_values(errors[-1])
    size = sum(parameter.nbytes for parameter in fake_call[0].parameters())
    may_run = size <= MAX_DRAFT_BYTES
    if needs_example and may_run:
        try:
            return _export_by_values(call, training, names), True
        except Exception as error:
            errors.append(error)
    if unlimited is not None:
        return unlimited, False  # the op is named when its size is needed
    best_error = most_specific(errors)
    if needs_example:
        raise GraphError(
            f"model {type(call[0]).__name__!r} cannot be exported: {describe_error(best_error)}; "
            f"{value_advice(call[0], may_run)}"
        ) from best_error
    raise best_error


def _has_unlimited_sizes(exported: ExportedGraph) -> bool:
    """Whether an output depends on a tensor whose size has no limit."""
    pending = [port.node for port in exported[2]]
    found: set[torch.fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        if has_unlimited_size(node):
            return True
        pending.extend(node.all_input_nodes)
    return False


def _export_by_shapes(
    call: ModelCall, training: bool, names: Sequence[str], strict: bool
) -> ExportedGraph:
    """Export by shapes only; strict mode analyses the code, otherwise it runs on fake tensors."""
    model, args, kwargs = call
    model.train(training)
    wrapped_model = _LossOutput(model) if training else _TensorOutputs(model)
    program = torch.export.export(wrapped_model, args, kwargs, strict=strict)
    if not training:
        return _forward_graph(program.run_decompositions(_decompositions()), names)
    joint_graph = _joint_graph(program.module(check_guards=False), args, kwargs, names)
    return *joint_graph, _literals(program)


def _export_by_values(call: ModelCall, training: bool, names: Sequence[str]) -> ExportedGraph:
    """Export by running a copy of the model on the example, which decides the branches."""
    model, args, kwargs = copy_values(*call)
    model.train(training)
    wrapped_model = _LossOutput(model) if training else _TensorOutputs(model)
    with torch.random.fork_rng(devices=()), _draft_settings():
        torch.manual_seed(0)  # sizes may depend on random numbers
        program = torch.export.draft_export(wrapped_model, args, kwargs)
        _drop_checks(program.graph_module)
        if not training:
            torch.manual_seed(0)  # the decomposition runs the model again
            return _forward_graph(program.run_decompositions(_decompositions()), names)
    module = program.module(check_guards=False)
    _drop_checks(module)
    with _fake_mode():
        return *_joint_graph(*copy_shapes(module, args, kwargs), names), _literals(program)


@contextlib.contextmanager
def _draft_settings() -> Iterator[None]:
    """Let a draft export use parameters, and masks that it has indexed by before."""
    from torch.fx.experimental import _config

    # Indexing twice by one mask leaves a symbol of the second size that nothing uses.
    settings: Any = _config
    with (
        _copy_parameter_values(),
        settings.patch(soft_pending_unbacked_not_found_error=True),
    ):
        yield


def _copy_parameter_values() -> contextlib.AbstractContextManager[Any]:
    """Let a draft export copy parameters; torch 2.13 copies plain tensors only."""
    from torch._subclasses import meta_utils

    original_copy = meta_utils._safe_copy

    def safe_copy(target: torch.Tensor, source: torch.Tensor | None) -> None:
        original_copy(target, source.data if isinstance(source, torch.nn.Parameter) else source)

    return mock.patch.object(meta_utils, "_safe_copy", safe_copy)


def _drop_checks(module: torch.fx.GraphModule) -> None:
    """Remove the nodes that check values: they would need the values again."""
    for node in reversed(module.graph.nodes):
        if "_assert_scalar" in str(node.target) or "sym_constrain" in str(node.target):
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions of all composite ops but WHOLE_OPS."""
    composite = "CompositeImplicitAutograd"
    table: Any = torch.export.default_decompositions()
    return {
        op: parts
        for op, parts in table.items()
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), composite)
        and op.name().split("::")[1].split(".")[0] not in WHOLE_OPS
    }


def _forward_graph(program: Any, names: Sequence[str]) -> ExportedGraph:
    """The graph of an exported program, with its inputs and outputs."""
    from torch.export.graph_signature import InputKind, OutputKind

    roles = {
        InputKind.PARAMETER: "parameter",
        InputKind.BUFFER: "buffer",
        InputKind.CONSTANT_TENSOR: "constant",
        InputKind.USER_INPUT: "input",
    }
    nodes = {node.name: node for node in program.graph.nodes}
    inputs, argument_names, target_names = [], iter(names), {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in roles:
            name = (spec.target or next(argument_names, spec.arg.name)).removeprefix(_PREFIX)
            target_names[spec.arg.name] = name
            inputs.append(Port(roles[spec.kind], name, nodes[spec.arg.name]))
    outputs = []
    for spec in program.graph_signature.output_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if node is None:  # a plain number or None
            continue
        if spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(Port("output", "", node))
        elif spec.target is not None:  # a token has none: it only orders checks
            target = target_names.get(spec.target, spec.target).removeprefix(_PREFIX)
            outputs.append(Port("change", target, node))
    return program.graph, inputs, outputs, _literals(program)


def _literals(program: Any) -> dict[str, torch.Tensor]:
    """The constants of an exported program that have values."""
    return {
        name.removeprefix(_PREFIX): tensor
        for name, tensor in program.constants.items()
        if type(tensor) is torch.Tensor
    }


def _register_constants(module: torch.nn.Module) -> None:
    """Turn plain tensors into buffers: in a joint graph only buffers may be fake."""
    assert isinstance(module, torch.fx.GraphModule)
    for node in module.graph.nodes:
        path, _, name = str(node.target).rpartition(".")
        owner = module.get_submodule(path) if node.op == "get_attr" else None
        if owner is not None and isinstance(vars(owner).get(name), torch.Tensor):
            owner.register_buffer(name, vars(owner).pop(name), persistent=False)


def _joint_graph(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str]
) -> tuple[torch.fx.Graph, list[Port], list[Port]]:
    """The graph of an exported loss and its gradients, with its inputs and outputs."""
    from torch._functorch._aot_autograd import descriptors as kinds
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    _register_constants(module)
    # oneDNN's recurrent layer is captured without the workspace that its backward op reads.
    with (
        contextlib.ExitStack() as stack,
        torch.backends.mkldnn.flags(enabled=False),
        grouped_gradients(),
        hide_decompositions(),
    ):
        joint = aot_export_joint_with_descriptors(stack, module, args, kwargs)
    graph = joint.graph_module.graph
    # Tokens order side effects and hold no data.
    tokens = (
        *(kinds.ForwardTokenAOTInput, kinds.BackwardTokenAOTInput),
        *(kinds.ForwardTokenAOTOutput, kinds.BackwardTokenAOTOutput),
    )

    def port(descriptor: Any, node: torch.fx.Node) -> Port:
        if isinstance(descriptor, kinds.ParamAOTInput):
            return Port("parameter", descriptor.target.removeprefix(_PREFIX), node)
        if isinstance(descriptor, kinds.BufferAOTInput):
            return Port("buffer", descriptor.target.removeprefix(_PREFIX), node)
        if isinstance(descriptor, kinds.PlainAOTInput):
            return Port("input", names[descriptor.idx], node)
        if isinstance(descriptor, kinds.TangentAOTInput):
            return Port("tangent", "loss", node)
        raise NotImplementedError(f"it reads a {type(descriptor).__name__}")

    inputs = {
        node.meta["desc"]: port(node.meta["desc"], node)
        for node in graph.nodes
        if node.op == "placeholder"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and not isinstance(node.meta["desc"], tokens)
    }
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    outputs = []
    for node, descriptor in zip(output.args[0], output.meta["desc"], strict=True):
        if node is None or isinstance(descriptor, tokens):
            continue
        if isinstance(descriptor, kinds.GradAOTOutput):
            outputs.append(Port("gradient", inputs[descriptor.grad_of].target, node))
        elif isinstance(descriptor, kinds.InputMutationAOTOutput):
            outputs.append(Port("change", inputs[descriptor.mutated_input].target, node))
        else:
            outputs.append(Port("output", "", node))
    return graph, list(inputs.values()), outputs
