"""Tokenizers of the kinds that language models come with, trained on a few sentences."""

import functools
import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from services.nn.loading import transformers

SENTENCES = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant).",
    "Document [1](Title: Lighthouses of the northern coast) The oldest lighthouse was lit in 1789 by three brothers.",
    "Document [2](Title: Harbours) Ships waited in the harbour until the fog had lifted; many of them carried grain.",
    "Question: who lit the oldest lighthouse of the northern coast\nAnswer: three brothers\n\n",
    "Käthe's café façade — naïve jalapeño, 1.5 °C, 東京 is a city.",
) * 4
# as in Llama 3 and Qwen: a line break may join the signs before it
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def fast(tokenizer: Tokenizer, **names: Any) -> Any:
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names
    )


@functools.cache
def byte_level() -> Any:
    """Like Llama 3 and Qwen: bytes, no space in front, control tokens that are not in the vocabulary of text."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<bos>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("\n\n\n", special=False)])
    bos = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    return fast(tokenizer, bos_token="<bos>", eos_token="<|im_end|>", chat_template=CHATML)


@functools.cache
def prepended() -> Any:
    """Like Llama 2 and Vicuna: every stretch of text gets a space in front; bytes for what is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, limit_alphabet=60, show_progress=False)
    words = (f"▁{word}" for sentence in SENTENCES for word in sentence.split())
    bare = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    bare.train_from_iterator(words, trainer)
    tokenizer.model = bare.model
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return fast(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@functools.cache
def unigram() -> Any:
    """Like sentencepiece's own: a Unigram model whose pieces include the control tokens; bytes for what is unknown."""
    trained = Tokenizer(models.Unigram())
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trained.pre_tokenizer = metaspace
    trained.train_from_iterator(
        SENTENCES, trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", show_progress=False)
    )
    control = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    pieces = [(p, s) for p, s in _vocabulary(trained) if p not in ("<unk>", "\n") and "\n" not in p]
    vocabulary = [*control, *((f"<0x{byte:02X}>", 0.0) for byte in range(256)), *pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = metaspace
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return fast(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _vocabulary(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


TOKENIZERS = {"byte-level": byte_level, "prepended space": prepended, "Unigram": unigram}
