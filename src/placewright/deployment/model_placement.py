"""Places a model on this machine: captures, profiles, plans, verifies and applies in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from placewright.deployment.call_capture import begin_capture, capture_calls
from placewright.deployment.call_mix import Calls, Generate, Train
from placewright.deployment.model_key import model_facts
from placewright.deployment.model_states import devices_of
from placewright.deployment.output_comparison import can_verify, compare_outputs, reference_outputs
from placewright.deployment.placement_limits import PlacementLimits, check_fits
from placewright.deployment.stages import (
    Stages,
    call_text,
    print_line,
    result_text,
    weights_text,
)
from placewright.deployment.stored_plan import StoredPlan
from placewright.deployment.warmup import run_warmup
from placewright.deployment.workload_problem import (
    MachineCosts,
    build_workload,
    device_that_fits,
    single_device,
    with_less_memory,
)
from placewright.errors import ConfigError, ExecutionError, FileError, PlanError
from placewright.problem import Constraints
from placewright.runtime.cuda.library_memory import has_uncounted_libraries, note_context
from placewright.runtime.eager_fallback import memory_caps
from placewright.runtime.memory_limits import MemoryLimits
from placewright.runtime.placed_model import PlacedModel, move_tensors
from placewright.runtime.real_devices import find_real_devices
from placewright.runtime.weight_loading import check_weights, load_weights
from placewright.simulator.plan_key import digest_facts
from placewright.solvers import solve
from placewright.store import open_store
from placewright.store.search_start import find_start, find_workload_start, store_result
from placewright.store.store import warn_of_failure

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from placewright.cluster import Cluster
    from placewright.deployment.call_capture import CapturedCall
    from placewright.deployment.output_comparison import Reference
    from placewright.store import Store
    from placewright.workload import Workload
    from placewright.workload_result import WorkloadResult

Model = TypeVar("Model", bound=torch.nn.Module)

DEFAULT_BUDGET = "8s"
"""Time budget of the search for a plan: 15 s find plans that are one or two percent faster."""
MEASURE_BUDGET = 20.0
"""Seconds that measuring the ops of all calls may take."""
MAX_PLANS = 3
"""How often calls are planned with less memory, where a plan does not keep a GPU's limit."""


