"""How good `auto` is: against optima, public peers, other methods, and its own bounds.

    python benchmarks/solvers.py [--only SECTION,…] [--data DIR] [--seconds 30] [--seeds 0:200]

Sections: random, period, unseen, step, offload, half, zoo, large, quick. Those that need the public
data take its folder (with dnn-partitioning/ and pipedream/) as `--data` and are skipped without it.
Every row shows the best single device and the bound; a row ends in `yes` or `NO` for what it must
show, and the last line counts the rows that do not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from solver_sections import SECTIONS, Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seeds", default="0:200")
    parser.add_argument("--workers", type=int, default=1, help="random problems solved at once")
    given = parser.parse_args()
    first, last = (int(part) for part in given.seeds.split(":"))
    settings = Settings(given.data, given.seconds, range(first, last), given.workers)
    missed: dict[str, int] = {}
    for name in given.only.split(","):
        print(f"\n## {name}\n\n{SECTIONS[name].__doc__}\n", flush=True)
        missed[name] = SECTIONS[name](settings)
    short = {name: count for name, count in missed.items() if count}
    print(f"\nrows that fall short: {short or 'none'}")


if __name__ == "__main__":
    main()
