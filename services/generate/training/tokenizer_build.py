"""The starter's tokenizer: bytes, and one token for each word of the generated questions and of their template.

A byte-level tokenizer like Llama 3's: any text round-trips, words outside the vocabulary as their bytes.
"""

import re
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from services.generate.data.facts import words

BOS, EOS = "<bos>", "<eos>"
BOS_ID, EOS_ID = 0, 1
MAX_DOCUMENT_NUMBER = 40
INSTRUCTION = (
    "Write a high-quality answer for the given question using only the provided search results (some of which might be"
    " irrelevant)."
)
TEMPLATE_PIECES = (
    *("Write", "quality", "some", "Document", "Question:", "Answer:", "Title:"),
    *(" [", "](", " (", ")", ").", "-", "?", ".", "\n"),
)
# a word with the space before it and a colon after it, a number, a line break, other signs, other white space
PIECES = r" ?\p{L}+:?| ?\p{N}{1,3}|\n| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|[^\S\n]+"

# The last message as it is where it already ends with "Answer:", else as a question; over the documents, if given.
_TITLE = "('(Title: ' ~ d.title ~ ')' if d.title else '')"
_DOCUMENT = "'Document [' ~ loop.index ~ ']' ~ " + _TITLE + " ~ ' ' ~ d.text ~ '\\n'"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% set text = messages[-1]['content'] | trim %}"
    "{% if text.endswith('Answer:') %}{{ text }}{% else %}{% if documents %}"
    "{{ '" + INSTRUCTION + "\\n\\nQuestion: ' + text + '\\n\\n' }}"
    "{% for d in documents %}{{ " + _DOCUMENT + " }}{% endfor %}{{ '\\n' }}{% endif %}"
    "{{ 'Question: ' + text + '\\nAnswer:' }}{% endif %}"
)


def build_tokenizer() -> Tokenizer:
    """Token ids: 0 `<bos>`, 1 `<eos>`, the 256 bytes, then the words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    pieces = [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(p)[0][0] for p in _pieces()
    ]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys([BOS, EOS, *alphabet, *pieces]))}
    # whole pieces are looked up before any merge, so the vocabulary needs no merges
    tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    """The content of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }


def _pieces() -> Sequence[str]:
    numbers = [str(i) for i in range(1, MAX_DOCUMENT_NUMBER + 1)]
    return [*TEMPLATE_PIECES, *numbers, *(f" {word}" for word in [*re.findall(r"\w+", INSTRUCTION), *words()])]
