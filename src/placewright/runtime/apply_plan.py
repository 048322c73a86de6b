"""Applies a plan to a model: in this process, or on the ranks of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from placewright import files
from placewright.errors import PlanError
from placewright.runtime.distributed.caller_problem import without_caller
from placewright.runtime.distributed.rank_model import RankOptions, apply_on_ranks, spans_ranks
from placewright.runtime.placed_model import PlacedModel
from placewright.runtime.planned_calls import plan_calls
from placewright.runtime.weight_loading import load_weights
from placewright.workload_plan import WorkloadPlan
from placewright.workload_result import WorkloadResult

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import torch

    from placewright.plan import Plan
    from placewright.result import Result
    from placewright.runtime.program.host_products import HostKernels
    from placewright.runtime.program.optimizer_step import OptimizerRule

Model = TypeVar("Model", bound="torch.nn.Module")


def apply(
    plan: Plan | Result | WorkloadPlan | WorkloadResult | str | os.PathLike[str],
    model: Model,
    weights: str | os.PathLike[str] | None = None,
    device_map: Mapping[str, str] | None = None,
    optimizer: str | OptimizerRule | None = None,
    cuda_graphs: bool | None = None,
    host_kernels: HostKernels = True,
    ranks: Mapping[str, int] | RankOptions | None = None,
) -> Model:
    """Let a model run under a plan. The model itself is changed and returned.

    Its weights move to the devices that the plan names. Calls are compiled by TorchDynamo, whose
    guards decide when a graph serves a call; each graph runs under the plan, and so does its
    backward graph. What TorchDynamo cannot trace runs eagerly under the same placement. Outputs are
    on the device of the first tensor among the arguments. `model.placed` has the rest: `train_step`
    (a whole training step), `pipeline` (several calls in flight), `remove`.

    If the plan's devices are named `HOST/DEVICE` and a process group is initialised, each rank runs
    the devices of one host. All ranks call this; rank 0 then calls the model, or runs its training
    steps, and the others call `model.placed.serve()`, which returns after `model.placed.close()` on
    rank 0. `model.placed.gather_weights()` has all weights on rank 0.

    Args:
        plan: A plan, a result, or a file that holds one. Of a plan for a workload, each graph takes
            the part that was made for the call most like it.
        weights: A safetensors file, an index of several or their folder, for a model on `meta`:
            its tensors go straight to their devices.
        device_map: Real devices of some of the plan's devices, by name, such as
            `{"gpu0": "cuda:1"}`; the others are found by name.
        optimizer: The optimizer of `train_step`: `sgd`, `momentum`, `adam` or an `OptimizerRule`.
        cuda_graphs: Whether runs of ops on a GPU are captured as CUDA graphs; None: if that is
            faster.
        host_kernels: Whether 16-bit products of few rows on the CPU may use our own kernel, where
            it is faster; it rounds otherwise than PyTorch's. `"float32"`: float32 products too.
        ranks: Ranks of some hosts or devices, by name, or all options of a run on several ranks; by
            default hosts are numbered in the plan's order.

    Raises:
        PlanError: The plan was made for another model.
        ConfigError: The plan is no plan, or its hosts do not go with the number of ranks.
        ExecutionError: A device is missing, or has too little memory.
        FileError: A file cannot be read.
    """
    if isinstance(plan, WorkloadResult):
        plan = plan.plan
    if not isinstance(plan, WorkloadPlan):
        plan = without_caller(files.read_plan(plan))
    planned = plan_calls(plan)
    if isinstance(getattr(model, "placed", None), PlacedModel):
        raise PlanError("the model runs under a plan already: model.placed.remove() first")
    if spans_ranks(planned[-1].plan, ranks):
        apply_on_ranks(
            planned[-1].plan,
            model,
            weights,
            device_map,
            cuda_graphs,
            host_kernels,
            planned,
            RankOptions.of(ranks),
            optimizer,
        )
        return model
    placed_model = PlacedModel(
        planned[-1].plan, model, device_map, optimizer, cuda_graphs, host_kernels, planned
    )
    if weights is not None:
        load_weights(model, weights, placed_model.torch_devices)
    placed_model.move_weights()
    placed_model.install()
    return model
