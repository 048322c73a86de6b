"""`generate` with buckets: the model's own tokens, and caches that stay what they are."""

from __future__ import annotations

import copy
import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

from attack.decoders import build_decoder, place_decoder  # noqa: E402
from fake_cuda import fake_gpus  # noqa: E402
from models import machine  # noqa: E402

import placewright as pw  # noqa: E402
from placewright.deployment import model_placement  # noqa: E402
from placewright.frontends.pytorch.logical_device import trace_on_device  # noqa: E402
from placewright.runtime import memory_limits  # noqa: E402
from placewright.runtime.bucket_cache import (  # noqa: E402
    BucketCache,
    BucketLayer,
    BufferPool,
    LayerBuffers,
    bucket_length,
    can_have_bucket,
)
from placewright.runtime.verification import TOLERANCE  # noqa: E402
from placewright.solvers.stop import MaxEvaluations  # noqa: E402

MIX = pw.Generate(prompt=12, new_tokens=8)


def placed_pair(name="LlamaForCausalLM", dtype=torch.float32, **sizes):
    """A placed model and an untouched copy of it."""
    model = build_decoder(name, **{"num_hidden_layers": 1, **sizes}).to(dtype)
    own = copy.deepcopy(model)
    place_decoder(model, MIX)
    return model, own


@pytest.fixture(scope="module")
def pair():
    return placed_pair()


def prompts(length=9, batch=1):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(2, 96, (batch, length), generator=generator)


def generate(model, length=9, batch=1, **arguments):
    torch.manual_seed(1)
    arguments = {"do_sample": False, "max_new_tokens": 6, **arguments}
    return model.generate(prompts(length, batch), **arguments)


def buckets_of(model):
    """The sizes of the graphs that were made of symbolic ones."""
    return [size for graph in model.placed.graphs for size in graph._static_graphs]


def test_one_graph_serves_every_length_of_a_bucket_and_a_new_bucket_is_not_traced(pair):
    model, own = pair
    for length in (9, 20, 30):
        assert torch.equal(generate(model, length), generate(own, length))
    assert list(map(set, buckets_of(model))) == [{64}]  # transformers 5.17 has a mask's, too
    longer = {"max_new_tokens": 70}
    assert torch.equal(generate(model, 12, **longer), generate(own, 12, **longer))
    assert list(map(set, buckets_of(model))) == [{64}, {96}]
    assert all(not graph.is_symbolic for graph in model.placed.graphs[1].static_graphs)
    assert len(model.placed.graphs) == 2  # prefill and decode
    assert not model.placed.eager_calls


def test_the_memory_of_a_bucket_is_the_same_in_the_next_generation(pair):
    model, own = pair
    pools = model.generate.buckets.pool
    assert torch.equal(generate(model), generate(own))
    before = [layer.keys.data_ptr() for layer in pools.free_buffers]
    assert torch.equal(generate(model, 20), generate(own, 20))
    assert [layer.keys.data_ptr() for layer in pools.free_buffers] == before


@pytest.mark.parametrize(
    ("batch", "arguments"),
    [
        pytest.param(1, {"do_sample": True}, id="sampling"),
        pytest.param(4, {}, id="batch of 4"),
        pytest.param(1, {"num_beams": 3}, id="beam search"),
        pytest.param(2, {"num_beams": 3, "do_sample": True}, id="beams of samples"),
        pytest.param(1, {"eos_token_id": list(range(2, 60)), "max_new_tokens": 40}, id="ends"),
        pytest.param(1, {"max_new_tokens": 1}, id="one token"),
    ],
)
def test_tokens_are_the_models_own(pair, batch, arguments):
    model, own = pair
    tokens = generate(model, batch=batch, **arguments)
    assert torch.equal(tokens, generate(own, batch=batch, **arguments))
    assert not model.placed.eager_calls


def test_padding_of_a_batch_is_masked(pair):
    model, own = pair
    mask = torch.ones(4, 9, dtype=torch.long)
    mask[1, :4] = mask[2, :2] = 0
    tokens = generate(model, batch=4, attention_mask=mask)
    assert torch.equal(tokens, generate(own, batch=4, attention_mask=mask))


