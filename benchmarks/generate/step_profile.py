"""Where the time of a prompt and of a token goes under `place`, and where a GPU's memory goes.

    python -m benchmarks.generate.step_profile --limit 0.5     the Llama, on a GPU
    python -m benchmarks.generate.step_profile --small         tiny models; also without a GPU

`generate` is run for one token and for 16 more, as in `benchmarks.generate.measure`; then again
with clocks around the calls of the model, their compiled graphs and each op of a CPU worker, and
once under PyTorch's profiler. What `generate` and TorchDynamo's guards take is apart from the
graphs' steps, which are what was predicted. Products on the host have the rate at which they read
weights; copies to the GPU have theirs. Memory is what the allocator has, what of it tensors use,
and what libraries take beside it.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.common import Table, make_parser, milliseconds
from benchmarks.generate.measure import NEW_TOKENS
from benchmarks.generate.models import SUBJECTS, build, weight_bytes
from benchmarks.generate.ways import calls_of, device, ours
from placewright.graph import STATE, VIEW, WEIGHT
from placewright.runtime.cuda.library_memory import library_bytes, note_context
from placewright.runtime.dynamo.compiled_graph import CompiledGraph

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from placewright.graph import Graph

LARGE_COPY = 1 << 20
"""Bytes of a copy from which it is one of weights, and not of activations."""
WARM_UPS = 3


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    names = [name for name, subject in SUBJECTS.items() if subject.use == "generate"]
    option("--model", choices=names, default="llama", help="the model")
    option("--limit", type=float, default=0.5, help="share of the weights' bytes")
    option("--prompt", type=int, default=512, help="tokens of the prompt")
    option("--small", action="store_true", help="a tiny model")
    arguments = parser.parse_args(argv)
    if device().type == "cuda":
        note_context(0)
    else:
        torch.set_num_threads(1)
    model = prepare(arguments)
    report_memory("after place")
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(2, vocabulary, (1, arguments.prompt), generator=generator).to(device())
    generate = partial(run_generate, model, prompt)
    for _ in range(WARM_UPS):
        generate(NEW_TOKENS)
    report_memory("after three generations")
    first, longer = (min(seconds_of(partial(generate, n)) for _ in range(3)) for n in (1, 17))
    print(f"prompt {first * 1e3:.1f} ms, token {(longer - first) / 16 * 1e3:.2f} ms")
    print(f"predicted: {getattr(getattr(model, 'placed', None), 'predicted_seconds', {})}")
    with clocks(model) as clock:
        generate(NEW_TOKENS)
    clock.report(longer)
    if device().type == "cuda":
        report_copies(generate)
    report_graphs(model)


def prepare(arguments: argparse.Namespace) -> Any:
    """The model under a plan for the benchmark's calls."""
    weights = weight_bytes(build(arguments.model, arguments.small, "meta"))
    mix = calls_of(arguments.model, arguments.small, arguments.prompt, NEW_TOKENS)
    return ours(arguments.model, arguments.small, int(weights * arguments.limit), mix)[0]


def run_generate(model: Any, prompt: torch.Tensor, new_tokens: int) -> Any:
    return model.generate(
        prompt, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False
    )


