"""Frames of tensors: every layout and dtype arrives as it was, and nothing else is accepted."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from placewright.errors import ExecutionError  # noqa: E402
from placewright.runtime.distributed.tensor_frames import (  # noqa: E402
    DTYPES,
    HEADER_BYTES,
    frame_bytes,
    pack_tensor,
    unpack_tensor,
)

BASE = torch.arange(120.0).reshape(2, 3, 4, 5)
TENSORS = {
    "dense": BASE,
    "transposed": BASE.transpose(1, 3),
    "channels last": BASE.contiguous(memory_format=torch.channels_last),
    "with gaps": BASE[:, :, ::2],
    "few of many": torch.arange(1000.0)[::500],
    "expanded": BASE[:, :1].expand(2, 3, 4, 5),
    "one number": torch.tensor(3.0).expand(4, 4),
    "scalar": torch.tensor(5),
    "empty": BASE[:, :0],
    "overlapping": torch.arange(6.0).as_strided((3, 2), (1, 1)),
    "sizes of one": BASE[:1, :1],
    "negated": torch.conj(torch.view_as_complex(BASE[..., :2].contiguous())),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_with_its_values_and_its_layout(name):
    tensor = TENSORS[name]
    frame = pack_tensor(tensor, tensor, 7, (3, 1))
    assert len(frame) == frame_bytes(tensor)
    arrived = unpack_tensor(frame, tensor, 7, (3, 1))
    assert arrived.shape == tensor.shape
    assert arrived.dtype == tensor.dtype
    assert torch.equal(arrived, tensor.resolve_conj())
    if name not in ("overlapping", "few of many", "empty"):  # which arrive dense
        assert arrived.stride() == tensor.stride()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_arrives_bit_for_bit(dtype):
    data = torch.randint(0, 2 if dtype == torch.bool else 100, (3, 16), dtype=torch.uint8)
    tensor = data.view(dtype) if dtype.itemsize <= 16 else data
    arrived = unpack_tensor(pack_tensor(tensor, tensor, 0, (0, 0)), tensor, 0, (0, 0))
    assert torch.equal(arrived.contiguous().view(torch.uint8), data)


def test_a_tensor_is_aligned_as_pytorch_aligns_it():
    arrived = unpack_tensor(pack_tensor(BASE, BASE, 0, (0, 0)), BASE, 0, (0, 0))
    assert HEADER_BYTES % 64 == 0
    assert arrived.data_ptr() % 64 == BASE.data_ptr() % 64 == 0


def test_a_tensor_of_another_shape_is_not_sent():
    with pytest.raises(ExecutionError, match=r"is of shape \(2, 3, 4, 5\).*expected \(4,\)"):
        pack_tensor(BASE, torch.empty(4), 0, (0, 0))


@pytest.mark.parametrize("at", [0, 4, 5, 8, 16, 24, 24 + 16 * 8])
def test_a_frame_with_one_changed_byte_in_its_header_is_refused(at):
    """Magic, dtype, dimensions, step, op, a size, a stride that becomes negative."""
    frame = pack_tensor(BASE, BASE, 2, (1, 0))
    frame[at + 7 if at >= 24 + 16 * 8 else at] ^= 0x80
    with pytest.raises(ExecutionError, match="another rank sent"):
        unpack_tensor(frame, BASE, 2, (1, 0))


def test_a_frame_of_another_step_or_tensor_is_refused():
    frame = pack_tensor(BASE, BASE, 2, (1, 0))
    for step, key in ((3, (1, 0)), (2, (2, 0)), (2, (1, 1))):
        with pytest.raises(ExecutionError, match="the ranks do not run the same plan"):
            unpack_tensor(frame, BASE, step, key)
