"""Plans under perturbed costs: what was asked in, the choice, a table and JSON out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.cli.render.text import count
from placewright.errors import ConfigError
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.solvers import Found, Robust, Robustness, Search
    from placewright.solvers.cost_perturbation import Ranked

RULE = "fewest trials over memory, then smallest mean of the worst tenth"


@dataclass(frozen=True)
class Choice:
    """A robust choice among a search's best few plans that keeps what it saw.

    Args:
        ranked: The plans that were to choose from, the chosen one first; nothing before a search.
    """

    rule: Robust
    ranked: list[Ranked] = field(default_factory=list)

    def __call__(self, search: Search) -> Found:
        self.ranked[:] = self.rule.rank(search)
        return self.ranked[0].found


def asked_choice(
    robust: bool, trials: int | None, spread: float | None, seed: int
) -> Choice | None:
    """The choice that is asked for, if any.

    Raises:
        ConfigError: An option of `--robust` is there without it, or is nonsense.
    """
    from placewright.solvers import Robust

    if not robust:
        for option, value in (("--trials", trials), ("--spread", spread)):
            if value is not None:
                raise ConfigError(f"{option} {value}: it goes with --robust, add that")
        return None
    given = {"trials": trials, "spread": spread}
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Choice(Robust(**wanted, seed=seed))


def print_robust(rows: Sequence[tuple[str, Robustness]], what: str, chosen: int = 0) -> None:
    """A table of plans (or methods) under perturbed costs; `*` is on the chosen one."""
    from placewright.cli.render.tables import print_lines, print_table

    one = rows[0][1]
    trials = count(one.trials, "trial")
    print_lines(["", f"with costs perturbed by ±{one.spread * 100:g} % ({trials}):"])
    columns = [f"  {what}", "as planned", "median", "95 %", "worst tenth", "worst"]
    over = any(each.over for _, each in rows)
    table = []
    for at, (name, each) in enumerate(rows):
        figures = [each.nominal, each.median, each.p95, each.tail, each.worst]
        row = [f"{'*' if at == chosen else ' '} {name}", *map(format_seconds, figures)]
        table.append([*row, f"{each.over}"] if over else row)
    print_table([*columns, "over"] if over else columns, table, space=False)
    print_lines(["", f"* has the {RULE}"])


def robust_data(robustness: Robustness) -> dict[str, Any]:
    """One plan's figures under perturbed costs, in seconds."""
    return asdict(robustness)


def choice_data(choice: Choice) -> dict[str, Any]:
    """What was to choose from, the chosen one first."""
    return {
        "rule": RULE,
        "plans": [
            {"found_by": each.found.found_by, **robust_data(each.robustness)}
            for each in choice.ranked
        ],
    }
