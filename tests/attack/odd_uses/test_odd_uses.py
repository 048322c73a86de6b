"""A placed model looks like the model itself in every odd use of the table."""

from __future__ import annotations

import pytest
import torch
from attack.odd_uses import table
from attack.odd_uses.harness import is_skipped, judge
from attack.odd_uses.placing import KINDS
from attack.odd_uses.quick import QUICK

torch.set_num_threads(1)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def pairs():
    """Every case under every kind of plan; the default run has quick cases under one kind."""
    for kind in KINDS:
        for name, case in table.CASES.items():
            if case.workers_only and kind in ("gpu", "streaming"):
                continue
            marks = []
            if kind == "gpu":
                if not case.gpu:
                    continue
                marks += [pytest.mark.gpu, needs_gpu, pytest.mark.slow]
            elif kind != "alternating" or name not in QUICK:
                marks.append(pytest.mark.slow)
            yield pytest.param(name, kind, marks=marks, id=f"{kind}-{name}")


@pytest.mark.parametrize(("name", "kind"), list(pairs()))
def test_a_placed_model_looks_like_the_model_itself(name, kind):
    case = table.CASES[name]
    if is_skipped(case, kind):
        pytest.skip("a GPU draws other random numbers, and so does a capture on the fake one")
    assert judge(case, kind).found == []


def test_the_table_has_the_cases_of_the_default_run():
    assert set(table.CASES) >= QUICK
    assert len(table.CASES) >= 300
