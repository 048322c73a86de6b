"""How good `auto` is: against optima, public planners, other methods, and its own bounds.

    python -m benchmarks.solvers.auto_quality --only random,offload
    python -m benchmarks.solvers.auto_quality --data FOLDER

Sections: random, period, unseen, step, offload, half, zoo, large, quick. Those that need the public
workload files (docs/workloads.md) take their folder, with dnn-partitioning/ and pipedream/, as
`--data` and are skipped without it. Every row shows the best single device and the bound; a row
ends in `yes` or `NO` for what it must show, and the last line counts the rows that do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import chosen, machine, make_parser, name_list, seed_range
from benchmarks.solvers.sections import SECTIONS, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("--only", type=name_list, default=[*SECTIONS], help="sections to run")
    parser.add_argument("--data", type=Path, help="folder of the public workload files")
    parser.add_argument("--seconds", type=float, default=30.0, help="time budget of `auto`")
    parser.add_argument(
        "--seeds", type=seed_range, default=range(200), help="of section random: first:last + 1"
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="of section random: problems solved at once"
    )
    arguments = parser.parse_args(argv)
    settings = Settings(arguments.data, arguments.seconds, arguments.seeds, arguments.workers)
    print(machine())
    missed: dict[str, int] = {}
    for name in chosen(parser, arguments.only, SECTIONS):
        print(f"\n## {name}\n\n{SECTIONS[name].__doc__}\n", flush=True)
        missed[name] = SECTIONS[name](settings)
    short = {name: count for name, count in missed.items() if count}
    print(f"\nrows that fall short: {short or 'none'}")


if __name__ == "__main__":
    main()
