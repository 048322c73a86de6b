"""A bucket cache: a cache of transformers whose memory has a fixed length while tokens are decoded.

A cache that grows has another shape for every token, so that its program has symbolic sizes, and
CUDA graphs cannot be captured. Here the layers of the caller's own cache are replaced, in the cache
itself, by layers of a fixed length (a bucket), and put back when the generation ends. The memory of
a bucket stays from one generation to the next, so that graphs find it at the same address.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import cache_utils

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    DeviceOf = Callable[[int, str], torch.device | None]

SMALLEST_BUCKET = 64
MAX_BUFFERS = 2
"""Buffers of buckets that are not in use, and are kept for the next generation."""

_StaticLayer: Any = cache_utils.StaticLayer
_LAYERS = cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer


def bucket_length(length: int) -> int:
    """The smallest bucket that has `length` tokens: 64, 96, 128, 192, 256, 384 and so on."""
    bucket = SMALLEST_BUCKET
    while bucket < length:
        if bucket * 3 // 2 >= length:
            return bucket * 3 // 2
        bucket *= 2
    return bucket


class BucketLayer(_StaticLayer):  # type: ignore[misc]
    """Keys and values of one layer, in memory of a fixed length.

    Args:
        is_sliding: Whether the layer has a sliding window; it is never shorter than the bucket.
    """

    is_bucket = True

    def __init__(self, buffers: LayerBuffers, is_sliding: bool) -> None:
        super().__init__(max_cache_len=buffers.keys.shape[-2])
        self.keys, self.values = buffers.keys, buffers.values
        self.cumulative_length = buffers.length
        self.dtype = self.keys.dtype
        self.batch_size, self.num_heads = self.keys.shape[:2]
        self.k_head_dim, self.v_head_dim = self.keys.shape[-1], self.values.shape[-1]
        self.is_sliding, self.is_initialized = is_sliding, True

    @property
    def device(self) -> torch.device:
        """Where the tokens are; while the model is traced, the logical device as of all tensors."""
        return self.keys.device

    @device.setter
    def device(self, device: torch.device) -> None:
        """Ignore what transformers sets: it is where the keys are."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The length that attention sees, and its offset."""
        return self.keys.shape[-2], 0  # a shape, not a number: one trace serves all buckets

    def get_max_length(self) -> int:
        """How many tokens there may be."""
        return int(self.keys.shape[-2])

    def fill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put these tokens into the cache; what comes after them is zero, and masked."""
        length = keys.shape[-2]
        for memory, tensor in ((self.keys, keys), (self.values, values)):
            memory[..., :length, :].copy_(tensor)
            memory[..., length:, :].zero_()
        self.cumulative_length.fill_(length)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Reorder the beams, without a change of addresses."""
        for memory in (self.keys, self.values):
            memory.copy_(memory.index_select(0, beam_idx.to(memory.device)))


@dataclass(frozen=True, eq=False)
class LayerBuffers:
    """The memory of one layer: keys, values, and how many tokens there are."""

    keys: torch.Tensor
    values: torch.Tensor
    length: torch.Tensor


