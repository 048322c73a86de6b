"""Report pages and traces of problems whose names and numbers are hostile."""

from __future__ import annotations

import json
from random import Random

from attack.fuzz import use
from attack.fuzz.batches import attack_of
from attack.fuzz.mutation import ODD_TEXTS

from placewright import Cluster, Device, Graph, Link, Op, Problem, Roofline, solve, solvers
from placewright.errors import PlacewrightError
from placewright.reporting import html_page
from placewright.reporting.content import PageContent
from placewright.reporting.trace import chrome_trace
from placewright.solvers import Comparison
from placewright.solvers.results import timeline_of

attack = attack_of(__name__)
NAMES = (
    *ODD_TEXTS,
    "</script><script>alert(1)</script>",
    "<!--",
    "\"><img src=x onerror='alert(2)'>",
    "\u2028\u202e",
    "a.b.c.d",
    "🦜",
)


def attempt(seed: int) -> str:
    """Solve a drawn problem quickly and render it."""
    rng = Random(seed)
    try:
        problem = _problem(rng)
        result = solve(problem, solvers.METHODS[rng.choice(("heft", "single", "m-etf"))]())
        comparison = Comparison(problem, (result,), name=rng.choice(NAMES))
        page = html_page(PageContent.of(comparison, notes=[rng.choice(NAMES)]))
        assert "<script>alert" not in page, "a name is a script"
        page.encode()
        json.dumps(chrome_trace(problem, timeline_of(problem, result)), allow_nan=False)
    except PlacewrightError as error:
        return use.refused(error)
    return "accepted"


def _problem(rng: Random) -> Problem:
    sizes = (0, 1, 8, 2**20, 2**40)
    ops: list[Op] = []
    for at in range(rng.randrange(1, 12)):
        sources = rng.sample(range(at), min(at, rng.randrange(3)))
        inputs = tuple((source, 0) for source in sources if ops[source].outputs)
        ops.append(
            Op(
                f"{rng.choice(NAMES)}{at}",
                kind=rng.choice((*NAMES, *(["weight", "input"] if not inputs else ["view"]))),
                inputs=inputs,
                outputs=tuple(rng.choice(sizes) for _ in range(rng.choice((0, 1, 1, 1, 2)))),
                flops=rng.choice((0.0, 1.0, 1e9, 1e15)),
                bytes_moved=rng.choice(sizes),
                workspace=rng.choice((0, 0, 2**30)),
                module=rng.choice(NAMES),
                phase=rng.choice(("forward", "backward", "update")),
            )
        )
    devices = tuple(
        Device(
            f"{rng.choice(NAMES).translate(str.maketrans('', '', '+@(), '))}{at}",
            kind=rng.choice(("gpu", "cpu", rng.choice(NAMES))),
            model=rng.choice(NAMES),
            memory=rng.choice((0, 1000, 2**40)),
            rates={rng.choice(("float32", *NAMES)): rng.choice((1e-3, 1.0, 1e15))},
            memory_bandwidth=1e30,
            launch_overhead=rng.choice((0.0, 1e-6, 10.0)),
        )
        for at in range(rng.randrange(1, 4))
    )
    names = [device.name for device in devices]
    links = {
        (a, b): Link(rng.choice((1e-3, 1.0, 1e12)), rng.choice((0.0, 1e-6, 5.0)), rng.choice(NAMES))
        for a in names
        for b in names
        if a != b
    }
    return Problem(Graph(rng.choice(NAMES), tuple(ops)), Cluster("c", devices, links), Roofline())
