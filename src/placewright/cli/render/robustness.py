"""Selection under perturbed costs, and its table and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.cli.render.text import format_count
from placewright.errors import ConfigError
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.solvers import Candidate, RobustChoice, Robustness, Search
    from placewright.solvers.cost_perturbation import RankedCandidate

SELECTION_RULE = "fewest trials over memory, then smallest mean of the worst tenth"


@dataclass(frozen=True)
class RobustSelection:
    """A robust choice among a search's best plans that keeps its ranking.

    Args:
        ranked: The plans to choose from, the chosen one first; empty before a search.
    """

    rule: RobustChoice
    ranked: list[RankedCandidate] = field(default_factory=list)

    def __call__(self, search: Search) -> Candidate:
        self.ranked[:] = self.rule.rank(search)
        return self.ranked[0].candidate


def robust_selection(
    robust: bool, trials: int | None, spread: float | None, seed: int
) -> RobustSelection | None:
    """The choice that the options request, if any.

    Raises:
        ConfigError: An option of `--robust` is given without it, or is out of range.
    """
    from placewright.solvers import RobustChoice

    if not robust:
        for option, value in (("--cost-trials", trials), ("--cost-noise", spread)):
            if value is not None:
                raise ConfigError(f"{option} {value}: it needs --robust: add that")
        return None
    arguments = {"trials": trials, "spread": spread}
    settings: dict[str, Any] = {
        name: value for name, value in arguments.items() if value is not None
    }
    return RobustSelection(RobustChoice(**settings, seed=seed))


def print_robustness(rows: Sequence[tuple[str, Robustness]], heading: str, chosen: int = 0) -> None:
    """A table of plans (or methods) under perturbed costs; `*` is on the chosen one."""
    from placewright.cli.render.tables import print_lines, print_table

    reference = rows[0][1]
    trials = format_count(reference.trials, "trial")
    print_lines(["", f"with costs perturbed by ±{reference.spread * 100:g} % ({trials}):"])
    columns = [f"  {heading}", "as planned", "median", "95 %", "worst tenth", "worst"]
    has_overflow = any(robustness.over for _, robustness in rows)
    table = []
    for at, (name, robustness) in enumerate(rows):
        figures = [
            robustness.nominal,
            robustness.median,
            robustness.p95,
            robustness.tail,
            robustness.worst,
        ]
        row = [f"{'*' if at == chosen else ' '} {name}", *map(format_seconds, figures)]
        table.append([*row, f"{robustness.over}"] if has_overflow else row)
    print_table([*columns, "over"] if has_overflow else columns, table, blank_line=False)
    print_lines(["", f"* has the {SELECTION_RULE}"])


def robustness_data(robustness: Robustness) -> dict[str, Any]:
    """One plan's figures under perturbed costs, in seconds."""
    return asdict(robustness)


def selection_data(selection: RobustSelection) -> dict[str, Any]:
    """The plans to choose from, the chosen one first."""
    return {
        "rule": SELECTION_RULE,
        "plans": [
            {"found_by": candidate.candidate.found_by, **robustness_data(candidate.robustness)}
            for candidate in selection.ranked
        ],
    }
