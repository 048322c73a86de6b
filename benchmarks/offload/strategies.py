"""Strategies to run a network that exceeds a GPU's limit.

Every strategy is given how often it has run out of memory before (`spare`), and leaves more memory
free each time: some do not plan for activations, and would never run otherwise.

On a machine without a GPU (with --small) the CPU stands in for it: the same code, no gain.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks.offload.models import Case, build, fill, weight_bytes
from placewright.errors import PlacewrightError
from placewright.runtime.cuda.issuer import clear_workspaces
from placewright.runtime.executor import Executor
from placewright.runtime.weight_storage import gather_to_host

if TYPE_CHECKING:
    from benchmarks.offload.plans import Candidate

Step = Callable[[], Any]
CPU = torch.device("cpu")
WARMUP_STEPS = 8
"""Steps in which our runtime may still choose how to issue ops."""


@dataclass
class Prepared:
    """A network that is ready to run.

    Args:
        step: Runs it once and returns its outputs.
        predicted: The simulated step time, if there is one.
        note: What was decided, in a few words.
        issued: How ops were issued to the GPU, once it has run.
    """

    step: Step
    predicted: float | None = None
    note: str = ""
    issued: Callable[[], str] = lambda: ""


def gpu() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else CPU


def limit_of(case: Case, small: bool) -> int:
    """Half the weights' bytes."""
    return weight_bytes(build(case, small)[0]) // 2


def enforce(limit: int) -> None:
    """Let this process have no more of the GPU's memory."""
    if gpu().type == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)


def whole(case: Case, small: bool, limit: int, spare: int, *_: float) -> Prepared:
    """Everything on the GPU, without a limit."""
    from benchmarks.offload.plans import predicted_whole

    model, args, kwargs = build(case, small)
    predicted = predicted_whole(case, model, args, kwargs) if gpu().type == "cuda" else None
    fill(model, lambda name: gpu(), gpu())
    return Prepared(_call(model, args, kwargs), predicted, "no limit")


def accelerate(case: Case, small: bool, limit: int, spare: int, *_: float) -> Prepared:
    """`device_map="auto"` of accelerate with the limit as the GPU's `max_memory`."""
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    model, args, kwargs = build(case, small)
    split = ["Block"]
    if gpu().type == "cpu":
        device_map: dict[str, Any] = {"": "cpu"}
    else:
        memory = {0: int(limit * (1 - 0.1 * spare)), "cpu": 1 << 40}
        memory = get_balanced_memory(model, memory, no_split_module_classes=split)
        device_map = infer_auto_device_map(model, memory, no_split_module_classes=split)

    def device_of(name: str) -> torch.device:
        keys = [key for key in device_map if name == key or name.startswith(f"{key}.") or not key]
        place = device_map[max(keys, key=len)]
        return CPU if place == "cpu" else torch.device("cuda", int(place))

    fill(model, device_of, gpu())
    on_cpu = sum(place == "cpu" for place in device_map.values())
    model = dispatch_model(model, device_map, main_device=None if gpu().type == "cpu" else 0)
    note = f"{on_cpu} of {len(device_map)} modules on the CPU"
    note += f", {10 * spare} % of the limit left to activations" if spare else ""
    return Prepared(_call(model, args, kwargs), note=note)