class BufferPool:
    """Memory of buckets, which is used again by later generations.

    Args:
        device_of: The device where a plan has the keys or the values of a layer, if that is known.
    """

    def __init__(self, device_of: DeviceOf = lambda layer, name: None) -> None:
        self._device_of = device_of
        self._free: OrderedDict[Hashable, list[LayerBuffers]] = OrderedDict()

    @property
    def free_buffers(self) -> list[LayerBuffers]:
        """Memory that is kept, and that no generation uses."""
        return [layer for layers in list(self._free.values()) for layer in layers]

    def free_tensors(self) -> list[torch.Tensor]:
        """The tensors of that memory."""
        return [
            tensor
            for layer in self.free_buffers
            for tensor in (layer.keys, layer.values, layer.length)
        ]

    def clear(self) -> None:
        """Free the memory that is kept."""
        self._free.clear()

    def take(self, layers: Sequence[Any], length: int) -> tuple[Hashable, list[LayerBuffers]]:
        """Memory for layers that grow, as one bucket; and the key to give it back."""
        shapes = [_shapes(layer, length) for layer in layers]
        key = tuple(shapes)
        buffers = self._free.pop(key, None)
        if buffers is None:
            with torch.inference_mode(False):  # or only such blocks could write to it
                buffers = [self._allocate(at, *shape) for at, shape in enumerate(shapes)]
        return key, buffers

    def give_back(self, key: Hashable, buffers: list[LayerBuffers]) -> None:
        """Keep memory for the next generation; what has not been used for longest goes."""
        self._free[key] = buffers
        self._free.move_to_end(key)
        while len(self._free) > MAX_BUFFERS:
            self._free.popitem(last=False)

    def _allocate(
        self,
        layer: int,
        keys: tuple[int, ...],
        values: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> LayerBuffers:
        devices = [self._device_of(layer, name) or device for name in ("keys", "values")]
        return LayerBuffers(
            torch.empty(keys, dtype=dtype, device=devices[0]),
            torch.empty(values, dtype=dtype, device=devices[1]),
            torch.zeros((), dtype=torch.long, device=devices[0]),
        )


class BucketCache:
    """A cache of a caller, whose layers have a fixed length until `restore`.

    Args:
        cache: A `DynamicCache`; its layers are replaced.
        length: How many tokens the bucket has.
    """

    def __init__(self, cache: Any, length: int, pool: BufferPool) -> None:
        self.cache, self.pool = cache, pool
        self.layers = cache.layers  # as the caller knows them
        # Not `layer.device`, which is where the model was traced.
        self._devices = [(layer.keys.device, layer.values.device) for layer in self.layers]
        self.tokens = int(cache.get_seq_length())
        """How many tokens the cache has before the next call, at most."""
        self._set_bucket(length, [(layer.keys, layer.values) for layer in self.layers])
        for layer in self.layers:
            layer.keys = layer.values = None  # or they would be there twice

    def _set_bucket(
        self, length: int, tensors: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        sources = self.cache.layers
        self.length = length
        self._key, self._buffers = self.pool.take(sources, length)
        bucket_layers = []
        for source, buffers, (keys, values) in zip(sources, self._buffers, tensors, strict=True):
            bucket_layers.append(BucketLayer(buffers, bool(source.is_sliding)))
            bucket_layers[-1].fill(keys, values)
        self.cache.layers = bucket_layers

    def grow(self, length: int) -> None:
        """Move all tokens to a longer bucket."""
        key, buffers = self._key, self._buffers
        self._set_bucket(length, self._tensors())
        self.pool.give_back(key, buffers)

    def restore(self, is_needed: bool) -> None:
        """Put the caller's layers back.

        Args:
            is_needed: Whether anyone reads the cache again; else it stays empty.
        """
        tensors = self._tensors() if is_needed else []
        for layer, devices, pair in zip(self.layers, self._devices, tensors, strict=False):
            keys, values = (
                tensor.to(device, copy=True) for tensor, device in zip(pair, devices, strict=True)
            )
            layer.keys, layer.values, layer.device = keys, values, keys.device
            if layer.is_sliding:
                layer.cumulative_length = keys.shape[-2]
        if not is_needed:
            for layer in self.layers:
                layer.is_initialized = False  # or transformers 5.17 zeroes tensors that are gone
                layer.reset()
        self.cache.layers = self.layers
        self.pool.give_back(self._key, self._buffers)

    def _tensors(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of all tokens that are there."""
        tensors = []
        for layer in self.cache.layers:
            count = int(layer.cumulative_length)
            tensors.append((layer.keys[..., :count, :], layer.values[..., :count, :]))
        return tensors


def can_have_bucket(cache: Any, length: int) -> bool:
    """Whether a cache may have layers of `length` tokens: it grows, and no window is shorter."""
    layers = getattr(cache, "layers", None)
    if type(cache) is not cache_utils.DynamicCache or not layers or cache.offloading:
        return False
    tokens = cache.get_seq_length()
    return all(_is_plain(layer, tokens, length) for layer in layers)


def _is_plain(layer: Any, tokens: int, length: int) -> bool:
    if type(layer) not in _LAYERS or not layer.is_initialized:
        return False
    if layer.is_sliding and (layer.record_past or layer.sliding_window <= length):
        return False
    shapes = [tuple(tensor.shape) for tensor in (layer.keys, layer.values)]
    return all(len(shape) == 4 and shape[-2] == tokens for shape in shapes)


def _shapes(layer: Any, length: int) -> tuple[Any, ...]:
    """The shapes of a layer's memory in a bucket, with its dtype and device."""
    keys, values = (
        (*tensor.shape[:-2], length, tensor.shape[-1]) for tensor in (layer.keys, layer.values)
    )
    return keys, values, layer.keys.dtype, layer.keys.device
