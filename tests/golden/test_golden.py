"""Results are those of the golden record: see record.py for how it is made."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from golden import record

RECORD = json.loads(record.RECORD.read_text())
PARTS = record.parts()
SLOW = (
    {f"solved/{name}" for name in record.PROBLEMS if name not in record.QUICK}
    | {f"network/{name}" for name in record.NETWORKS if name != "gpt2"}
    | {"exact/diamond"}
)


def same(now: object, then: object) -> bool:
    """Equal, where logarithms of probabilities may differ as much as processors do."""
    if isinstance(now, float) and isinstance(then, float):
        return now == pytest.approx(then, rel=1e-5)
    if isinstance(now, list) and isinstance(then, list):
        return len(now) == len(then) and all(map(same, now, then))
    return now == then


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_record_has_every_part():
    assert set(RECORD) == set(PARTS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in PARTS
        if name != "versions"
    ],
)
def test_results_are_those_of_the_record(name):
    if name.startswith(("solved", "exact")) and record.versions() != RECORD["versions"]:
        pytest.skip(f"made with {RECORD['versions']}, here are {record.versions()}")
    if not find_spec("pymetis"):
        pytest.skip("no partitioners are installed")
    assert same(PARTS[name](), RECORD[name])
