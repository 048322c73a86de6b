"""What is run on a GPU, slice by slice: commands with their minutes, the most important first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.common import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Command:
    """One command of a slice.

    Args:
        name: Names its log, and its line in the table.
        words: What follows `python`; `{rows}`, `{work}`, `{inputs}`, `{seconds}` and `{minutes}`
            are the folders of raw lines, of other files and of what was prepared, and its time.
        minutes: After which it is stopped.
        expected: It is not begun with less time than this.
        small: Words of the small form; None leaves it out there.
        needs: Commands whose success it needs; they are run first, whatever their slice.
        folder: Where it runs.
        is_background: Whether others run meanwhile.
        is_alone: Whether it measures time on the host, so that nothing may run beside it.
        unfinished: What its log has, as a regular expression, if there is more to do.
        has_rest: Whether a run that was stopped goes on with what is missing.
        keep: Files under the folder of other files that a later call on another machine needs.
    """

    name: str
    words: str
    minutes: float
    expected: float = 0.5
    small: str | None = None
    needs: tuple[str, ...] = ()
    folder: Path = ROOT
    is_background: bool = False
    is_alone: bool = False
    unfinished: str = ""
    has_rest: bool = True
    keep: tuple[str, ...] = ()


SETUP = Command(
    "setup",
    "-m benchmarks.gpu_runs.setup --inputs {inputs} --stamp {work}/installed",
    4.0,
    small="-m benchmarks.gpu_runs.setup --check --inputs {inputs}",
    has_rest=False,
)
"""Precedes all others, in every call."""

BUILDS = (
    Command(
        "llama.cpp",
        "-m benchmarks.generate.llama_cpp build --folder {work}/llama.cpp --source "
        "{inputs}/llama.cpp",
        7.0,
        expected=1.0,
        is_background=True,
        keep=("llama.cpp/llama-bench",),
    ),
    Command(
        "GGUF",
        "-m benchmarks.generate.llama_cpp gguf --folder {work}/llama.cpp --source "
        "{inputs}/llama.cpp",
        2.0,
        expected=0.3,
        small="-m benchmarks.generate.llama_cpp gguf --small --folder {work}/llama.cpp --source "
        "{inputs}/llama.cpp",
        is_background=True,
        has_rest=False,
    ),
    Command(
        "other version",
        "-m benchmarks.gpu_runs.setup --inputs {inputs} --other {work}/other",
        4.0,
        is_background=True,
        has_rest=False,
    ),
)


def gpu_tests() -> str:
    """The files with tests that need a GPU, without the attack, whose tables are a command."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [path.relative_to(ROOT) for path in files if "pytest.mark.gpu" in path.read_text()]
    return " ".join(str(path) for path in found if "attack" not in path.parts)


def tests() -> list[Command]:
    """Tests, and the tables of the attack, with real CUDA."""
    tables = "-m attack.tables --jobs {jobs} --minutes {minutes} --out {rows}/attack.jsonl"
    few = "-m attack.tables --kind streaming --jobs 1 --minutes {minutes} --names"
    return [
        *(
            Command(
                part.replace("_", " "),
                f"{tables} --kind gpu {part}",
                minutes,
                small=f"{few} {name} --out {{rows}}/attack.jsonl {part}",
                folder=ROOT / "tests",
                unfinished=r"\b[1-9]\d* not tried",
            )
            for part, minutes, name in (
                ("odd_uses", 4.0, "arguments-zero"),
                ("training_loops", 3.0, "'mlp momentum'"),
                ("decoders", 3.0, "Llama"),
            )
        ),
        Command(
            "pytest -m gpu",
            f"-m pytest -m gpu -q --durations=15 -p no:cacheprovider {gpu_tests()}",
            4.0,
            expected=1.0,
            small="-m pytest -m gpu -q -p no:cacheprovider tests/runtime/test_gpu.py",
            is_alone=True,  # some tests compare times
            has_rest=False,
        ),
    ]


def offload() -> list[Command]:
    """Step times of the same plans in two versions; our plan against the usual strategies."""
    measure = "-m benchmarks.offload.measure --out {rows}/offload.jsonl"
    small = f"{measure} --small --only blocks/1 --search 0.5 --profiling 0.5 --ways gpu,ours"
    cases = ("llama-8b/decode", "blocks/1", "gpt2-xl/decode", "moe/decode", "blocks/512")
    return [
        Command(
            "offload commits",
            "-m benchmarks.offload.commits --other {work}/other --out {rows}/offload-commits.jsonl "
            "--plans {work}/offload-plans",
            7.0,
            expected=2.5,
            needs=("other version",),
            is_alone=True,
            keep=("offload-plans",),
        ),
        *(
            Command(
                f"offload {case}",
                f"{measure} --only {case} --search 10 --profiling 20 --timeout 240 "
                "--ways ours,gpu,accelerate,hand",
                5.0,
                expected=1.5,
                small=small if case == "blocks/1" else None,
                is_alone=True,
            )
            for case in cases
        ),
    ]


