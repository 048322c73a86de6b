"""Language models of transformers under a plan: `generate` against an untouched copy.

`python -m attack.decoders [NAME …]` in `tests/` prints a table: graphs of a first and a second call
of `generate`, how many of them serve several lengths, and what ran without a plan. Calls are
captured with their caches in a dry run, as `place` does; ops alternate over two workers. With
`--kind gpu` weights are stored on the host, and all ops run on a GPU.
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from attack.decoder_configs import DECODERS
from attack.odd_uses.placing import KINDS, cluster_of, devices_of, plan_of

from placewright import Generate, PlacewrightError, Problem
from placewright.deployment.call_capture import begin_capture, capture_calls
from placewright.runtime.planned_calls import PlannedCall, with_all_weights


@dataclass(frozen=True)
class Generation:
    """What came of two calls of `generate`.

    Args:
        calls: The calls that were captured, with their caches.
        graphs: How many graphs the first call had, and both.
        symbolic: How many of them serve several lengths.
        buckets: How many of them decode in buckets, each with a graph of fixed sizes.
        eager_graphs: How many of them no executor runs.
        eager_calls: How many calls of the model ran eagerly.
        is_equal: Whether all tokens are the model's own.
        reason: Why calls could not be captured, or ran eagerly.
    """

    name: str
    calls: tuple[str, ...]
    graphs: tuple[int, int]
    symbolic: int
    buckets: int
    eager_graphs: int
    eager_calls: int
    is_equal: bool
    reason: str


def build_decoder(name: str, **sizes: Any) -> Any:
    """A tiny language model with random weights."""
    import transformers

    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    return model_class(model_class.config_class(**{**DECODERS[name], **sizes})).eval()


def place_decoder(
    model: Any, mix: Generate, kind: str = "alternating"
) -> tuple[Any, tuple[str, ...]]:
    """Capture the calls of a model, and run them under a kind of plan."""
    cluster = cluster_of(kind)
    placed = begin_capture(model, cluster)
    calls = capture_calls(placed, mix)
    plans = []
    for call in calls:
        plan = plan_of(Problem(call.program.graph, cluster), kind)
        plans.append(PlannedCall(plan, call.flops))
    weights = {
        name: planned.plan.device_names[device]
        for planned in plans
        for name, device in zip(planned.plan.ops, planned.plan.placement, strict=True)
        if name in dict(placed.backend.named_tensors())
    }
    planned_calls = [
        PlannedCall(with_all_weights(planned.plan, weights), planned.flops) for planned in plans
    ]
    placed.use_plan(planned_calls[-1].plan, planned_calls)
    return placed, tuple(call.name for call in calls)


def generate(
    name: str, new_tokens: int = 12, kind: str = "alternating", **arguments: Any
) -> Generation:
    """Generate tokens twice, from two prompts, against an untouched copy of the model."""
    model = build_decoder(name)
    own = copy.deepcopy(model)
    mix = Generate(prompt=7, new_tokens=new_tokens, arguments=arguments)
    calls: tuple[str, ...] = ()
    reason = ""
    with devices_of(kind):
        try:
            placed, calls = place_decoder(model, mix, kind)
        except PlacewrightError as error:
            reason, placed = str(error), model.placed
        first_graphs, is_equal = 0, True
        for length in (7, 11):
            tokens = mix.run(model, length, new_tokens)
            is_equal &= torch.equal(tokens.cpu(), mix.run(own, length, new_tokens))
            first_graphs = first_graphs or len(placed.graphs)
        graphs = placed.graphs
        placed.remove()
    reasons = [reason, *(graph.reason for graph in graphs), *placed.eager_calls]
    return Generation(
        name,
        calls,
        (first_graphs, len(graphs)),
        sum(graph.is_symbolic for graph in graphs),
        sum(bool(graph.static_graphs) for graph in graphs),
        sum(bool(graph.reason) for graph in graphs) + placed.backend.failures.total(),
        sum(placed.eager_calls.values()),
        is_equal,
        next((text for text in reasons if text), ""),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="attack.decoders", description=__doc__)
    parser.add_argument("names", nargs="*", help="models; else all")
    parser.add_argument("--kind", choices=KINDS, default="alternating", help="of the plans")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    columns = ("model", "captured calls", "graphs", "after another prompt", "symbolic")
    columns = (*columns, "in buckets", "eager graphs", "eager calls", "equal tokens", "why not")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name in options.names or DECODERS:
        one = generate(name, kind=options.kind)
        cells = (
            *(one.name, ", ".join(one.calls), one.graphs[0], one.graphs[1], one.symbolic),
            *(
                one.buckets,
                one.eager_graphs,
                one.eager_calls,
                "yes" if one.is_equal else "NO",
                one.reason[:120],
            ),
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
