"""Lowers a graph of TorchDynamo's to PyTorch's ops with AOTAutograd, and compiles the result."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis
from torch._functorch.partitioners import default_partition
from torch._inductor import config as inductor_config

from placewright.frontends.pytorch.aot_graph import backward_without_autocast, preserve_whole_ops
from placewright.frontends.pytorch.decompositions import hide_decompositions
from placewright.runtime.dynamo.layer_copies import copy_layers
from placewright.runtime.dynamo.repeated_layers import find_layers, shorten

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Sequence

    import torch

logger = logging.getLogger("placewright")


def lower(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler: Callable[..., Any],
    partition: Callable[..., Any] = default_partition,
) -> Callable[..., Any]:
    """A function that runs a graph, whose lowered graphs `compiler` compiles.

    Args:
        partition: How a joint graph is cut in two.
    """
    with (
        warnings.catch_warnings(),
        hide_decompositions(),
        backward_without_autocast(),
        unread_draws(),
    ):
        warnings.simplefilter("ignore")  # of what PyTorch finds odd while it traces
        compiled: Callable[..., Any] = aot_autograd(
            fw_compiler=compiler,
            bw_compiler=compiler,
            inference_compiler=compiler,
            partition_fn=without_unread_draws(partition),
            keep_inference_input_mutations=True,
        )(module, example_inputs)
    return compiled


def unread_draws() -> contextlib.AbstractContextManager[Any]:
    """Let graphs keep ops whose random numbers nothing reads: later numbers depend on them."""
    scope: contextlib.AbstractContextManager[Any] = inductor_config.patch(fallback_random=True)
    return scope


def without_unread_draws(partition: Callable[..., Any]) -> Callable[..., Any]:
    """Cut a joint graph without draws that nothing reads: a backward graph would repeat those of
    the forward graph."""

    def cut(*args: Any, **options: Any) -> Any:
        with inductor_config.patch(fallback_random=False):
            return partition(*args, **options)

    return cut


def lower_for_inference(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], compiler: Callable[..., Any]
) -> Callable[..., Any]:
    """The same for a graph without gradients; of layers that repeat, three are lowered."""
    layers = find_layers(module)
    if layers is not None:
        short = shorten(module, layers)

        def compile_all(lowered: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            return compiler(copy_layers(lowered, short), inputs)

        try:
            with preserve_whole_ops():
                return lower(short.module, example_inputs, compile_all)
        except RestartAnalysis:  # TorchDynamo traces again, with other symbols
            raise
        except Exception as error:  # such as UnequalLayersError
            logger.debug("all layers are lowered: %s", error)
    with preserve_whole_ops():
        return lower(module, example_inputs, compiler)