def generate(models: dict[str, tuple[float, float]], ways: tuple[str, ...]) -> list[Command]:
    """Cells of models under half and a quarter, all ways of a cell one after the other.

    Args:
        models: Expected minutes of our way, and of Accelerate.
    """
    made = []
    for limit in (0.5, 0.25):
        for model, (our_minutes, accelerate_minutes) in models.items():
            expected = {"ours": our_minutes, "accelerate": accelerate_minutes, "llama.cpp": 1.0}
            for way in ways if limit == 0.5 else [way for way in ways if way != "gpu"]:
                cell = f"--models {model} --limits {limit} --ways {way}"
                script = "-m benchmarks.generate.measure --out {rows}/generate.jsonl"
                script += " --logs {work}/generate-logs"
                extra, needs = "", ()
                if way == "llama.cpp":
                    layers = "9,10,8" if limit == 0.5 else "4,3"
                    extra = " --llama-bench {work}/llama.cpp/llama-bench"
                    extra += f" --gguf {{work}}/llama.cpp/llama.gguf --layers {layers}"
                    extra, needs = f"{extra} --threads 16,14", ("llama.cpp", "GGUF")
                is_tried = model in ("llama", "resnet-152") and way in ("ours", "gpu")
                made.append(
                    Command(
                        f"{model} {limit:g} {way}",
                        f"{script} {cell} --timeout 300{extra}",
                        5.0,
                        expected=expected.get(way, 0.6),
                        small=f"{script} --small {cell}" if is_tried and limit == 0.5 else None,
                        needs=needs,
                        is_alone=True,
                    )
                )
    return made


def step_profile() -> Command:
    """Where the time and the memory of the Llama at half its weights go."""
    script = "-m benchmarks.generate.step_profile"
    return Command(
        "llama step profile",
        f"{script} --limit 0.5",
        4.0,
        expected=2.0,
        small=f"{script} --small --prompt 32",
        is_alone=True,
        has_rest=False,
    )


def learning() -> list[Command]:
    """ColocRL with 50 million plans, and population annealing in the GPU's lanes."""
    at_scale = (
        "-m benchmarks.learning.at_scale run --out {rows}/at-scale.jsonl --graphs {inputs}/graphs "
        "--checkpoints {work}/at-scale --slice-seconds {seconds}"
    )
    few = "--device cpu --plans 512 --batches 256 --rows rnnlm-2 --seeds 0:1 --groups 8 --hidden 8"
    population = "-m benchmarks.solvers.population --out {rows}/population.jsonl"

    def runs(arm: str, minutes: float) -> Command:
        return Command(
            f"at scale {arm}",
            f"{at_scale} --jobs 4 --arms '{arm}'",
            minutes,
            expected=1.0,
            small=f"{at_scale} --jobs 1 {few} --arms top" if arm == "top" else None,
            unfinished="call again to go on|not begun in this slice",
            keep=("at-scale",),
        )

    return [
        runs("top", 6.5),
        Command(
            "population",
            f"{population} --budgets 10 --seeds 0:2",
            4.0,
            expected=1.0,
            small=f"{population} --cpu --sizes 300 --budgets 0.5 --seeds 0:1",
            is_alone=True,
        ),
        runs("mean", 6.5),
        runs("never learns", 6.0),
        runs("population annealing", 6.0),
    ]


def scaling() -> list[Command]:
    """Evaluations and training on 1 to 16 local processes."""
    evaluations = "-m benchmarks.scaling.evaluations --out {rows}/scaling-evaluations.jsonl"
    training = "-m benchmarks.scaling.training --out {rows}/scaling-training.jsonl --only"
    tiny = "--network layered:ops=60 --groups 4 --hidden 8"
    return [
        Command(
            "evaluations",
            f"{evaluations} --workers '' --processes 1,2,4,8,16 --repeats 5",
            3.0,
            expected=1.0,
            is_alone=True,
            small=f"{evaluations} --workers '' --processes 1 --repeats 1 --ops 300",
        ),
        Command(
            "asynchronous",
            f"{training} asynchronous --controllers 8 --seeds 0:3 --plans 600",
            6.0,
            expected=2.0,
            is_alone=True,
            small=f"{training} asynchronous --controllers 1 --seeds 0:1 --plans 8 {tiny}",
        ),
        Command(
            "training on workers",
            f"{training} training --workers 1,2,4,8,16 --rounds 3",
            5.0,
            expected=1.5,
            is_alone=True,
        ),
    ]


def host() -> list[Command]:
    """Products of few rows on the host, with the link busy and with it idle."""
    measure = "-m benchmarks.host_products.measure --out {rows}/host-products.jsonl"
    kinds = "--layouts linear --dtypes bfloat16"
    return [
        Command(
            "beside copies",
            f"{measure} {kinds} --threads 15,8,1 --beside-copies",
            3.0,
            expected=0.8,
            is_alone=True,
        ),
        Command(
            "link idle",
            f"{measure} {kinds} --threads 15,8,1",
            3.0,
            expected=0.8,
            is_alone=True,
            small=f"{measure} {kinds} --threads 1 --weights 64x64",
        ),
        Command(
            "other dtypes",
            f"{measure} --threads 15 --beside-copies",
            4.0,
            expected=1.0,
            is_alone=True,
        ),
    ]


LLAMA_WAYS = ("ours", "llama.cpp", "group", "accelerate", "gpu")
OTHER_WAYS = ("ours", "accelerate", "group", "gpu")
OTHERS = {"qwen-moe": (2.0, 1.5), "dit": (1.5, 0.8), "t5": (2.0, 1.5), "resnet-152": (1.0, 0.5)}

SLICES = {
    "builds": list(BUILDS),
    "tests": tests(),
    "offload": offload(),
    "generate-llama": [step_profile(), *generate({"llama": (2.5, 2.0)}, LLAMA_WAYS)],
    "generate-others": generate(OTHERS, OTHER_WAYS),
    "learning": learning(),
    "scaling": scaling(),
    "host": host(),
}
"""All commands by slice; those of `builds` are begun first wherever one is needed."""
