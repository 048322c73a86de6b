"""The rows and systems of `benchmarks.learning.arms`, chosen before the first run.

Rows are those of the papers' tables that the zoo has, the smaller ones: two or three for each
system, on the GPUs of its paper. Figures of a paper are seconds per step on its own machines. Tags
say where they are from: `[S]` a secondary source (slides with the paper's table), `[M+]` from
memory, and the percentages that the paper prints recompute from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import placewright as pw
from placewright import policies
from placewright.policies.grouping import group_ops
from placewright.solvers import LocalSearch
from placewright.training import Recipe, find_recipe
from placewright.training.go.imitation import Imitation
from placewright.training.recipes.arms import ARMS
from placewright.training.recipes.go import MAX_UNITS, go_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

PLANS = 1000
"""Plans that each arm may judge, a teacher's plans among them."""
SEEDS = range(3)
ONE_DEVICE = "noise around one device"
"""A policy that was taught the best single device and then only samples, with its recipe's noise.

It was added after a first look at ColocRL with seed 0: there `rewards only` beats `never learns`,
and its likeliest plan is one device."""
EXACT = Imitation(damaged_copies=0, unit_probability=1.0, max_smoothed_decisions=0.5)
"""On one graph: imitate all of a strong plan, to the last unit."""


@dataclass(frozen=True)
class Row:
    """A row of a paper's table.

    Args:
        other, own: Seconds per step of the paper's best other method and of its own.
        tag: The source of both.
    """

    name: str
    network: str
    cluster: str
    other: float
    own: float
    tag: str

    def problem(self) -> pw.Problem:
        """The problem, with devices that run ready ops first, as TensorFlow's executor does."""
        graph, cluster = pw.zoo.load(self.network), pw.Cluster.parse(self.cluster)
        return pw.Problem(graph, cluster, discipline="ready")


@dataclass(frozen=True)
class System:
    """A paper's system: its recipe as it ships, its rows, and the arms that it has.

    Args:
        search: Local search over what the policy decides on: its groups, or single ops and their
            order.
        controls: Further arms that are no recipe's (`arm_runs.py`).
    """

    title: str
    recipe: Callable[[], Recipe]
    rows: tuple[Row, ...]
    search: LocalSearch
    arms: tuple[str, ...]
    controls: tuple[str, ...] = ()


def _go() -> Recipe:
    """GO as it ships, with the sizes that suit one graph and a thousand plans."""
    config = policies.find_config("go")(
        tasks=("device", "priority"), starts=3, timed=True, max_groups=MAX_UNITS, hidden=32
    )
    return go_recipe(config, learning_rates=(3e-3, 1e-3), imitation_epochs=10, imitation=EXACT)


def _search_in(rule: str, groups: int) -> LocalSearch:
    return LocalSearch(partial(group_ops, rule=rule, count=groups), with_priorities=False)


_ALL = tuple(ARMS)
_WITHOUT_REINFORCE = tuple(arm for arm in ARMS if arm != "clipped apart")

SYSTEMS = {
    "colocrl": System(
        "ColocRL (2017)",
        partial(find_recipe, "colocrl"),
        (
            Row("rnnlm", "rnnlm-2", "2xK80+Haswell", 1.57, 1.57, "[M+]"),
            Row("nmt", "nmt-2", "2xK80+Haswell", 4.99, 4.04, "[M+]"),
            Row("inception-v3", "inception-v3", "2xK80+Haswell", 4.60, 4.60, "[M+]"),
        ),
        _search_in("colocation", 64),
        _ALL,
        (ONE_DEVICE,),
    ),
    "hierarchical": System(
        "Hierarchical (2018)",
        partial(find_recipe, "hierarchical"),
        (
            Row("rnnlm", "rnnlm-2", "2xK40+Haswell", 1.57, 1.57, "[M+]"),
            Row("nmt-2", "nmt-2", "2xK40+Haswell", 2.13, 0.84, "[M+]"),
            Row("inception-v3", "inception-v3", "2xK40+Haswell", 0.15, 0.13, "[M+]"),
        ),
        _search_in("colocation", 64),
        _ALL,
    ),
    "placeto": System(
        "Placeto (2019)",
        partial(find_recipe, "placeto"),
        (
            Row("inception-v3", "inception-v3", "2xK80+cpu", 1.17, 1.18, "[M+]"),
            Row("nmt", "nmt-2", "2xK80+cpu", 2.35, 2.32, "[M+]"),
        ),
        _search_in("coarse", 64),
        _WITHOUT_REINFORCE,
    ),
    "go": System(
        "GO (2020)",
        _go,
        (
            Row("rnnlm-2", "rnnlm-2", "2xP100+cpu", 0.191, 0.173, "[S]"),
            Row("txl-2", "transformer-xl-2", "2xP100+cpu", 0.262, 0.223, "[S]"),
            Row("inception-32", "inception-v3", "2xP100+cpu", 0.301, 0.229, "[S]"),
        ),
        LocalSearch(),
        _WITHOUT_REINFORCE,
    ),
}
"""Systems by the name of their recipe."""


def find_row(system: str, name: str) -> Row:
    """The row of that name."""
    return next(row for row in SYSTEMS[system].rows if row.name == name)