def test_a_returned_cache_grows_and_can_be_cropped_as_the_models_own(pair):
    model, own = pair
    ours, theirs = (generate(each, return_dict_in_generate=True) for each in pair)
    assert torch.equal(ours.sequences, theirs.sequences)
    cache, right = ours.past_key_values, theirs.past_key_values
    assert type(cache) is transformers.DynamicCache
    for each in (cache, right):
        each.crop(-3)
        assert each.get_seq_length() == 11
    assert torch.allclose(cache.layers[0].keys, right.layers[0].keys, atol=1e-6)
    with torch.no_grad():
        ours = model(input_ids=prompts(1), past_key_values=cache)
        theirs = own(input_ids=prompts(1), past_key_values=right)
    assert torch.allclose(ours.logits, theirs.logits, atol=1e-5)
    assert ours.past_key_values.get_seq_length() == 12


def test_a_cache_of_the_caller_is_the_same_object_with_the_same_layers_afterwards(pair):
    model, own = pair
    tokens = []
    for each in (model, own):
        cache = transformers.DynamicCache(config=each.config)
        layers = cache.layers
        first = generate(each, past_key_values=cache)
        assert cache.layers is layers
        assert cache.get_seq_length() == 14  # the last token has not been read
        more = torch.cat([first, prompts(3)], dim=1)
        tokens.append(each.generate(more, past_key_values=cache, max_new_tokens=4, do_sample=False))
        assert cache.get_seq_length() == 21
    assert torch.equal(*tokens)


def test_a_cache_of_the_caller_survives_an_error_in_the_middle(pair):
    model, own = pair

    class Interruption(Exception):
        pass

    def interrupt(tokens, scores):
        if tokens.shape[1] > 12:
            raise Interruption
        return torch.zeros(len(tokens), dtype=torch.bool)

    cache = transformers.DynamicCache(config=model.config)
    with pytest.raises(Interruption):
        generate(model, past_key_values=cache, stopping_criteria=[interrupt])
    assert cache.get_seq_length() == 12
    assert cache.layers[0].keys.shape[-2] == 12
    assert torch.equal(generate(model), generate(own))


def test_a_models_methods_are_its_own_again_after_remove():
    model = build_decoder("LlamaForCausalLM", num_hidden_layers=1)
    placed = pw.deployment.call_capture.begin_capture(model, pw.Cluster.parse("2xcpu"))
    MIX.prepare(placed)
    assert "generate" in vars(model)
    placed.remove()
    assert not {"generate", "prepare_inputs_for_generation"} & set(vars(model))


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, 64), (64, 64), (65, 96), (97, 128), (640, 768), (769, 1024)]
)
def test_buckets_are_powers_of_two_and_one_and_a_half_times_these(length, bucket):
    assert bucket_length(length) == bucket


def cache_of(tokens, **layer_settings):
    cache = transformers.DynamicCache()
    for layer in range(2):
        if layer_settings:
            kind = transformers.cache_utils.DynamicSlidingWindowLayer
            cache.layers.append(kind(**layer_settings))
        cache.update(torch.rand(3, 2, tokens, 4), torch.rand(3, 2, tokens, 4), layer)
    return cache


def test_only_plain_caches_get_a_bucket_and_only_inside_their_window():
    assert can_have_bucket(cache_of(5), 64)
    assert not can_have_bucket(transformers.DynamicCache(), 64)  # it is empty
    assert can_have_bucket(cache_of(5, sliding_window=65), 64)
    assert not can_have_bucket(cache_of(5, sliding_window=64), 64)
    assert not can_have_bucket(transformers.QuantizedCache.__new__(transformers.QuantizedCache), 64)
    static = transformers.StaticCache(transformers.LlamaConfig(num_hidden_layers=1), 64)
    assert not can_have_bucket(static, 64)


