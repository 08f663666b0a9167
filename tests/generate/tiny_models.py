"""Tiny causal language models with random weights, and the same as Hugging Face checkpoints with a tokenizer.

Two key heads for four query heads everywhere, so that grouped queries are always tested.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from services.nn.loading import transformers
from tests.generate.hooked_models import ATTENTION, register_attention

transformers()  # as the services import it, without accelerate

from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

VOCAB_SIZE = 512
SLIDING_WINDOW = 16
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
# what the tokenizer's merges are learnt from
TEXT = """Write a high-quality answer for the given question using only the provided search results (some of which \
might be irrelevant). Document [1](Title: The lighthouse) The keeper of the lighthouse was called Ada and lived there \
until the year 1931. Document [2](Title: The harbour) The harbour was built by the people of the island, who fished \
and who traded with the mainland. Question: who kept the lighthouse? Answer: Ada. Passage: the answer to the question \
is in the documents. Query: when was it built? Yes No"""


def config_of(kind: type[PretrainedConfig], **settings: Any) -> PretrainedConfig:
    return kind(
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 4096,
            "initializer_range": 0.2,  # weights this large make attention and next tokens far from uniform
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 1,
            **settings,
        }
    )


def llama_config(**settings: Any) -> PretrainedConfig:
    return config_of(LlamaConfig, **settings)


def mistral_config(**settings: Any) -> PretrainedConfig:
    """Every layer sees `SLIDING_WINDOW` tokens."""
    return config_of(MistralConfig, **{"sliding_window": SLIDING_WINDOW, **settings})


def qwen2_config(**settings: Any) -> PretrainedConfig:
    return config_of(Qwen2Config, **settings)


def qwen2_sliding_config(**settings: Any) -> PretrainedConfig:
    """The last two layers see `SLIDING_WINDOW` tokens, those before them everything."""
    window = {"use_sliding_window": True, "sliding_window": SLIDING_WINDOW, "max_window_layers": 2}
    return config_of(Qwen2Config, **{**window, **settings})


def qwen3_config(**settings: Any) -> PretrainedConfig:
    return config_of(Qwen3Config, **settings)


CONFIGS: dict[str, Callable[..., PretrainedConfig]] = {
    "llama": llama_config,
    "mistral": mistral_config,
    "qwen2": qwen2_config,
    "qwen2_sliding": qwen2_sliding_config,
    "qwen3": qwen3_config,
}


def tiny_model(
    name: str = "llama",
    *,
    attention: str = ATTENTION,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **settings: Any,
) -> PreTrainedModel:
    """The model of that name in `CONFIGS`, for inference. Equal seeds give equal weights under any `attention`.

    `attention` is "fovea", which needs a `forward_pass` with each call, or one of transformers' own: "eager", "sdpa".
    """
    register_attention()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            CONFIGS[name](**settings), attn_implementation=attention
        )
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") or "norm" in parameter_name:
                torch.nn.init.normal_(parameter, mean=float("norm" in parameter_name), std=0.2)
    torch.nn.Module.to(model, dtype)
    torch.nn.Module.eval(model)
    torch.nn.Module.requires_grad_(model, False)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most `VOCAB_SIZE` tokens: 0 `<bos>`, 1 `<eos>`, the 256 bytes, merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save_tiny(directory: Path, name: str = "llama", **settings: Any) -> Path:
    """The model of `tiny_model` with `tiny_tokenizer` as a Hugging Face checkpoint in `directory`; returns it."""
    model = tiny_model(name, attention="sdpa", **settings)
    model.save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory
