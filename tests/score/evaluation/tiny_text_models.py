"""Vera and a classifier of acceptable sentences, of a few random weights, in folders as published ones come."""

from pathlib import Path
from typing import Any

import torch

from services.nn.loading import declare_torchvision_operators

WORDS = ("<pad>", "</s>", "<unk>", "a", "dog", "on", "mat", "cat", "the", "two")
# Of T5: some that tokens use, and those behind them that Vera uses.
VERA_VOCABULARY = 32128


def tokenizer(end: str) -> Any:
    """Words apart at blanks; a text ends with `end`."""
    declare_torchvision_operators()
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {word: place for place, word in enumerate(WORDS)}
    own = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    own.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, words[end])])
    special = {"pad_token": "<pad>", "eos_token": end, "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=own, **special)  # type: ignore[no-untyped-call]


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