def test_tokens_of_a_bucket_survive_growth_and_a_reordering_of_beams():
    cache = cache_of(5)
    keys = cache.layers[1].keys.clone()
    bucket = BucketCache(cache, 64, BufferPool())
    assert int(cache.get_seq_length()) == 5
    address = cache.layers[1].keys.data_ptr()
    order = torch.tensor([2, 0, 0])
    cache.reorder_cache(order)
    assert cache.layers[1].keys.data_ptr() == address
    bucket.grow(96)
    assert cache.layers[1].keys.shape[-2] == 96
    bucket.restore(is_needed=True)
    assert torch.equal(cache.layers[1].keys, keys[order])


def test_a_cache_comes_back_where_its_tensors_were_not_where_it_was_traced():
    cache = cache_of(5)
    bucket = BucketCache(cache, 64, BufferPool())
    for layer in bucket.layers:
        layer.device = torch.device("meta")  # as a trace leaves it
    bucket.restore(is_needed=True)
    assert all(layer.keys.device.type == layer.device.type == "cpu" for layer in cache.layers)


def test_a_bucket_on_another_device_is_traced_as_on_the_logical_one():
    """`meta` stands for a GPU: transformers makes positions on the device that a layer names."""
    keys, length = torch.zeros(1, 2, 64, 8, device="meta"), torch.zeros((), dtype=torch.long)
    layer = BucketLayer(LayerBuffers(keys, torch.zeros_like(keys), length.to("meta")), False)
    assert layer.device == torch.device("meta")
    traced = []

    def backend(module, inputs):
        traced.append({node.meta["example_value"].device for node in module.graph.nodes
                       if "example_value" in node.meta})  # fmt: skip
        return lambda *args: (keys, keys)

    new = torch.zeros(1, 2, 1, 8)
    with torch.no_grad(), trace_on_device(torch.device("cpu")):
        torch.compile(layer.update, backend=backend, fullgraph=True)(new, new)
    assert traced == [{torch.device("cpu")}]


def test_a_cache_that_no_one_reads_again_can_be_filled_again():
    cache = cache_of(5)
    BucketCache(cache, 64, BufferPool()).restore(is_needed=False)
    assert cache.get_seq_length() == 0
    layer = cache.layers[0]
    layer.update(torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4))
    assert layer.keys.shape[-2] == 3


def test_experts_keep_their_form_while_tokens_are_decoded(pair):
    """transformers takes another form where the first weight is on a GPU, which no plan knows."""
    model, _ = pair
    assert "_optimize_model_for_decode" in vars(model)
    with model._optimize_model_for_decode():
        pass


def test_memory_of_a_bucket_has_nothing_of_the_generation_before():
    pool = BufferPool()
    BucketCache(cache_of(60), 64, pool).restore(is_needed=False)
    BucketCache(cache := cache_of(5), 64, pool)
    assert not cache.layers[0].keys[..., 5:, :].any()


