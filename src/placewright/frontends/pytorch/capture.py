"""A PyTorch model and example arguments in, its graph of aten ops out, without running it.

This is the only file that uses PyTorch's private parts, which change from version to version:
`FakeTensorMode` and `aot_export_joint_with_descriptors`. Everything happens on fake CPU tensors:
they have shapes and no data. (On the `meta` device the joint graph would silently lack all of its
backward ops.)
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
    Call,
    copy_shapes,
    copy_values,
)
from placewright.frontends.pytorch.errors import (
    asks_for_values,
    explain,
    telling,
)
from placewright.frontends.pytorch.values import input_names, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

OLDEST, NEWEST = (2, 11), (2, 13)

# Composite ops that stay whole in a forward graph; all others are taken apart into simpler ones.
WHOLE = frozenset(
    {
        *("linear", "matmul", "scaled_dot_product_attention"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("layer_norm", "group_norm", "rms_norm", "softmax", "log_softmax", "relu6", "selu"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "pad", "square"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
        *("lstm", "lstm_cell", "gru", "gru_cell", "rnn_tanh", "rnn_relu"),
    }
)
MOST_DRAFTED = 2**30
"""Bytes of parameters up to which a model may be run to find out how it branches."""

_PREFIX = "model."  # of names and module paths, in what is exported

logger = logging.getLogger("placewright")


@dataclass(frozen=True)
class Port:
    """A tensor that enters or leaves the captured graph.

    Args:
        role: Of what enters: `parameter`, `buffer`, `constant`, `input` or `tangent`. Of what
            leaves: `output`, `gradient` (of the target) or `change` (the target's new value).
        target: The name of the parameter, buffer, constant or input.
        node: The node that brings it in, or makes it.
    """

    role: str
    target: str
    node: torch.fx.Node


Captured = tuple[torch.fx.Graph, list[Port], list[Port], dict[str, torch.Tensor]]
"""A graph, what enters and what leaves it, and the tensors that the model's code writes down."""


class Memory(NamedTuple):
    """Where the data of a parameter or buffer are: those with one memory are tied."""

    storage: int
    offset: int
    bytes: int
    dtype: str


@dataclass(frozen=True)
class Capture:
    """A graph of functional aten ops: nothing is changed in place.

    Args:
        memory: Of every parameter and buffer, by name.
        parameters: The names of the model's parameters, read or not.
        prefix: What stands before the model's own module paths.
        names: Of each leaf of the call's arguments, tensor or not, in their order.
        literals: Tensors that the model's code writes down, by name; they have values.
        drafted: Whether its branches and sizes are those of the example's values.
    """

    graph: torch.fx.Graph
    enters: tuple[Port, ...]
    leaves: tuple[Port, ...]
    memory: Mapping[str, Memory]
    parameters: tuple[str, ...]
    prefix: str
    names: tuple[str, ...] = ()
    literals: Mapping[str, torch.Tensor] = field(default_factory=dict)
    drafted: bool = False


def check_version(version: str) -> None:
    """Refuse a version of PyTorch whose private parts are not known to work."""
    found = tuple(int(part) for part in version.split(".")[:2])
    if not OLDEST <= found <= NEWEST:
        raise GraphError(
            f"torch {version} is installed: from_torch works with torch "
            f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        )


def capture(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
) -> Capture:
    """The graph of one call of a model; with `training`, of the call, a loss and its gradients.

    The model is left as it is: a copy with fake parameters is captured.

    Raises:
        GraphError: The model cannot be exported; the message names the op or the line.
    """
    check_version(torch.__version__)
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    subject = f"model {type(model).__name__!r}"
    with explain(f"{subject} cannot be called"):
        names = input_names(model, args, kwargs)
    mode = _fake_mode()
    with _quiet():
        with mode, explain(f"{subject} cannot be copied"):
            shapes = copy_shapes(model, args, kwargs)
        with explain(f"{subject} cannot be exported"):
            call = (model, args, dict(kwargs))
            (graph, enters, leaves, literals), drafted = _climb(call, shapes, training, names, mode)
    if drafted:
        logger.warning("%s depends on values: its branches and sizes are the example's", subject)
    parameters = dict(shapes[0].named_parameters(remove_duplicate=False))
    buffers = dict(shapes[0].named_buffers(remove_duplicate=False))
    memory = {name: _memory(tensor) for name, tensor in {**parameters, **buffers}.items()}
    return Capture(
        graph,
        tuple(enters),
        tuple(leaves),
        memory,
        tuple(parameters),
        _PREFIX,
        tuple(names),
        literals,
        drafted,
    )


def returned(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a model returns, with tensors that have shapes and no data.

    Raises:
        GraphError: It cannot be told without values.
    """
    model = getattr(model, "_orig_mod", model)
    subject = f"model {type(model).__name__!r} cannot be called on shapes"
    with _quiet(), explain(subject), _fake_mode(), torch.no_grad():
        whole, args, kwargs = copy_shapes(model, args, kwargs)
        return whole.eval()(*args, **kwargs)


class _Tensors(torch.nn.Module):
    """A model that returns nothing but tensors: those in its outputs, whatever holds them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(tensors_in(self.model(*args, **kwargs)))


class _Loss(_Tensors):
    """A model and a loss behind it: its first floating output, summed unless it is one number."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        for output in super().forward(*args, **kwargs):
            if output.is_floating_point():
                return (output.sum() if output.dim() else output,)
        raise ValueError("it returns no floating-point tensor that could be a loss")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what PyTorch says about exporting from the user: what matters becomes an error."""
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


def _fake_mode() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)


def _memory(tensor: torch.Tensor) -> Memory:
    storage, dtype = tensor.untyped_storage()._cdata, str(tensor.dtype).removeprefix("torch.")
    return Memory(storage, int(tensor.storage_offset()), tensor.nbytes, dtype)


def _climb(
    call: Call, shapes: Call, training: bool, names: Sequence[str], mode: Any
) -> tuple[Captured, bool]:
    """What the first way to export gives that works, and whether it is the last one, a draft."""
    errors: list[Exception] = []
    for strict in (True, False):
        try:
            with mode:
                return _export(shapes, training, names, strict), False
        except Exception as error:
            errors.append(error)
    size = sum(parameter.nbytes for parameter in shapes[0].parameters())
    if asks_for_values(errors[-1]) and size <= MOST_DRAFTED:
        try:
            return _draft(call, training, names), True
        except Exception as error:
            errors.append(error)
    raise telling(errors)


def _export(call: Call, training: bool, names: Sequence[str], strict: bool) -> Captured:
    """By shapes alone; strictly, from the model's code, or loosely, by running it on shapes."""
    model, args, kwargs = call
    model.train(training)
    whole = _Loss(model) if training else _Tensors(model)
    program = torch.export.export(whole, args, kwargs, strict=strict)
    if not training:
        return _forward(program.run_decompositions(_composites()), names)
    joint = _joint(program.module(check_guards=False), args, kwargs, names)
    return *joint, _literals(program)


def _draft(call: Call, training: bool, names: Sequence[str]) -> Captured:
    """By running a copy of the model on the example's values, so that branches can be decided."""
    model, args, kwargs = copy_values(*call)
    model.train(training)
    with torch.random.fork_rng(devices=()), _parameters_keep_values():
        whole = _Loss(model) if training else _Tensors(model)
        program = torch.export.draft_export(whole, args, kwargs)
    if not training:
        return _forward(program.run_decompositions(_composites()), names)
    module = program.module(check_guards=False)
    _drop_checks(module)
    with _fake_mode():
        return *_joint(*copy_shapes(module, args, kwargs), names), _literals(program)


def _parameters_keep_values() -> contextlib.AbstractContextManager[Any]:
    """Let a draft copy parameters, too; torch 2.13 copies plain tensors and leaves those unset."""
    from torch._subclasses import meta_utils

    plain = meta_utils._safe_copy

    def safe_copy(target: torch.Tensor, source: torch.Tensor | None) -> None:
        plain(target, source.data if isinstance(source, torch.nn.Parameter) else source)

    return mock.patch.object(meta_utils, "_safe_copy", safe_copy)


def _drop_checks(module: torch.fx.GraphModule) -> None:
    """Take out what checks values: it would ask for them again."""
    for node in reversed(module.graph.nodes):
        if "_assert_scalar" in str(node.target) or "sym_constrain" in str(node.target):
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _composites() -> dict[Any, Callable[..., Any]]:
    """How to take apart the composite ops that are not to stay whole."""
    composite = "CompositeImplicitAutograd"
    table: Any = torch.export.default_decompositions()
    return {
        op: parts
        for op, parts in table.items()
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), composite)
        and op.name().split("::")[1].split(".")[0] not in WHOLE
    }