def hand(case: Case, small: bool, limit: int, spare: int, *_: float) -> Prepared:
    """Streaming as one writes it by hand: see `Streamer`."""
    model, args, kwargs = build(case, small)
    blocks = model.get_submodule("blocks")
    assert isinstance(blocks, nn.ModuleList)
    sizes = [weight_bytes(block) for block in blocks]
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    rest = weight_bytes(model) - sum(sizes) + buffers
    fitting = (limit - rest - 2 * max(sizes) - limit // 50) // max(sizes) - spare
    count = max(0, min(len(blocks), int(fitting)))
    # Evenly spread, so that the copies of one streamed block overlap resident ones.
    resident = {
        at
        for at in range(len(blocks))
        if (at + 1) * count // len(blocks) > at * count // len(blocks)
    }
    streamed = [at for at in range(len(blocks)) if at not in resident]
    prefixes = tuple(f"blocks.{at}." for at in streamed)
    weights = {name for name, _ in model.named_parameters()}
    fill(
        model,
        lambda name: CPU if name.startswith(prefixes) and name in weights else gpu(),
        gpu(),
    )
    streamer = Streamer([blocks[at] for at in streamed])
    run = _call(model, args, kwargs)

    def step() -> Any:
        streamer.begin()
        return run()

    return Prepared(step, note=f"{count} of {len(blocks)} blocks resident, two staged")


class Streamer:
    """Weights of some blocks, pinned on the host, copied ahead of need through two staging blocks.

    All weights of a block are contiguous, so a block is one copy. Copies run on a stream of their
    own; a block waits for its copy, and a copy for the block that used its staging buffer.
    """

    def __init__(self, blocks: list[nn.Module]) -> None:
        self.on_gpu = gpu().type == "cuda"
        self.stream = torch.cuda.Stream() if self.on_gpu else None
        size = max(
            (_aligned(each.nbytes for each in block.parameters()) for block in blocks), default=0
        )
        self.staging = [torch.empty(size, dtype=torch.uint8, device=gpu()) for _ in range(2)]
        self.pinned: list[torch.Tensor] = []
        self.copied: list[Any] = [None] * len(blocks)
        self.free: list[Any] = [None, None]
        for at, block in enumerate(blocks):
            self.pinned.append(self._gather(block, self.staging[at % 2]))
            block.register_forward_pre_hook(lambda *_, at=at: self._wait(at))
            block.register_forward_hook(lambda *_, at=at: self._done(at))

    def begin(self) -> None:
        """Start the first two copies of a step."""
        for at in range(min(2, len(self.pinned))):
            self._copy(at)

    def _gather(self, block: nn.Module, buffer: torch.Tensor) -> torch.Tensor:
        """Copy a block's weights to pinned memory; the block reads its staging buffer."""
        parameters = list(block.parameters())
        starts, end = [], 0
        for parameter in parameters:
            starts.append(end)
            end += _aligned([parameter.nbytes])
        pinned = torch.empty(end, dtype=torch.uint8, pin_memory=self.on_gpu)
        for parameter, start in zip(parameters, starts, strict=True):
            part = slice(start, start + parameter.nbytes)
            pinned[part].view(parameter.dtype).view(parameter.shape).copy_(parameter.data)
            parameter.data = buffer[part].view(parameter.dtype).view(parameter.shape)
        return pinned

    def _copy(self, at: int) -> None:
        pinned, buffer = self.pinned[at], self.staging[at % 2]
        if self.stream is None:
            buffer[: len(pinned)].copy_(pinned)
            return
        if self.free[at % 2] is not None:
            self.stream.wait_event(self.free[at % 2])
        with torch.cuda.stream(self.stream):
            buffer[: len(pinned)].copy_(pinned, non_blocking=True)
            self.copied[at] = self.stream.record_event()

    def _wait(self, at: int) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_event(self.copied[at])

    def _done(self, at: int) -> None:
        if self.stream is not None:
            self.free[at % 2] = torch.cuda.current_stream().record_event()
        if at + 2 < len(self.pinned):
            self._copy(at + 2)


def ours(
    case: Case, small: bool, limit: int, spare: int, seconds: float, profiling: float
) -> Prepared:
    """The fastest, as measured, of the plans that `auto` finds for this machine and limit."""
    from benchmarks.offload.plans import find_candidates

    model, args, kwargs = build(case, small)
    usable = int(limit * (1 - 0.05 * spare))
    plans = find_candidates(case, model, args, kwargs, small, usable, seconds, profiling)
    plans.sort(key=lambda plan: -plan.predicted)  # the best prediction last: it may stay
    fill(model, plans[0].device_of, gpu())
    _clear()
    enforce(limit)
    took: list[float] = []
    modes: list[str] = []
    executor = None
    for plan in plans:
        if executor is not None:
            executor.close()
            _clear()
        if plan is plans[-1]:
            _clear_gpu(model)
        seconds, mode, executor = _measure(plan, model, args, kwargs)
        took.append(seconds)
        modes.append(mode)
    if min(took) == math.inf:
        raise RuntimeError(f"every plan: {modes[-1]}")
    best = plans[took.index(min(took))]
    if best is not plans[-1] or executor is None:
        if executor is not None:
            executor.close()
        _clear_gpu(model)
        executor = Executor(best.program, model, best.plan, best.device_map)
    run = executor
    times = ", ".join(
        f"{1e3 * plan.predicted:.1f} → {1e3 * one:.1f} ({mode})"
        for plan, one, mode in zip(plans, took, modes, strict=True)
    )
    note = f"{best.note}; plans predicted → measured ms: {times}"
    note += f"; {5 * spare} % of the limit left free" if spare else ""
    return Prepared(
        lambda: run(*args, **kwargs),
        best.predicted,
        note,
        lambda: f"; at last {run.issue_mode}",
    )


def _measure(
    candidate: Candidate, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[float, str, Executor | None]:
    """Seconds of a plan's step, how ops are issued, and the executor; or why there is none."""
    try:
        executor = Executor(candidate.program, model, candidate.plan, candidate.device_map)
        return _median_seconds(lambda: executor(*args, **kwargs)), executor.issue_mode, executor
    except (PlacewrightError, RuntimeError) as error:
        if "out of memory" not in str(error).lower():
            raise
        reason = str(error).partition(". ")[0]
    _clear_gpu(model)
    return math.inf, reason, None


def _clear_gpu(model: nn.Module) -> None:
    """Move all weights to the host: those that come and go with plans fragment the memory."""
    gather_to_host(model)
    _clear()


def _median_seconds(step: Step) -> float:
    """The median seconds of a few steps."""
    times = []
    for _ in range(WARMUP_STEPS + 6):
        _wait()
        began = time.perf_counter()
        step()
        _wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times[WARMUP_STEPS:])


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _clear() -> None:
    gc.collect()
    clear_workspaces()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


STRATEGIES: dict[str, Callable[..., Prepared]] = {
    "gpu": whole,
    "accelerate": accelerate,
    "hand": hand,
    "ours": ours,
}


def _aligned(sizes: Iterable[int]) -> int:
    """Bytes of tensors that are each aligned to 256 bytes."""
    return sum(-(-size // 256) * 256 for size in sizes)


def _call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
    positional = [_moved(arg) for arg in args]
    named = {name: _moved(arg) for name, arg in kwargs.items()}

    def step() -> Any:
        with torch.no_grad():
            return model(*positional, **named)

    return step


def _moved(value: Any) -> Any:
    return value.to(gpu()) if isinstance(value, torch.Tensor) else value
