"""A placed model looks like the model itself in every odd use of the table."""

from __future__ import annotations

import pytest
import torch
from attack.odd_uses import table
from attack.odd_uses.harness import judge
from attack.odd_uses.placing import KINDS

torch.set_num_threads(1)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def pairs():
    for kind in KINDS:
        for name, case in table.CASES.items():
            marks = []
            if kind == "gpu":
                if not case.gpu:
                    continue
                marks += [pytest.mark.gpu, needs_gpu]
            elif kind != "alternating" or case.slow or case.isolated:
                marks.append(pytest.mark.slow)
            yield pytest.param(name, kind, marks=marks, id=f"{kind}-{name}")


@pytest.mark.parametrize(("name", "kind"), list(pairs()))
def test_a_placed_model_looks_like_the_model_itself(name, kind):
    assert judge(table.CASES[name], kind) == []


def test_the_table_has_the_size_it_claims():
    assert len(table.CASES) >= 150