def seconds_of(call: Callable[[], Any]) -> float:
    """Seconds of a call, until the GPU has ended it."""
    synchronize()
    began = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - began


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Clock:
    """Seconds of the calls, of their graphs and of the ops of CPU workers."""

    def __init__(self) -> None:
        self.calls: list[float] = []
        self.graphs: dict[CompiledGraph, list[float]] = defaultdict(list)
        self.ops: dict[CompiledGraph, dict[int, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def report(self, whole: float) -> None:
        """Print where the time went.

        Args:
            whole: Seconds of the same generation without clocks.
        """
        in_graphs = sum(sum(seconds) for seconds in self.graphs.values())
        print(
            f"a generation: {whole * 1e3:.1f} ms without clocks; with them calls of the model "
            f"{sum(self.calls) * 1e3:.1f} ms, graphs in them {in_graphs * 1e3:.1f} ms"
        )
        table = Table(
            *("graph", "runs", "ms", "op of the host", "times", "ms a run", "MB", "GB/s"),
            title="graphs, and the ops of the host that take longest",
        )
        for number, (graph, seconds) in enumerate(self.graphs.items()):
            median = milliseconds(statistics.median(seconds))
            table.row(number, len(seconds), median, *[None] * 5)
            for row in self._op_rows(graph, len(seconds)):
                table.row(None, None, None, *row)

    def _op_rows(self, compiled: CompiledGraph, runs: int) -> list[tuple[Any, ...]]:
        """The kinds of ops of the host: how often, and at which rate they read weights."""
        assert compiled.program is not None
        graph = compiled.program.graph
        totals: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for position, seconds in self.ops[compiled].items():
            total = totals[graph.ops[position].kind, read_bytes(graph, position)]
            total[0] += len(seconds) / runs
            total[1] += sum(seconds) / runs
        rows = []
        for (kind, size), (count, seconds) in sorted(totals.items(), key=lambda item: -item[1][1]):
            rate = f"{size * count / seconds / 1e9:.1f}" if size and seconds else None
            rows.append((kind, f"{count:g}", milliseconds(seconds), f"{size / 1e6:.1f}", rate))
        return rows[:8]


@contextmanager
def clocks(model: Any) -> Iterator[Clock]:
    """Measure the calls of a placed model, its graphs and the ops of its CPU workers."""
    clock = Clock()
    run_step, forward = CompiledGraph._run_step, model.forward
    run_graph: Any = CompiledGraph

    def timed_step(graph: CompiledGraph, args: Any) -> Any:
        undo = time_workers(graph, clock)
        began = time.perf_counter()
        try:
            return run_step(graph, args)
        finally:
            clock.graphs[graph].append(time.perf_counter() - began)
            undo()

    def timed_forward(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return forward(*args, **kwargs)
        finally:
            clock.calls.append(time.perf_counter() - began)

    timed_forward.__wrapped__ = forward  # type: ignore[attr-defined]
    run_graph._run_step = timed_step
    model.forward = timed_forward
    try:
        yield clock
    finally:
        run_graph._run_step = run_step
        model.forward = forward


def time_workers(compiled: CompiledGraph, clock: Clock) -> Callable[[], None]:
    """Put clocks around the ops of a graph's CPU workers; a function that takes them off."""
    changed: list[tuple[list[Any], list[Any]]] = []
    workers = {} if compiled.executor is None else compiled.executor.workers
    for worker in workers.values():
        runners: Any = worker.job.runners
        changed.append((runners, list(runners)))
        for index, instruction in enumerate(worker.job.instructions.sequence):
            seconds = clock.ops[compiled][instruction.position]
            runners[index] = partial(_timed_op, runners[index], seconds)

    def undo() -> None:
        for runners, originals in changed:
            runners[:] = originals

    return undo


def _timed_op(run: Callable[[Any], Any], seconds: list[float], inputs: Any) -> Any:
    began = time.perf_counter()
    outputs = run(inputs)
    seconds.append(time.perf_counter() - began)
    return outputs


def read_bytes(graph: Graph, position: int) -> int:
    """Bytes of the weights that an op reads, through views or directly."""
    size = 0
    for source, output in dict.fromkeys(graph.ops[position].inputs):
        at, out = source, output
        while graph.ops[at].kind == VIEW and graph.ops[at].inputs:
            at, out = graph.ops[at].inputs[0]
        if graph.ops[at].kind in (WEIGHT, STATE):
            size += graph.ops[at].outputs[out]
    return size


def report_copies(generate: Callable[[int], Any]) -> None:
    """Print what the GPU did in a generation: copies of weights, others, and kernels."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        seconds = seconds_of(partial(generate, NEW_TOKENS))
    kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    results: Any = profiler.profiler
    for event in results.kineto_results.events():
        name = event.name()
        if "Memcpy" not in name and "Memset" not in name:
            kind = "kernels"
        else:
            size = getattr(event, "nbytes", lambda: 0)()
            is_long = event.duration_ns() * 20 > LARGE_COPY  # 20 GB/s at least
            is_weight = "HtoD" in name and (size >= LARGE_COPY or (not size and is_long))
            kind = "weights to the GPU" if is_weight else name
        kinds[kind][0] += 1
        kinds[kind][1] += event.duration_ns() / 1e9
    table = Table("on the GPU", "count", "ms", title=f"a generation of {seconds * 1e3:.1f} ms")
    for kind, (count, busy) in sorted(kinds.items(), key=lambda item: -item[1][1]):
        table.row(kind, f"{count:g}", milliseconds(busy))


def report_graphs(model: Any) -> None:
    """Print what each executor runs, streams and captured."""
    table = Table("graph", "ops", "on the host", "streamed MB", "staging MB", "CUDA graphs")
    graphs = model.placed.graphs if hasattr(model, "placed") else ()
    for number, graph in enumerate(each for top in graphs for each in (top, *top.static_graphs)):
        executor = graph.executor
        if executor is None:
            continue
        streamed = staging = 0
        for job in executor.jobs.values():
            if job.instructions.staging is not None:
                streamed += sum(copy.size for copy in job.instructions.staging.copies)
                staging += job.instructions.staging.capacity
        host_ops = sum(
            len(worker.job.instructions.sequence) for worker in executor.workers.values()
        )
        captured = None if executor.issuer is None else str(executor.issuer.cuda_graphs)
        table.row(
            *(number, len(graph.program.graph), host_ops),
            *(f"{streamed / 1e6:.0f}", f"{staging / 1e6:.0f}", captured),
        )


def report_memory(text: str) -> None:
    """Print what this process has of the GPU's memory."""
    if not torch.cuda.is_available():
        return
    synchronize()
    parts = {
        "tensors": torch.cuda.memory_allocated(),
        "allocator": torch.cuda.memory_reserved(),
        "its peak": torch.cuda.max_memory_reserved(),
        "libraries": library_bytes(0),
    }
    print(
        f"{text}: " + ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in parts.items())
    )


if __name__ == "__main__":
    main()
