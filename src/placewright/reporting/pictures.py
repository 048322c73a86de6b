"""Pictures of a result's timeline or graph, for notebooks and papers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, FileError, MissingDependency, PlanError, nearest
from placewright.files import plan_for
from placewright.files.storage import write_bytes
from placewright.reporting.picture_graph import graph_svg
from placewright.reporting.picture_timeline import timeline_svg
from placewright.reporting.step_view import StepView

if TYPE_CHECKING:
    import os

    from placewright.problem import Problem
    from placewright.result import Result

RENDERERS = {"timeline": timeline_svg, "graph": graph_svg}


@dataclass(frozen=True)
class Picture:
    """A picture, as SVG; a notebook shows it."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def png(self, scale: int = 2) -> bytes:
        """The picture as PNG.

        Args:
            scale: Pixels to a point: 2 is sharp on most screens.

        Raises:
            MissingDependency: The package that draws it is not installed.
        """
        try:
            import resvg_py
        except ImportError:
            raise MissingDependency("resvg-py", "png") from None
        return bytes(resvg_py.svg_to_bytes(svg_string=self.svg, zoom=scale))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as SVG or PNG, as the name ends.

        Raises:
            FileError: The name ends otherwise, or the file cannot be written.
            MissingDependency: The package that draws PNG is not installed.
        """
        target = Path(path)
        if target.suffix.lower() not in (".svg", ".png"):
            raise FileError(f"{path}: a picture is SVG or PNG: end the name in .svg or .png")
        content = self.svg.encode() if target.suffix.lower() == ".svg" else self.png()
        try:
            write_bytes(content, target)
        except FileError as error:
            raise FileError(f"{path}: {error}") from None


def plot(result: Result, kind: str = "timeline", problem: Problem | None = None) -> Picture:
    """A picture of a result's plan: its `timeline`, or its `graph` coloured by device.

    A notebook shows it; `plot(result).save("step.svg")` writes it, and so does `.png`.

    Args:
        problem: The problem that was solved, for a result that comes from a file.

    Raises:
        ConfigError: There is no such picture.
        PlanError: The problem is not known, or not the plan's.
    """
    if kind not in RENDERERS:
        raise ConfigError(f"there is no picture {kind!r} of a result: {nearest(kind, RENDERERS)}")
    plan_problem = result.problem if problem is None else problem
    if plan_problem is None:
        raise PlanError(
            "the result does not know its problem: give it, as in "
            "plot(result, 'timeline', problem=problem)"
        )
    plan = result.plan if problem is None else plan_for(problem, result.plan)
    title = f"{plan_problem.graph.name} on {plan_problem.cluster.name}, {result.solver}"
    timeline = result.timeline if problem is None else None
    view = StepView.of(plan_problem, plan, timeline)
    return Picture(RENDERERS[kind](view, plan_problem, plan, title))
