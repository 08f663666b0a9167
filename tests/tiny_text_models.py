"""Vera, a classifier of sentences and causal models, of a few random weights, in folders as published ones come."""

from pathlib import Path
from typing import Any

import torch

from services.nn.loading import transformers

WORDS = ("<pad>", "</s>", "<unk>", "a", "dog", "on", "mat", "cat", "the", "two")
# Of T5: some that tokens use, and those behind them that Vera uses.
VERA_VOCABULARY = 32128


def tokenizer(end: str, *, begin: str | None = None, sets_begin: bool = False) -> Any:
    """Words apart at blanks; a text ends with `end`, or has no end, and begins with `begin` where it is set."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {word: place for place, word in enumerate(WORDS)}
    own = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = [(word, words[word]) for word in {end, begin} if word]
    template = f"{begin} $A" if begin and sets_begin else "$A" if begin or not end else f"$A {end}"
    own.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    special = {"pad_token": "<pad>", "unk_token": "<unk>"}
    special |= {"eos_token": end} if end else {}
    special |= {"bos_token": begin} if begin else {}
    return transformers().PreTrainedTokenizerFast(tokenizer_object=own, **special)


def write_tiny_vera(directory: Path, *, vocabulary: int = VERA_VOCABULARY, dtype: torch.dtype = torch.float32) -> Any:
    """Writes the folder and returns transformers' own model of it."""
    words = tokenizer("</s>")
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=vocabulary, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = T5EncoderModel(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    model.to(dtype).save_pretrained(directory)
    words.save_pretrained(directory)
    return model.eval()


def write_tiny_grammar(directory: Path, **settings: Any) -> Any:
    """Writes the folder and returns transformers' own model of it."""
    words = tokenizer("</s>")
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    shape: dict[str, Any] = {"vocab_size": len(WORDS), "dim": 8, "hidden_dim": 16, "n_layers": 2, "n_heads": 2}
    config = DistilBertConfig(**shape, max_position_embeddings=16, **{"num_labels": 2, **settings})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = DistilBertForSequenceClassification(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(directory)
    words.save_pretrained(directory)
    return model.eval()


def write_tiny_causal(directory: Path, kind: str, *, begin: str | None = None, sets_begin: bool = False) -> Any:
    """Writes the folder of a GPT-2 or a Llama and returns transformers' own model of it."""
    words = tokenizer("", begin=begin, sets_begin=sets_begin)
    import transformers

    if kind == "gpt2":
        config: Any = transformers.GPT2Config(vocab_size=len(WORDS), n_embd=8, n_layer=2, n_head=2, n_positions=16)
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        shape: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
        heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}
        config = transformers.LlamaConfig(vocab_size=len(WORDS), **shape, **heads)
        model = transformers.LlamaForCausalLM(config)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(directory)
    words.save_pretrained(directory)
    return model.eval()
