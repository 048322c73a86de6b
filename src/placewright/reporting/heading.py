"""What stands above the answer: the options of the problem, its cluster, and the command."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from placewright.costs import Roofline, Table
from placewright.solvers import METHODS

if TYPE_CHECKING:
    from placewright.cluster import Cluster
    from placewright.costs import CostModel
    from placewright.problem import Problem
    from placewright.reporting.content import PageContent

MAX_LINKED_DEVICES = 64  # up to which links are listed: there is one for every pair
MAX_LINK_ROWS = 12


def heading_data(content: PageContent) -> dict[str, Any]:
    """The facts that make the problem what it is."""
    problem = content.problem
    return {
        "limits": {name: int(size) for name, size in problem.constraints.limits.items()},
        "constraints": _constraints_text(problem),
        "costs": costs_text(problem.costs),
        "date": content.date,
        "command": command_text(content),
        "links": link_rows(problem.cluster),
    }


def costs_text(costs: CostModel) -> str:
    """Where op times come from."""
    if isinstance(costs, Roofline):
        return "estimated (roofline)"
    if isinstance(costs, Table):
        return f"measured on {costs.machine}" if costs.machine else "a table of op times"
    return type(costs).__name__


def command_text(content: PageContent) -> str | None:
    """The command that makes the answer again; None if the options are not known."""
    comparison = content.comparison
    result = comparison.best
    if "model" not in result.options or result.solver not in METHODS:
        return None
    words = ["placewright", "place" if len(comparison.results) == 1 else "compare"]
    words.append(str(result.options["model"]))
    for name, value in result.options.items():
        option = f"--{name.replace('_', '-')}"
        if name == "model":
            continue
        if isinstance(value, bool):
            words += [option] if value else []
        elif isinstance(value, tuple):
            words += [word for item in value for word in (option, item)]
        else:
            words += [option, str(value)]
    if len(comparison.results) == 1 and result.solver != "auto":
        words += ["--method", result.solver]
    words += ["--seed", str(result.seed)] if result.seed else []
    return shlex.join(words)


def link_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """Links of equal figures in one row each: an example, how many there are, bytes per second."""
    if len(cluster) > MAX_LINKED_DEVICES:
        return []
    found: dict[tuple[float, float], list[tuple[str, str]]] = {}
    for ends, link in cluster.links.items():
        found.setdefault((link.bandwidth, link.latency), []).append(ends)
    most_first = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        {
            "source": pairs[0][0],
            "target": pairs[0][1],
            "count": len(pairs),
            "bandwidth": bandwidth if math.isfinite(bandwidth) else None,
            "latency": latency,
        }
        for (bandwidth, latency), pairs in most_first[:MAX_LINK_ROWS]
    ]


def _constraints_text(problem: Problem) -> list[str]:
    constraints = problem.constraints
    texts = [f"{ops} on {device}" for ops, device in constraints.pins.items()]
    texts += [f"{ops} not on {', '.join(names)}" for ops, names in constraints.forbid.items()]
    texts += [f"{', '.join(ops)} together" for ops in constraints.colocate]
    return texts[:8] + ([f"{len(texts) - 8} more"] if len(texts) > 8 else [])
