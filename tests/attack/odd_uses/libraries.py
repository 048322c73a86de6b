"""Odd uses by libraries, as their documentation calls models; only those that are installed."""

from __future__ import annotations

import importlib.util
import tempfile
from typing import TYPE_CHECKING, Any

import torch
from attack.decoders import build_decoder
from attack.odd_uses.harness import odd_use, rows

if TYPE_CHECKING:
    from collections.abc import Callable


def use_of(
    library: str,
    build: Callable[[], Any],
    example: Callable[[], tuple[Any, ...]] | None = None,
    **settings: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function into the table if a library is installed."""
    if importlib.util.find_spec(library) is None:
        return lambda use: use
    return odd_use(build, example, **settings)


def tokens(seed: int = 0, length: int = 7) -> torch.Tensor:
    return torch.randint(3, 96, (2, length), generator=torch.Generator().manual_seed(seed))


def one_prompt() -> tuple[Any, ...]:
    return (tokens(),)


def llama() -> Any:
    return build_decoder("LlamaForCausalLM")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=tokens()).logits


@use_of("transformers", llama, one_prompt, slow=True)
def scores_of_beams_and_samples(model):
    asked = {"max_new_tokens": 5, "output_scores": True, "return_dict_in_generate": True}
    beams = model.generate(tokens(), num_beams=3, num_return_sequences=2, **asked)
    sampled = model.generate(tokens(), do_sample=True, num_return_sequences=2, **asked)
    made = [*beams.scores, beams.sequences_scores, beams.sequences, *sampled.scores]
    return [*made, sampled.sequences]


@use_of("transformers", llama, one_prompt, slow=True)
def two_turns_with_one_cache(model):
    first = model.generate(tokens(), max_new_tokens=5, return_dict_in_generate=True)
    text = torch.cat([first.sequences, tokens(3, 4)], 1)
    cache = first.past_key_values
    second = model.generate(text, past_key_values=cache, max_new_tokens=5)
    return first.sequences, second, cache.layers[0].keys


@use_of("transformers", llama, one_prompt, slow=True)
def embeddings_are_resized(model):
    made = [logits(model)]
    for size in (103, 96):
        model.resize_token_embeddings(size)
        made.append(logits(model))
    return [*made, model.generate(tokens(), max_new_tokens=4)]


@use_of("transformers", llama, one_prompt, slow=True)
def saved_and_read_again(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        other = type(model).from_pretrained(folder).eval()
    return logits(model), logits(other)


def speech() -> Any:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    layers = {"conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2)}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
    config = {**layers, **sizes, **more, "intermediate_size": 48, "vocab_size": 20}
    return Wav2Vec2ForCTC(Wav2Vec2Config(**config, mask_time_prob=0.0)).eval()


@use_of("transformers", speech, lambda: (rows(0, 2, 400),), slow=True)
def a_speech_model_draws_in_evaluation(model):
    made = []
    for seed, length in enumerate((400, 500)):
        with torch.no_grad():
            made += [model(rows(seed, 2, length)).logits, torch.rand(2)]
    loss = model.train()(rows(0, 2, 400), labels=torch.tensor([[1, 2], [3, 4]])).loss
    loss.backward()
    return made, loss


@use_of("accelerate", llama, one_prompt, slow=True)
def accelerate_prepares_it(model):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for seed in range(3):
        loss = prepared(tokens(seed), labels=tokens(seed)).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    same = accelerator.unwrap_model(prepared) is model
    AcceleratorState._reset_state(True)
    return losses, same


def adapter() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)


def adapted() -> Any:
    from peft import get_peft_model

    return get_peft_model(llama(), adapter()).eval()


@use_of("peft", adapted, one_prompt, slow=True)
def adapters_are_switched_and_merged(model):
    made = [logits(model)]
    with model.disable_adapter():
        made.append(logits(model))
    torch.manual_seed(4)
    model.add_adapter("other", adapter())
    for name in ("other", "default"):
        model.set_adapter(name)
        made.append(logits(model))
    model.train()(input_ids=tokens(), labels=tokens()).loss.backward()
    model.eval().merge_adapter()
    made.append(logits(model))
    model.unmerge_adapter()
    return [*made, logits(model)]


@use_of("peft", llama, one_prompt, slow=True)
def an_adapter_is_added_after_placing(model):
    from peft import get_peft_model

    made = [logits(model)]
    torch.manual_seed(4)
    outer = get_peft_model(model, adapter()).eval()
    made += [logits(outer), outer.generate(input_ids=tokens(), max_new_tokens=4)]
    return [*made, logits(outer.merge_and_unload())]


def unet() -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        cross_attention_dim=8,
        attention_head_dim=4,
        norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()


def one_step() -> tuple[Any, ...]:
    return rows(0, 8, 64).view(2, 4, 8, 8), torch.tensor(7), rows(0, 6, 8).view(2, 3, 8)


@use_of("diffusers", unet, one_step, slow=True)
def images_are_denoised(model):
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler()
    scheduler.set_timesteps(4)
    image, _, text = one_step()
    with torch.no_grad():
        for step in scheduler.timesteps:
            noise = model(image, step, encoder_hidden_states=text).sample
            image = scheduler.step(noise, step, image).prev_sample
    return image
