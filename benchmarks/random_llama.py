"""Llamas with random weights for measuring speed, one of 100 M parameters in Hugging Face's format."""

from pathlib import Path
from typing import Any

import torch

from services.nn.loading import transformers

VOCABULARY = 32_000
# 12 query heads over 4 key and value heads, grouped as in current models
SHAPE: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def save_random_llama(directory: Path) -> int:
    """Write model and tokenizer; returns the number of parameters. Random weights end an answer almost never."""
    model = random_llama(SHAPE)
    model.save_pretrained(directory)
    made_up_tokenizer().save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())


def random_llama(shape: dict[str, Any], *, dtype: torch.dtype = torch.float32) -> Any:
    """Make transformers' model, for inference, on torch's default device."""
    torch.manual_seed(0)
    library = transformers()
    model: Any = library.AutoModelForCausalLM.from_config(library.LlamaConfig(**shape), dtype=dtype)
    return model.eval().requires_grad_(False)


def made_up_tokenizer() -> Any:
    """Return a tokenizer in which every byte is a token, and further tokens have made-up names."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<bos>", "<eos>", *alphabet]
    tokens += [f"Ġw{number}" for number in range(VOCABULARY - len(tokens))]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    create: Any = PreTrainedTokenizerFast
    return create(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>", chat_template=CHAT_TEMPLATE
    )
