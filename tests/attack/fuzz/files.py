"""Our own JSON, TOML and gzip files, of every kind."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from attack.fuzz import corpus, use
from attack.fuzz.batches import attack_of
from attack.fuzz.mutation import mutate_data

from placewright import Cluster, Graph, Plan, Problem, Result, Timeline, load, save
from placewright.cli.problem_options import ProblemOptions
from placewright.costs import Roofline, Table
from placewright.errors import PlacewrightError
from placewright.files import from_data, to_data
from placewright.files.toml import to_toml
from placewright.problem import Constraints

attack = attack_of(__name__)


def attempt(seed: int) -> str:
    """Read a mutated document, and use it."""
    rng = Random(seed)
    kind = rng.choice(list(corpus.documents()))
    data = mutate_data(corpus.documents()[kind], rng, rng.choice((0, 1, 1, 1, 2, 3)))
    try:
        noun = _through_file(data, kind, rng) if seed % 10 == 0 else from_data(data)
        if seed % 4 == 0:
            written = to_data(noun)
            assert to_data(from_data(written)) == written, "it changes in a round trip"
        return _use(noun, seed)
    except PlacewrightError as error:
        return use.refused(error)


def _through_file(data: Any, kind: str, rng: Random) -> Any:
    """The noun, read from a file in the current folder."""
    path = Path(rng.choice(("a.json", "a.json.gz", "a.toml")))
    if path.suffix == ".toml" and kind in ("cluster", "constraints"):
        try:
            content = to_toml(data).encode(errors="surrogatepass")
        except (AttributeError, RecursionError):  # no table
            content = b"a = 1"
    else:
        path = path.with_name("a.json") if path.suffix == ".toml" else path
        content = json.dumps(data).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    noun = load(path)
    save(noun, "b.json")
    return noun


def _use(noun: Any, seed: int) -> str:
    problem = corpus.problem()
    match noun:
        case Graph():
            return use.use_graph(noun, seed)
        case Cluster():
            return use.use_problem(replace(problem, cluster=noun), seed)
        case Constraints():
            return use.use_problem(replace(problem, constraints=noun), seed)
        case Table() | Roofline():
            return use.use_problem(replace(problem, costs=noun), seed)
        case Problem():
            return use.use_problem(noun, seed)
        case Plan():
            use.use_plan(problem, noun)
        case Result():
            use.use_plan(problem, noun.plan)
            ProblemOptions.from_dict(noun.options, ProblemOptions())
            if seed % 20 == 0:
                use.show(problem, replace(noun, plan=noun.plan, problem=None))
        case Timeline():
            noun.fits  # noqa: B018
    return "accepted"
