"""Generation with buckets: `generate` of transformers decodes with caches of a fixed length.

`generate` calls `prepare_inputs_for_generation` before each call of the model. From the second
token on the cache is in a bucket by then, so that all shapes of the call are fixed: one program
serves every length inside the bucket. Whatever is unusual keeps the cache that it has: then the
call has symbolic sizes, and is right, too.
"""

from __future__ import annotations

import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any

from placewright.runtime.bucket_cache import (
    BucketCache,
    BufferPool,
    bucket_length,
    can_have_bucket,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from placewright.runtime.placed_model import PlacedModel

PLAIN_MODES = ("greedy_search", "sample", "beam_search", "beam_sample")
"""Modes of `generate` that only append tokens to a cache, or reorder its beams."""
MASKED_ATTENTION = ("sdpa", "eager")
"""Implementations of attention for which a mask hides what a bucket has left."""
MAX_RATIO = 16
"""How many times as long as necessary a bucket may be, rather than that there is another one."""
MAX_ENCODER_LENGTHS = 4
"""Lengths of an encoder's output that have programs of their own."""


def use_buckets(placed: PlacedModel, planned_length: int) -> Buckets | None:
    """Let `generate` of a placed model use buckets; None if the model cannot.

    Args:
        planned_length: Tokens of a prompt with all new ones, as planned. A longer generation gets
            longer buckets as it grows.
    """
    if not can_use_buckets(placed.model):
        return None
    buckets = Buckets(placed, planned_length)
    buckets.install()
    return buckets


def can_use_buckets(model: Any) -> bool:
    """Whether transformers says that a model works with caches of a fixed length."""
    attributes = ("generate", "prepare_inputs_for_generation", "_prepare_cache_for_generation")
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return (
        getattr(model, "_can_compile_fullgraph", False)
        and all(hasattr(model, name) for name in attributes)
        and implementation in MASKED_ATTENTION
    )


class Buckets:
    """The buckets of a model's generations.

    Args:
        planned_length: Tokens that a generation has, as planned.
    """

    def __init__(self, placed: PlacedModel, planned_length: int) -> None:
        self.placed, self.planned_length = placed, planned_length
        self.pool = BufferPool(self._planned_device)
        self.lengths = {bucket_length(planned_length)}  # of buckets
        self.encoder_lengths: set[int] = set()
        self._thread = threading.local()
        self._turn = threading.RLock()
        """Of the thread that may use buckets. A step of a CUDA graph takes the memory of another
        bucket for its own (`step_states`), which no other thread may read or fill meanwhile."""

    def install(self) -> None:
        """Redirect the model's methods."""
        model: Any = self.placed.model
        self.placed.backend.held_tensors.append(self.pool.free_tensors)
        self.placed.backend.on_short_memory.append(self.pool.clear)
        self.placed.set_attributes(
            model,
            generate=self._wrap(model.generate, self._generate),
            prepare_inputs_for_generation=self._wrap(
                model.prepare_inputs_for_generation, self._prepare_inputs
            ),
            _prepare_cache_for_generation=self._wrap(
                model._prepare_cache_for_generation, self._prepare_cache
            ),
        )

    def _wrap(self, method: Any, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)  # libraries read its signature
        def call(*args: Any, **kwargs: Any) -> Any:
            return wrapper(method, args, kwargs)

        attributes: Any = call
        attributes.buckets = self
        return call

    @property
    def _generations(self) -> list[Generation]:
        """The generations of this thread, the current one last."""
        if not hasattr(self._thread, "generations"):
            self._thread.generations = []
        generations: list[Generation] = self._thread.generations
        return generations

    def _generate(self, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        generation = Generation(self, kwargs.get("past_key_values"))
        generation.is_custom = kwargs.get("custom_generate") is not None
        generation.has_turn = self._turn.acquire(blocking=False)
        self._generations.append(generation)
        try:
            return method(*args, **kwargs)
        finally:
            self._generations.pop()
            try:
                generation.end()
            finally:
                if generation.has_turn:
                    self._turn.release()

    def _prepare_cache(self, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        if self._generations:
            values = inspect.signature(method).bind(*args, **kwargs).arguments
            self._generations[-1].begin(
                values.get("generation_config"),
                values.get("generation_mode"),
                values.get("max_cache_length"),
            )
        return result

    def _prepare_inputs(self, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._generations and args:
            self._generations[-1].before_call(args[0], kwargs)
        return method(*args, **kwargs)

    def _planned_device(self, layer: int, name: str) -> torch.device | None:
        """Where a plan has the keys or values of a layer of the decoder; None: none has them."""
        backend = self.placed.backend
        for call in backend.planned_calls:
            for op, device in zip(call.plan.ops, call.plan.placement.tolist(), strict=True):
                if op.endswith(f".layers.{layer}.{name}") and "cross_attention" not in op:
                    torch_device: torch.device = backend.real_devices[device].torch_device
                    return torch_device
        return None

    def choose_length(self, needed: int, max_length: int | None) -> int:
        """How many tokens a bucket shall have: the whole generation, as far as it was planned.

        A bucket that has a program already is taken even if it is longer.
        """
        wished = needed if max_length is None else min(max_length, self.planned_length)
        shortest = bucket_length(max(needed, wished))
        known = [length for length in self.lengths if shortest <= length <= MAX_RATIO * shortest]
        length = min(known, default=shortest)
        self.lengths.add(length)
        return length


class Generation:
    """One call of `generate`.

    Args:
        own_cache: The cache that the caller passed, if any.
    """

    def __init__(self, buckets: Buckets, own_cache: Any) -> None:
        self.buckets, self.own_cache = buckets, own_cache
        self.is_plain = self.is_custom = self.is_returned = self.has_turn = False
        self.max_length: int | None = None
        self.current: BucketCache | None = None

    def begin(self, config: Any, mode: Any, max_length: Any) -> None:
        """Note how the generation will call the model."""
        self.is_plain = (
            not self.is_custom
            and self.has_turn
            and getattr(mode, "value", mode) in PLAIN_MODES
            and getattr(config, "cache_implementation", "") in (None, "dynamic")
            and not getattr(config, "is_assistant", True)
        )
        self.is_returned = bool(getattr(config, "return_dict_in_generate", True))
        self.max_length = max_length if isinstance(max_length, int) else None

    def before_call(self, input_ids: Any, kwargs: Any) -> None:
        """Put the cache of the next call into a bucket, or out of it."""
        cache = kwargs.get("past_key_values")
        decoder_cache = getattr(cache, "self_attention_cache", cache)
        if self.current is not None and self.current.cache is decoder_cache:
            self.current.tokens += 1  # of the call before
            if self._new_tokens(input_ids, kwargs, self.current.tokens) != 1:
                self._leave(is_needed=True)
            elif self.current.tokens + 1 > self.current.length:
                self._grow()
            return
        if not self.is_plain or decoder_cache is None or not self._has_known_encoder(cache):
            return
        tokens = decoder_cache.get_seq_length()
        if not isinstance(tokens, int) or tokens < 1:
            return
        length = self.buckets.choose_length(tokens + 1, self.max_length)
        is_decode = self._new_tokens(input_ids, kwargs, tokens) == 1
        if is_decode and can_have_bucket(decoder_cache, length):
            if self.current is not None:
                self._leave(is_needed=True)
            self.current = BucketCache(decoder_cache, length, self.buckets.pool)

    def _new_tokens(self, input_ids: Any, kwargs: Any, tokens: int) -> int:
        """How many tokens the next call appends to the cache."""
        count = kwargs.get("next_sequence_length")
        return count if isinstance(count, int) else int(input_ids.shape[1]) - tokens

    def _grow(self) -> None:
        assert self.current is not None
        length = self.buckets.choose_length(self.current.tokens + 1, self.max_length)
        windows = [layer.sliding_window for layer in self.current.layers if layer.is_sliding]
        if any(window <= length for window in windows):
            self._leave(is_needed=True)
            self.is_plain = False
        else:
            self.current.grow(length)

    def _has_known_encoder(self, cache: Any) -> bool:
        """Whether the encoder's output has one of a few lengths; each has a program of its own."""
        cross = getattr(cache, "cross_attention_cache", None)
        if cross is None:
            return True
        lengths = self.buckets.encoder_lengths
        length = cross.get_seq_length()
        if length not in lengths and len(lengths) < MAX_ENCODER_LENGTHS:
            lengths.add(length)
        return length in lengths

    def end(self) -> None:
        """End the generation: the cache is the caller's again."""
        if self.current is not None:
            self._leave(is_needed=self.is_returned or self.own_cache is not None)

    def _leave(self, is_needed: bool) -> None:
        assert self.current is not None
        self.current.restore(is_needed)
        self.current = None