def place(
    model: Model,
    limits: Mapping[str, int | str] | None = None,
    workload: Generate | Calls | Train | None = None,
    *,
    cluster: Cluster | str = "here",
    budget: str | float = DEFAULT_BUDGET,
    measure_budget: float = MEASURE_BUDGET,
    seed: int = 0,
    fresh: bool = False,
    verify: bool = True,
    weights: str | os.PathLike[str] | None = None,
    device_map: Mapping[str, str] | None = None,
    cuda_graphs: bool | None = None,
    notify: Callable[[str], None] | None = None,
    store: str | os.PathLike[str] | None = None,
) -> Model:
    """Let a model run on this machine as fast as a plan can make it. It is changed and returned.

    The calls of the workload are captured in a dry run, their ops measured on each device, and
    planned together. The plan is stored; a second start of the same program takes it from there,
    and a search for the same calls with another budget or seed starts from it. Where a GPU has
    memory for the whole model, the model is moved there, and nothing else is done.

    Args:
        limits: Memory that may be used, by device: bytes or text such as `{"gpu0": "4GiB"}`. What
            libraries need on a GPU for themselves (64 MiB) is part of it.
        workload: What the model will be called with; by default `Generate()`.
        cluster: `here`: this machine, measured; `here:workers=4`: with four CPU workers; or a
            cluster, whose op times are estimated and not measured.
        budget: Time budget of the search: seconds or text. For plans that run for days, `"60s"`
            gains some percent more.
        measure_budget: Seconds for measuring ops, about.
        fresh: Plan again, even if there is a plan from before, and do not start from it.
        verify: Whether outputs are compared with those of the model before, where that is possible.
        weights: Safetensors files of a model on `meta`; see `apply`.
        device_map: Real devices of some of the cluster's devices; see `apply`.
        notify: Called with a line of text for each stage; by default they go to stderr.
        store: Where plans are stored: a file, `postgresql://user@host/database`, or `none`. By
            default `PLACEWRIGHT_STORE`, or a file in the user's cache folder.

    Raises:
        ConfigError: The workload does not suit the model.
        GraphError: A call cannot be captured.
        PlanError: No plan keeps the limits; the message says what would do.
        VerifyError: Outputs under the plan differ by more than rounding; the model is restored.
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model is of type {type(model).__name__!r}: expected a torch.nn.Module")
    if isinstance(getattr(model, "placed", None), PlacedModel):
        raise PlanError("the model runs under a plan already: model.placed.remove() first")
    mix = Generate() if workload is None else workload
    if not isinstance(mix, Generate | Calls | Train):
        raise ConfigError(
            f"workload is {workload!r}: expected pw.Generate, pw.Calls or pw.Train, such as "
            "pw.Generate(prompt=512, new_tokens=128)"
        )
    sizes = PlacementLimits(Constraints(limits=limits).limits, device_map)
    job = _Placement(
        model, sizes, mix, budget, measure_budget, seed, verify, weights, device_map, cuda_graphs,
        Stages(print_line if notify is None else notify), open_store(store),
    )  # fmt: skip
    job.run(cluster, fresh)
    return model


@dataclass(frozen=True, eq=False)
class _Placement:
    """One call of `place`."""

    model: torch.nn.Module
    limits: PlacementLimits
    mix: Generate | Calls | Train
    budget: str | float
    measure_budget: float
    seed: int
    verify: bool
    weights: str | os.PathLike[str] | None
    device_map: Mapping[str, str] | None
    cuda_graphs: bool | None
    stages: Stages
    store: Store

    def run(self, cluster: Cluster | str, fresh: bool) -> None:
        if self.weights is not None:
            check_weights(self.model, self.weights)  # now, and not after minutes
        elif any(tensor.is_meta for tensor in self.model.parameters()):
            raise ConfigError(
                "the model has weights on meta: give their safetensors files, weights=..."
            )
        caps = self.limits.machine_caps()
        for index in caps:
            note_context(index)  # before libraries are used
        with self.stages.line("machine") as note, memory_caps(caps):
            costs = MachineCosts.of(cluster, self.measure_budget)
            uncounted = [
                f"what libraries took of GPU {index} before is not counted in its limit"
                for index in caps
                if has_uncounted_libraries(index)
            ]
            note("; ".join([costs.text, *uncounted]))
        self.limits.check(costs.cluster)
        key = digest_facts(
            {
                **model_facts(self.model),
                "workload": self.mix.key,
                "limits": dict(self.limits.sizes),
                "budget": str(self.budget),
                "seed": self.seed,
                **costs.key,
            }
        )
        stored = None if fresh else self._stored_plan(key)
        if stored is not None:
            with self.stages.line("plan") as note:
                note(f"a stored plan of {stored.day}: {stored.text}")
            self._apply_stored(stored, costs.cluster)
        elif isinstance(self.mix, Train):
            self._train(costs, key, fresh)
        else:
            self._calls(self.mix, costs, key, fresh)

    def _stored_plan(self, key: str) -> StoredPlan | None:
        """The plan that the same model ran under before, in the same circumstances."""
        record = warn_of_failure(lambda: self.store.get_plan(key), None)
        if record is None:
            return None
        try:
            return StoredPlan.read(record.data)
        except (FileError, PlanError):
            warn_of_failure(lambda: self.store.remove_plan(record), False)
            return None

    def _put_plan(self, key: str, stored: StoredPlan, cluster: Cluster) -> None:
        record = stored.record(key, self._name, cluster.name)
        warn_of_failure(lambda: self.store.put_plan(record), False)

    @property
    def _name(self) -> str:
        """What plans of the model are listed under."""
        return f"{type(self.model).__name__}: {self.mix.text}"

    def _apply_stored(self, stored: StoredPlan, cluster: Cluster) -> None:
        with self.stages.line("weights") as note:
            if stored.device is not None:
                self._leave_on(stored.device)
            else:
                self._apply(stored, cluster)
            note(weights_text(self.model))

    # -- calls ---------------------------------------------------------------------------------

    def _calls(self, mix: Generate | Calls, costs: MachineCosts, key: str, fresh: bool) -> None:
        reason = can_verify(self.model) if self.verify else "verify=False"
        reference = None
        if not reason and self.weights is None:
            with self.stages.line("reference") as note:
                reference = reference_outputs(self.model, mix)
                note("the model's own outputs, on the device where it is")
        devices = devices_of(self.model)
        placed = begin_capture(self.model, costs.cluster, self.device_map, self.cuda_graphs)
        try:
            written = () if reference is None else reference.written_weights
            calls, workload = self._captured_workload(placed, mix, costs, written)
            for tries_left in reversed(range(MAX_PLANS)):
                stored, result = self._plan_calls(calls, workload, costs, fresh)
                try:
                    self._run_planned(placed, stored, mix, costs.cluster, reference, reason)
                    break
                except ExecutionError as error:
                    is_short = isinstance(error.__cause__, torch.OutOfMemoryError)
                    if not (is_short and self.limits.sizes and tries_left):
                        raise
                    self.stages.notify(f"plan: it does not keep a limit: {error}; planned again")
                    workload = with_less_memory(workload, self.limits.margins())
            if reason:
                self.stages.notify(f"not verified: {reason}")
        except BaseException:
            self._restore(devices)
            raise
        if result is not None and result.workload is not None:
            store_result(self.store, result.workload, result, self._name)
        self._put_plan(key, stored, costs.cluster)

    def _captured_workload(
        self,
        placed: PlacedModel,
        mix: Generate | Calls,
        costs: MachineCosts,
        written_weights: Sequence[torch.Tensor],
    ) -> tuple[list[CapturedCall], Workload]:
        """The calls of a mix, and their problem with what libraries leave of the limits."""
        with self.stages.line("captured") as note:
            calls = capture_calls(placed, mix, written_weights)
            note(f"{mix.text}: {', '.join(call_text(call) for call in calls)}")
        with self.stages.line("measured") as note:
            workload, text = build_workload(calls, costs, self.limits.usable(costs.cluster))
            taken = self.limits.library_bytes(placed.backend.real_devices)
            workload = with_less_memory(workload, taken)
            texts = [
                f"libraries take {size / 2**20:.0f} MiB of {name}"
                for name, size in taken.items()
                if size
            ]
            note("; ".join([text, *texts]))
        return calls, workload

    def _run_planned(
        self,
        placed: PlacedModel,
        stored: StoredPlan,
        mix: Generate | Calls,
        cluster: Cluster,
        reference: Reference | None,
        reason: str,
    ) -> None:
        """Let the model run under a plan; compare its outputs, and make its calls on GPUs.

        Args:
            reason: Why outputs are not compared.

        Raises:
            ExecutionError: A call does not keep a GPU's limit.
            VerifyError: Outputs differ by more than rounding.
        """
        if stored.device is not None:
            placed.remove()
            self._apply_stored(stored, cluster)
            return
        self._use_plan(placed, stored, cluster)
        if reason:
            return
        with self.stages.line("verified") as note:
            text, written_weights = compare_outputs(placed, mix, reference)
            note(text)
        if placed.has_gpus:
            with self.stages.line("timed") as note:
                note(run_warmup(placed, mix, written_weights))

    def _plan_calls(
        self, calls: list[CapturedCall], workload: Workload, costs: MachineCosts, fresh: bool
    ) -> tuple[StoredPlan, WorkloadResult | None]:
        """The plan to run, and the result of the search, if there was one."""
        device = device_that_fits(workload)
        if device is not None:
            self.stages.notify(
                f"plan: {device} has memory for the whole model: it is moved there and left alone"
            )
            return StoredPlan.on_one_device(device), None
        result = self._solve_workload(workload, fresh)
        check_fits(result, costs.cluster)
        flops = [call.flops for call in calls]
        device = single_device(result.plan)
        if device is not None and not costs.has_gpus:
            self.stages.notify(
                f"plan: nothing is faster than one device ({device}): the model is left alone"
            )
            return StoredPlan.on_one_device(device), result
        return StoredPlan.of(result, flops), result

    def _solve_workload(self, workload: Workload, fresh: bool) -> WorkloadResult:
        with self.stages.line("plan") as note:
            start = None if fresh else find_workload_start(self.store, workload)
            plan = None if start is None else start.plan
            result = solve(workload, warm_start=plan, budget=self.budget, seed=self.seed)
            note(result_text(result) + ("" if start is None else f"; {start.text}"))
            return result

    # -- training ------------------------------------------------------------------------------

    def _train(self, costs: MachineCosts, key: str, fresh: bool) -> None:
        from placewright.runtime.program.program import build_program

        assert isinstance(self.mix, Train)
        with self.stages.line("captured") as note:
            program = build_program(
                self.model, tuple(self.mix.args), self.mix.kwargs, True, self.mix.optimizer
            )
            note(f"{self.mix.text}: {len(program.graph):,} ops")
        with self.stages.line("measured") as note:
            problem, text = costs.problem(program, self.limits.usable(costs.cluster))
            note(text)
        with self.stages.line("plan") as note:
            start = None if fresh else find_start(self.store, problem)
            plan = None if start is None else start.plan
            result = solve(problem, warm_start=plan, budget=self.budget, seed=self.seed)
            text = f"{result.objective_value * 1e3:.4g} ms for a step"
            note(text + ("" if start is None else f"; {start.text}"))
        check_fits(result, costs.cluster)
        stored = StoredPlan.of(result, optimizer=self.mix.optimizer)
        self._apply_stored(stored, costs.cluster)
        store_result(self.store, problem, result, self._name)
        self._put_plan(key, stored, costs.cluster)

    # -- the model -----------------------------------------------------------------------------

    def _use_plan(self, placed: PlacedModel, stored: StoredPlan, cluster: Cluster) -> None:
        """Let the model, whose calls are captured, run under the plan: nothing is traced again."""
        plan = stored.planned_calls[-1].plan
        if not placed.has_gpus and self.weights is None:
            placed.use_plan(plan, stored.planned_calls)
            return
        with self.stages.line("weights") as note:
            placed.use_plan(plan, stored.planned_calls)
            self._fill(placed, cluster)
            note(weights_text(self.model))

    def _fill(self, placed: PlacedModel, cluster: Cluster) -> None:
        """Read weights from files, if there are any, and hold calls to the limits of GPUs."""
        if self.weights is not None:
            load_weights(self.model, self.weights, placed.torch_devices)
        if placed.has_gpus:
            placed.backend.memory_limits = MemoryLimits(cluster, self.limits.sizes)

    def _apply(self, stored: StoredPlan, cluster: Cluster) -> None:
        placed = PlacedModel(
            stored.planned_calls[-1].plan,
            self.model,
            self.device_map,
            stored.optimizer,
            self.cuda_graphs,
            planned_calls=stored.planned_calls,
        )
        self._fill(placed, cluster)
        placed.move_weights()
        placed.install()
        if not isinstance(self.mix, Train):
            self.mix.prepare(placed)

    def _leave_on(self, device: str) -> None:
        torch_name = find_real_devices((device,), self.device_map)[0].torch_name
        if self.weights is not None:
            names = (name for name, _ in self.model.named_parameters())
            load_weights(self.model, self.weights, dict.fromkeys(names, torch_name))
        self.model.to(torch_name)

    def _restore(self, devices: Sequence[tuple[torch.Tensor, torch.device]]) -> None:
        placed = getattr(self.model, "placed", None)
        if isinstance(placed, PlacedModel):
            placed.remove()
        move_tensors(devices)