def _forward(program: Any, names: Sequence[str]) -> Captured:
    """The graph of an exported program, what enters and what leaves it."""
    from torch.export.graph_signature import InputKind, OutputKind

    roles = {
        InputKind.PARAMETER: "parameter",
        InputKind.BUFFER: "buffer",
        InputKind.CONSTANT_TENSOR: "constant",
        InputKind.USER_INPUT: "input",
    }
    nodes = {node.name: node for node in program.graph.nodes}
    enters, waiting, renamed = [], iter(names), {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in roles:
            name = (spec.target or next(waiting, spec.arg.name)).removeprefix(_PREFIX)
            renamed[spec.arg.name] = name
            enters.append(Port(roles[spec.kind], name, nodes[spec.arg.name]))
    leaves = []
    for spec in program.graph_signature.output_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if node is None:  # a plain number or None
            continue
        if spec.kind is OutputKind.USER_OUTPUT:
            leaves.append(Port("output", "", node))
        elif spec.target is not None:  # a token that orders checks has none
            target = renamed.get(spec.target, spec.target).removeprefix(_PREFIX)
            leaves.append(Port("change", target, node))
    return program.graph, enters, leaves, _literals(program)


def _literals(program: Any) -> dict[str, torch.Tensor]:
    """The constants of an exported program that have values."""
    return {
        name.removeprefix(_PREFIX): tensor
        for name, tensor in program.constants.items()
        if type(tensor) is torch.Tensor
    }


def _register_constants(module: torch.nn.Module) -> None:
    """Make buffers of plain tensors: only those may be fake in a joint graph."""
    assert isinstance(module, torch.fx.GraphModule)
    for node in module.graph.nodes:
        path, _, name = str(node.target).rpartition(".")
        owner = module.get_submodule(path) if node.op == "get_attr" else None
        if owner is not None and isinstance(vars(owner).get(name), torch.Tensor):
            owner.register_buffer(name, vars(owner).pop(name), persistent=False)


def _joint(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str]
) -> tuple[torch.fx.Graph, list[Port], list[Port]]:
    """The graph of an exported loss and its gradients, what enters and what leaves it."""
    from torch._functorch._aot_autograd import descriptors as kinds
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    _register_constants(module)
    # oneDNN's recurrent layer is captured without the memory that its own backward op reads.
    with contextlib.ExitStack() as stack, torch.backends.mkldnn.flags(enabled=False):
        joint = aot_export_joint_with_descriptors(stack, module, args, kwargs)
    graph = joint.graph_module.graph
    # They order checks and the like, and hold nothing.
    tokens = (
        *(kinds.ForwardTokenAOTInput, kinds.BackwardTokenAOTInput),
        *(kinds.ForwardTokenAOTOutput, kinds.BackwardTokenAOTOutput),
    )

    def port(described: Any, node: torch.fx.Node) -> Port:
        if isinstance(described, kinds.ParamAOTInput):
            return Port("parameter", described.target.removeprefix(_PREFIX), node)
        if isinstance(described, kinds.BufferAOTInput):
            return Port("buffer", described.target.removeprefix(_PREFIX), node)
        if isinstance(described, kinds.PlainAOTInput):
            return Port("input", names[described.idx], node)
        if isinstance(described, kinds.TangentAOTInput):
            return Port("tangent", "loss", node)
        raise NotImplementedError(f"it reads a {type(described).__name__}")

    enters = {
        node.meta["desc"]: port(node.meta["desc"], node)
        for node in graph.nodes
        if node.op == "placeholder"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and not isinstance(node.meta["desc"], tokens)
    }
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    leaves = []
    for node, described in zip(output.args[0], output.meta["desc"], strict=True):
        if node is None or isinstance(described, tokens):
            continue
        if isinstance(described, kinds.GradAOTOutput):
            leaves.append(Port("gradient", enters[described.grad_of].target, node))
        elif isinstance(described, kinds.InputMutationAOTOutput):
            leaves.append(Port("change", enters[described.mutated_input].target, node))
        else:
            leaves.append(Port("output", "", node))
    return graph, list(enters.values()), leaves
