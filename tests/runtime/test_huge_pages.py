"""Huge pages of weights: data and addresses stay, and nothing happens where there are none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from models import capture, nn, plans, twin  # noqa: E402

from placewright.profiling import isolated  # noqa: E402
from placewright.profiling.cache_model import CacheState  # noqa: E402
from placewright.runtime import Executor, huge_pages, weight_storage  # noqa: E402
from placewright.runtime.huge_pages import MIN_BYTES, huge_page_bytes, use_huge_pages  # noqa: E402
from placewright.runtime.real_devices import RealDevice  # noqa: E402


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """The system's settings, in a folder of the test."""
    monkeypatch.setattr(huge_pages, "_SETTINGS", tmp_path)
    huge_page_bytes.cache_clear()
    yield tmp_path
    huge_page_bytes.cache_clear()


def test_a_tensor_has_the_same_data_at_the_same_address():
    tensor = torch.arange(2 * MIN_BYTES, dtype=torch.int32)
    address, expected = tensor.data_ptr(), tensor.sum().item()
    use_huge_pages(tensor)
    assert tensor.data_ptr() == address
    assert tensor.sum().item() == expected
    assert tensor[-1].item() == 2 * MIN_BYTES - 1


def test_only_whole_huge_pages_inside_the_storage_are_moved(monkeypatch):
    calls = []

    class Libc:
        @staticmethod
        def madvise(first, size, advice):
            calls.append((first, size, advice))
            return 0

    monkeypatch.setattr(huge_pages, "_libc", Libc)
    monkeypatch.setattr(huge_pages, "huge_page_bytes", lambda: 2 << 20)
    tensor = torch.empty(MIN_BYTES * 2 + 12345, dtype=torch.uint8)
    assert use_huge_pages(tensor[100:])
    ((first, size, advice),) = calls
    start = tensor.data_ptr()
    assert advice == 25
    assert first % (2 << 20) == size % (2 << 20) == 0
    assert start <= first < start + (2 << 20)
    assert 0 <= start + tensor.nbytes - (first + size) < (2 << 20)
    assert not use_huge_pages(torch.empty(MIN_BYTES - 1, dtype=torch.uint8))
    assert not use_huge_pages(torch.empty(2 * MIN_BYTES, dtype=torch.uint8, device="meta"))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("enabled", "size"), [("always [madvise] never", 2 << 20), ("always madvise [never]", 0)]
)
def test_the_owner_of_the_system_may_forbid_huge_pages(settings, enabled, size):
    (settings / "enabled").write_text(enabled)
    (settings / "hpage_pmd_size").write_text("2097152\n")
    assert huge_page_bytes() == size


def test_a_system_without_huge_pages_has_none(settings):
    assert huge_page_bytes() == 0
    assert not use_huge_pages(torch.zeros(2 * MIN_BYTES, dtype=torch.uint8))


@pytest.fixture
def linear():
    """A model with one weight of 4 MiB, an input, and its program and problem."""
    model, x = nn.Linear(1024, 1024).eval(), torch.randn(1, 1024)
    return model, x, *capture(model, x)


def test_a_placed_model_computes_the_same_from_huge_pages(linear, monkeypatch):
    model, x, program, problem = linear
    sizes, untouched = [], twin(model)

    def count(tensor):
        sizes.append(tensor.nbytes)
        return use_huge_pages(tensor)

    monkeypatch.setattr(weight_storage, "use_huge_pages", count)
    with Executor(program, model, plans(problem, 1, seed=0)[0]) as executor, torch.no_grad():
        assert torch.equal(executor(x), untouched(x))
    assert sorted(sizes) == [1024 * 4, 1024 * 1024 * 4]


def test_an_op_is_timed_with_its_weights_in_huge_pages(linear, monkeypatch):
    _, _, program, _ = linear
    shapes = []
    monkeypatch.setattr(
        isolated, "use_huge_pages", lambda tensor: shapes.append(tuple(tensor.shape))
    )
    (position,) = program.builder.op_nodes
    device = RealDevice("cpu", cache=1 << 20)
    state = CacheState((True, True, True), False)  # the input, which is no weight, is cold too
    device.run(lambda: isolated.measure_op(program, position, device, 0.001, state))
    assert set(shapes) == {(1024, 1024), (1024,)}
