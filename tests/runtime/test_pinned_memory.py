"""Pinned memory: registered while a tensor has it, and never after."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from fake_cuda import fake_gpus  # noqa: E402
from models import nn  # noqa: E402

from placewright.runtime import pinned_memory  # noqa: E402
from placewright.runtime.huge_pages import MIN_BYTES  # noqa: E402
from placewright.runtime.pinned_memory import pinned_copy  # noqa: E402


@pytest.fixture(autouse=True)
def huge_pages(monkeypatch):
    """Huge pages of 2 MiB, also where the system has none: then memory is mapped the same."""
    monkeypatch.setattr(pinned_memory, "huge_page_bytes", lambda: 2 << 20)


def large(rows=1025):
    return torch.randn(rows, MIN_BYTES // 4096, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", ["whole", "transposed", "bfloat16", "offset"])
def test_a_copy_has_the_data_and_the_layout(form):
    tensor = large()
    if form == "transposed":
        tensor = tensor.t()
    if form == "bfloat16":
        tensor = torch.cat([tensor, tensor]).bfloat16()
    if form == "offset":
        tensor = large(1100)[50:]
    with fake_gpus() as cuda:
        copied = pinned_copy(tensor)
        assert torch.equal(copied, tensor)
        assert copied.stride() == tensor.stride()
        assert cuda.registered == {copied.data_ptr(): tensor.nbytes}
        assert copied.data_ptr() % (2 << 20) == 0
        copied.zero_()
        assert tensor.abs().sum() > 0


@pytest.mark.usefixtures("frozen_heap")
def test_memory_is_registered_as_long_as_a_tensor_has_it():
    with fake_gpus() as cuda:
        copied = pinned_copy(large())
        view = copied[1:].view(-1)
        del copied
        gc.collect()
        assert len(cuda.registered) == 1
        assert torch.equal(view, large()[1:].view(-1))
        del view
        gc.collect()
        assert not cuda.registered


@pytest.mark.usefixtures("frozen_heap")
def test_memory_that_is_freed_amid_a_capture_is_unregistered_after_it():
    with fake_gpus() as cuda:
        copied = pinned_copy(large())
        block = weakref.ref(copied.untyped_storage())
        cuda.capturing.append(cuda.new_graph())
        del copied
        gc.collect()
        assert block() is None
        assert len(cuda.registered) == 1
        cuda.capturing.pop()
        assert len(pinned_memory._waiting) == 1  # so it is not mapped to anything else yet
        other = pinned_copy(large())
        assert list(cuda.registered) == [other.data_ptr()]
        assert not pinned_memory._waiting


def test_memory_that_cannot_be_registered_is_pinned_by_pytorch(monkeypatch):
    with fake_gpus() as cuda:
        monkeypatch.setattr(cuda, "register_host", lambda address, size: False)
        pinned = []
        monkeypatch.setattr(cuda, "pin", lambda tensor: pinned.append(1) or tensor.clone())
        assert torch.equal(pinned_copy(large()), large())
        assert pinned == [1]
        assert torch.equal(pinned_copy(torch.ones(3)), torch.ones(3))  # too small for a huge page
        assert pinned == [1, 1]


def test_a_parameter_in_pinned_memory_is_saved_and_copied_as_any_other(tmp_path):
    with fake_gpus():
        model, own = nn.Linear(4, 4), nn.Linear(4, 4)
        own.weight = nn.Parameter(large())
        model.weight = nn.Parameter(pinned_copy(large()))
        torch.save(model.state_dict(), tmp_path / "weights.pt")
        assert torch.equal(torch.load(tmp_path / "weights.pt")["weight"], own.weight)
        model.weight.data.mul_(2)
        assert torch.equal(model.weight.data, own.weight.data * 2)
        model.load_state_dict({**model.state_dict(), "weight": own.weight})
        assert torch.equal(model.weight, own.weight)
