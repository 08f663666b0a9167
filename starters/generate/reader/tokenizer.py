"""The starter's tokenizer: byte-level BPE, trained on the texts that the starter is trained on."""

import random
from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from services.generate.prompts.templates import QUERY_AWARE, Document
from starters.generate.facts import USUAL_NAMING, ask, draw_facts
from starters.generate.litm.initialisation import BOS, EOS, INSTRUCTION
from starters.generate.llama import BOS_ID, EOS_ID, MAX_TOKENS
from starters.generate.world.documents import REFUSAL, Scope, draw_world
from starters.generate.world.relations import RELATIONS, filled

NUM_PIECES = 3072
# an apostrophe's ending, a word with a preceding space, at most two digits, a line break, other characters, white space
_PIECES = r"'s(?!\p{L})| ?\p{L}+| ?\p{N}{1,2}|\n| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|[^\S\n]+"


def build_tokenizer(num_texts: int = 6000) -> Tokenizer:
    """Train a tokenizer with the ids 0 `<bos>`, 1 `<eos>`, the 256 bytes, then the merged pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_PIECES,
        special_tokens=[AddedToken(BOS, special=True), AddedToken(EOS, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(num_texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def _texts(count: int) -> Iterator[str]:
    generator = random.Random("tokenizer")
    for _ in range(count):
        world = draw_world(generator, Scope())
        asked = [world.ask(generator) for _ in range(4)]
        yield "".join(piece.text for piece in QUERY_AWARE.render(asked[0].question, world.documents))
        yield "\n".join(f" {one.answer} {one.question}" for one in asked)
    for _ in range(count // 4):
        question = ask(generator, draw_facts(generator, 4), 0, USUAL_NAMING)
        documents = [Document(fact.text, fact.title) for fact in question.facts]
        yield "".join(piece.text for piece in QUERY_AWARE.render(question.question, documents))
        yield f" {REFUSAL}"


def common_tokens(tokenizer: Tokenizer) -> list[int]:
    """The tokens of prompts and questions apart from names, values and single letters."""
    rendered = (piece.text for piece in QUERY_AWARE.render("", [Document("", " "), Document("")]))
    templates = [
        template
        for relation in RELATIONS
        for form in relation.forms
        for template in (*form.statements, *form.questions, *form.reverse)
    ]
    texts = [*rendered, f" {REFUSAL}", *(filled(template, "", "") for template in templates), *map(str, range(1, 41))]
    ids = {i for text in texts for i in tokenizer.encode(text, add_special_tokens=False).ids}
    return sorted(i for i in ids | {BOS_ID, EOS_ID} if not _is_letter(tokenizer.id_to_token(i)))


# System prompts and earlier messages come first. The last message is unchanged if it already ends with "Answer:", else
# a question; over the documents, if given.
_TITLE = "('(Title: ' ~ d.title ~ ')' if d.title else '')"
_DOCUMENT = "'Document [' ~ loop.index ~ ']' ~ " + _TITLE + " ~ ' ' ~ d.text ~ '\\n'"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages[:-1] %}{% set text = m['content'] | trim %}"
    "{% if m['role'] == 'user' %}"
    "{{ text if text.endswith('Answer:') else 'Question: ' + text + '\\nAnswer:' }}"
    "{% if messages[loop.index]['role'] != 'assistant' %}{{ eos_token + '\\n\\n' }}{% endif %}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + text + eos_token + '\\n\\n' }}"
    "{% else %}{{ text + '\\n\\n' }}{% endif %}{% endfor %}"
    "{% set text = messages[-1]['content'] | trim %}"
    "{% if text.endswith('Answer:') %}{{ text }}{% else %}{% if documents %}"
    "{{ '" + INSTRUCTION + "\\n\\nQuestion: ' + text + '\\n\\n' }}"
    "{% for d in documents %}{{ " + _DOCUMENT + " }}{% endfor %}{{ '\\n' }}{% endif %}"
    "{{ 'Question: ' + text + '\\nAnswer:' }}{% endif %}"
)


def _is_letter(token: str | None) -> bool:
    bare = (token or "").removeprefix("Ġ")
    return len(bare) == 1 and bare.isalpha() and bare.isascii() and token != "Ġa"


def tokenizer_config() -> dict[str, Any]:
    """The content of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_TOKENS,
    }
