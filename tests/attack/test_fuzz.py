"""The fuzzers, with fixed seeds: every input is accepted and used, or refused in a line."""

from __future__ import annotations

import os

import pytest
from attack.fuzz.batches import try_batch

COUNTS = {
    "files": 200,
    "graph_definitions": 100,
    "onnx_models": 100,
    "pages": 6,
    "public_workloads": 150,
    "saved_policies": 15,
    "texts": 300,
}
"""How many inputs of each kind take a second or two."""
NEEDS = {"graph_definitions": "tensorboard", "onnx_models": "onnx", "saved_policies": "torch"}
pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="reads the use of memory as Linux gives it"
)


def found(kind: str, first_seed: int, count: int) -> list[str]:
    """The findings of so many seeds, of which a good part must have been accepted."""
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    tally = try_batch(f"attack.fuzz.{kind}", first_seed, seconds=3600, most=count)
    assert tally.tried == count
    assert tally.counts["accepted"] >= 0.2 * count
    return tally.findings


@pytest.mark.parametrize("kind", COUNTS)
def test_every_input_is_accepted_or_refused_in_a_line(kind):
    assert found(kind, 0, COUNTS[kind]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", COUNTS)
def test_many_more_inputs_are_accepted_or_refused(kind):
    assert found(kind, 10**9, 40 * COUNTS[kind]) == []


@pytest.mark.parametrize(
    ("word", "reason"),
    [("hang", "it takes more than"), ("crash", "exit status -"), ("memory", "MemoryError")],
)
def test_what_takes_the_machine_is_found(tmp_path, monkeypatch, word, reason):
    """Sabotage: a seed that hangs, crashes or fills the memory is a finding, others go on."""
    body = {
        "hang": "while True: pass",
        "crash": "os.abort()",
        "memory": "bytearray(3 * 2**30)",
    }[word]
    text = (
        f"import os\ndef attempt(seed):\n    if seed == 3:\n        {body}\n    return 'accepted'\n"
    )
    (tmp_path / f"sabotage_{word}.py").write_text(text)
    monkeypatch.setattr("attack.fuzz.batches.TESTS", f"{tmp_path}:{os.path.dirname(__file__)}/..")
    monkeypatch.setattr("attack.fuzz.batches.MAX_CPU_SECONDS", 0.3)
    tally = try_batch(f"sabotage_{word}", 0, seconds=3600, most=6)
    (finding,) = tally.findings
    assert finding.startswith("seed 3: ")
    assert reason in finding
    assert (tally.next_seed, tally.counts["accepted"]) == (6, 5)