def test_a_gpu_replays_graphs_for_every_token_of_a_bucket(monkeypatch):
    def solve(workload, seed, **options):  # the same plan however fast the machine is
        return pw.solve(workload, stop=MaxEvaluations(1000), seed=seed)

    monkeypatch.setattr(model_placement, "solve", solve)
    model = build_decoder("LlamaForCausalLM", num_hidden_layers=1)
    own = copy.deepcopy(model)
    size = sum(weight.nbytes for weight in model.parameters())
    with fake_gpus():
        options = {"cluster": machine(1), "cuda_graphs": True, "fresh": True}
        limits = {"gpu0": size * 3 // 4}
        mix = pw.Generate(prompt=20, new_tokens=8)
        model = pw.place(model, limits, mix, notify=lambda line: None, **options)
        for length in (9, 20):
            assert torch.equal(generate(model, length), generate(own, length))
        [decode] = [graph for graph in model.placed.graphs if graph.static_graphs]
        [fixed] = decode.static_graphs
        assert "graph" in fixed.executor.issue_mode
        assert decode.executor is None  # the symbolic graph has not run


@pytest.mark.slow
def test_memory_of_free_buckets_is_given_up_for_a_call_that_needs_it(monkeypatch):
    model = build_decoder("LlamaForCausalLM", num_hidden_layers=1)
    own = copy.deepcopy(model)
    size = sum(weight.nbytes for weight in model.parameters())
    with fake_gpus():
        options = {"cluster": machine(1), "budget": 1.0, "fresh": True, "store": "none"}
        model = pw.place(model, {"gpu0": size * 3 // 4}, MIX, **options)
        buckets = model.generate.buckets

        def large_while_free(graph, args):  # a fake GPU's tensors are on the host
            return [torch.empty(size)] if buckets.pool.free_buffers else []

        def excess(limits, graph, args):
            return {"gpu0": (2, 1)} if large_while_free(graph, args) else {}

        monkeypatch.setattr(memory_limits, "_held_tensors", large_while_free)
        monkeypatch.setattr(memory_limits.MemoryLimits, "_excess", excess)
        assert buckets.pool.free_buffers
        assert torch.equal(generate(model), generate(own))


@pytest.mark.slow
def test_bfloat16_logits_agree_when_tokens_are_forced():
    model, own = placed_pair(dtype=torch.bfloat16)
    right = generate(own, return_dict_in_generate=True, output_logits=True)
    forced = right.sequences[0].tolist()
    ours = generate(
        model,
        return_dict_in_generate=True,
        output_logits=True,
        prefix_allowed_tokens_fn=lambda _, tokens: [forced[len(tokens)]],
    )
    assert torch.equal(ours.sequences, right.sequences)
    for actual, expected in zip(ours.logits, right.logits, strict=True):
        scale = expected.abs().max()
        assert (actual - expected).abs().max() <= TOLERANCE[torch.bfloat16] * scale


@pytest.mark.slow
def test_a_window_is_left_before_it_is_full():
    model, own = placed_pair("MistralForCausalLM", sliding_window=70)
    for count in (6, 40, 75):
        tokens = generate(model, max_new_tokens=count)
        assert torch.equal(tokens, generate(own, max_new_tokens=count))
    assert {64} in map(set, buckets_of(model))
    assert not model.placed.eager_calls


@pytest.mark.slow
def test_candidates_of_an_assisted_generation_keep_the_cache_that_grows(pair):
    model, own = pair
    arguments = {"prompt_lookup_num_tokens": 2, "max_new_tokens": 12}
    before = buckets_of(model)
    assert torch.equal(generate(model, **arguments), generate(own, **arguments))
    assert buckets_of(model) == before


@pytest.mark.slow
def test_a_decoder_with_an_encoder_decodes_in_buckets():
    model = build_decoder("T5ForConditionalGeneration")
    own = copy.deepcopy(model)
    place_decoder(model, MIX)
    for length in (12, 9, 20, 30, 31, 33):  # more than have a graph of their own
        for arguments in ({}, {"num_beams": 2}):
            mask = torch.ones(1, length, dtype=torch.long)
            tokens = generate(model, length, attention_mask=mask, **arguments)
            assert torch.equal(tokens, generate(own, length, attention_mask=mask, **arguments))
    assert buckets_of(model)
    assert not model.placed.eager_calls


def test_generations_of_several_threads_have_no_buckets_at_the_same_time(pair):
    """A CUDA graph takes the memory of one for the other, which its own thread may fill then."""
    model, own = pair
    buckets = model.generate.buckets
    inside, end, made = threading.Event(), threading.Event(), {}

    class Wait(transformers.StoppingCriteria):
        def __call__(self, tokens, scores, **_):
            inside.set()
            end.wait(20)
            return torch.zeros(len(tokens), dtype=torch.bool)

    def generate_first():
        made["first"] = generate(model, 9, stopping_criteria=[Wait()])

    thread = threading.Thread(target=generate_first)
    thread.start()
    inside.wait(20)
    taken, take = [], buckets.pool.take
    buckets.pool.take = lambda *args: taken.append(1) or take(*args)
    made["second"] = generate(model, 11)
    assert not taken
    end.set()
    thread.join()
    taken.clear()
    made["third"] = generate(model, 11)
    assert len(taken) == 1
    buckets.pool.take = take
    assert torch.equal(made["first"], generate(own, 9))
    assert torch.equal(made["second"], generate(own, 11))
    assert torch.equal(made["third"], made["second"])
