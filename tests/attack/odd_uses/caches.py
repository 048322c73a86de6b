"""Odd uses like those of text generation: caches that grow, static caches, masks, beams."""

from __future__ import annotations

import torch
from attack.odd_uses.harness import odd_use
from attack.odd_uses.networks import one_text, words
from attack.odd_uses.outputs import ModelOutput
from torch import nn
from torch.nn import functional


class GrowingCache:
    """Keys and values of each layer, longer with each call."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def __len__(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def update(self, layer, k, v):
        if layer == len(self.keys):
            self.keys.append(k)
            self.values.append(v)
        else:
            self.keys[layer] = torch.cat((self.keys[layer], k), 2)
            self.values[layer] = torch.cat((self.values[layer], v), 2)
        return self.keys[layer], self.values[layer]


class StaticCache(GrowingCache):
    """Tensors of full length, of which the first rows are used."""

    def __init__(self, length: int = 16) -> None:
        super().__init__()
        self.length, self.used = length, torch.zeros((), dtype=torch.long)

    def __len__(self) -> int:
        return int(self.used)

    def update(self, layer, k, v):
        if layer == len(self.keys):
            shape = (k.shape[0], k.shape[1], self.length, k.shape[3])
            self.keys.append(torch.zeros(shape))
            self.values.append(torch.zeros(shape))
        at = self.used + torch.arange(k.shape[2])
        self.keys[layer].index_copy_(2, at, k)
        self.values[layer].index_copy_(2, at, v)
        if layer == 1:
            self.used += k.shape[2]
        return self.keys[layer], self.values[layer]


class Decoder(nn.Module):
    """Two layers of attention that read and write a cache; returns it, as transformers does."""

    example = staticmethod(one_text)

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(32, 8)
        self.joins = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids, cache=None, use_cache=False, labels=None, **others):
        if use_cache and cache is None:
            cache = GrowingCache()
        past = len(cache) if cache is not None else 0
        at = torch.arange(past, past + ids.shape[1])
        h = self.words(ids) + self.places(at)
        for layer, (join, out) in enumerate(zip(self.joins, self.outs, strict=True)):
            q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in join(h).chunk(3, -1))
            if cache is not None:
                k, v = cache.update(layer, k, v)
            mask = torch.arange(k.shape[2])[None] <= at[:, None]
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            h = h + out(y.transpose(1, 2).flatten(-2))
        logits = self.head(h)
        made = ModelOutput(logits=logits)
        if labels is not None:
            made["loss"] = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if use_cache:
            made["cache"] = cache
        return made


def generate(model, cache, steps=8, sample=False, prompt=None):
    ids, made, logits = words() if prompt is None else prompt, [], []
    for _ in range(steps):
        y = model(ids, cache=cache, use_cache=True)
        assert y.cache is cache
        logits.append(y.logits[:, -1])
        last = y.logits[:, -1].softmax(-1)
        ids = torch.multinomial(last, 1) if sample else last.argmax(-1, keepdim=True)
        made.append(ids)
    return torch.cat(made, 1), logits


@odd_use(Decoder)
def cache_that_grows(model):
    model.eval()
    with torch.no_grad():
        made = [generate(model, GrowingCache()) for _ in range(2)]
        cache = GrowingCache()
        return made, generate(model, cache, sample=True), cache.keys, cache.values


@odd_use(Decoder)
def cache_of_full_length(model):
    model.eval()
    with torch.no_grad():
        cache = StaticCache()
        made = [generate(model, cache), generate(model, StaticCache(), sample=True)]
        return made, cache.keys, cache.values, cache.used


@odd_use(Decoder)
def default_cache_is_returned(model):
    model.eval()
    with torch.no_grad():
        first = model(words(), use_cache=True)
        second = model(words(1, length=1), use_cache=True, cache=first.cache)
        third = model(words(), use_cache=True)
    same = second.cache is first.cache, third.cache is first.cache
    return first.logits, second.logits, third.logits, same, type(first).__name__, len(first.cache)


@odd_use(Decoder)
def generate_without_a_cache(model):
    model.eval()
    ids = words()
    with torch.no_grad():
        for _ in range(8):
            ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), 1)
    return ids


@odd_use(Decoder)
def beams_are_reordered(model):
    model.eval()
    with torch.no_grad():
        cache, ids = GrowingCache(), words(count=4)
        made = []
        for step in range(5):
            y = model(ids, cache=cache, use_cache=True)
            order = torch.tensor([1, 0, 3, 3]) if step % 2 else torch.tensor([0, 0, 1, 2])
            cache.keys = [each.index_select(0, order) for each in cache.keys]
            cache.values = [each.index_select(0, order) for each in cache.values]
            ids = y.logits[order, -1:].argmax(-1)
            made.append(ids)
    return made


@odd_use(Decoder)
def prompts_of_several_lengths(model):
    model.eval()
    with torch.no_grad():
        return [
            generate(model, GrowingCache(), 3, prompt=words(length, count, length=length))
            for length, count in ((6, 2), (3, 1), (9, 3), (6, 2), (1, 1))
        ]


@odd_use(Decoder)
def speculative_decoding(model):
    """Rows of the cache are cut off again."""
    model.eval()
    with torch.no_grad():
        cache = GrowingCache()
        made = [model(words(), cache=cache).logits]
        for cut in (6, 7, 6):
            made.append(model(words(cut, length=3), cache=cache).logits)
            cache.keys = [each[:, :, :cut] for each in cache.keys]
            cache.values = [each[:, :, :cut] for each in cache.values]
    return made, cache.keys


@odd_use(Decoder)
def language_model_trains_by_keywords(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    made = []
    for seed in range(4):
        optimizer.zero_grad()
        batch = {"labels": words(seed + 1), "ids": words(seed)}
        y = model(**(batch if seed % 2 else dict(reversed(batch.items()))), use_cache=False)
        y.loss.backward()
        optimizer.step()
        made += [y.loss, y.logits]
    return made, list(y)


# Gradients of a weight are summed call by call, not op by op.
@odd_use(Decoder, tolerance=1e-6)
def cache_with_gradients(model):
    cache = GrowingCache()
    first = model(words(), cache=cache, use_cache=True)
    second = model(words(1, length=2), cache=cache, use_cache=True)
    (first.logits.square().mean() + second.logits.square().mean()).backward()
    return first.logits, second.logits


@odd_use(Decoder)
def ignored_keywords(model):
    model.eval()
    with torch.no_grad():
        made = [model(words()), model(words(), token_type_ids=words(1), return_dict=True)]
        return made, model(words(), extra=object()), model(ids=words(), labels=words(2))


@odd_use(Decoder)
def train_then_generate_then_train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = []
    for seed in range(3):
        model.train()
        loss = model(words(seed), labels=words(seed + 1)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.inference_mode():
            made.append([each.clone() for each in generate(model, GrowingCache(), 3)[1]])
    return made
