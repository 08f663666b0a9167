"""Initial weights and tokenizer of the starter.

The model is a Llama whose initial weights compare the tokens before two tokens.

Trained from random weights, a model of this size needs hours to learn to look up a name; these weights provide the
parts:

* layers 0 and 1: each head attends to the token a fixed number of places back (`OFFSETS`), whatever that token is. All
  embeddings share a constant in dimension 0; queries and keys read it through the fast rotary frequencies, with the
  query rotated by the offset.
* layers 2 and 3: each head compares the outputs of two of those heads, with queries and keys from the same projection
  on the slow frequencies, which hardly depend on distance. A token does not attend to its neighbourhood (fast
  frequencies, negated), prefers words of answers (dimension 1 of their embeddings), and copies what it attends to.

All weights are then trained. The tokenizer has bytes, and one token for each word of the generated questions and of
their template. Legend: D width, H query heads, G key heads, C channels of a head, V vocabulary.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn

from starters.generate.facts import words
from starters.generate.llama import BOS_ID, MAX_TOKENS, LlamaShape, new_llama

BOS, EOS = "<bos>", "<eos>"
MAX_DOCUMENT_NUMBER = 40
INSTRUCTION = (
    "Write a high-quality answer for the given question using only the provided search results (some of which might be"
    " irrelevant)."
)
TEMPLATE_PIECES = (
    *("Write", "quality", "some", "Document", "Question:", "Answer:", "Title:"),
    *(" [", "](", " (", ")", ").", "-", "?", ".", "\n"),
)
# a word with a preceding space and a following colon, a number, a line break, other characters, other white space
PIECES = r" ?\p{L}+:?| ?\p{N}{1,3}|\n| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|[^\S\n]+"

# The last message, unchanged if it already ends with "Answer:", else as a question; over the documents, if given.
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
    """Build a tokenizer with the ids 0 `<bos>`, 1 `<eos>`, the 256 bytes, then the words."""
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
        "model_max_length": MAX_TOKENS,
    }


def _pieces() -> Sequence[str]:
    numbers = [str(i) for i in range(1, MAX_DOCUMENT_NUMBER + 1)]
    return [*TEMPLATE_PIECES, *numbers, *(f" {word}" for word in [*re.findall(r"\w+", INSTRUCTION), *words()])]


OFFSETS = ((1, 3, 4, 5), (1, 2, 6, 11))
COMPARED = ((1, 2), (2, 3))  # the heads of layer 0 that the key heads of layers 2 and 3 compare
WIDTH, NUM_HEADS, NUM_KEY_HEADS, CHANNELS, NUM_LAYERS, MLP_WIDTH = 192, 4, 2, 48, 4, 512
ROPE_THETA = 1e5
NUM_FAST, FIRST_SLOW = 10, 12  # rotary frequencies, fastest first
CONSTANT = 4.0  # of dimension 0 in every embedding and of dimension 1 in those of answers' words


def create_llama(vocab_size: int, answer_ids: Sequence[int], seed: int) -> Any:
    """Create a LlamaForCausalLM, float32, on the CPU; `answer_ids` are the tokens that occur in answers."""
    torch.manual_seed(seed)
    shape = LlamaShape(
        vocab_size, WIDTH, MLP_WIDTH, NUM_LAYERS, NUM_HEADS, NUM_KEY_HEADS, channels=CHANNELS, rope_theta=ROPE_THETA
    )
    model = new_llama(shape)
    with torch.no_grad():
        _set_embeddings(model.model.embed_tokens.weight, answer_ids)
        model.model.norm.weight.fill_(0.1)  # embeddings are as long as √D: logits would be far too large
        for number, layer in enumerate(model.model.layers):
            _set_values(layer)
            if number < len(OFFSETS):
                _set_offset_heads(layer.self_attn, OFFSETS[number], _constant(number), 2.0 if number == 0 else 0.3)
            else:
                gathered = model.model.layers[0].self_attn.o_proj.weight
                _set_comparing_heads(layer.self_attn, gathered, COMPARED[number - len(OFFSETS)])
            for out in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                out[:2] = 0  # the two marks do not change
    return model


def _constant(number: int) -> float:
    """Dimension 0 after the normalisation of layer `number`: layer 0 adds four vectors as long as the embedding."""
    return CONSTANT if number == 0 else CONSTANT / math.sqrt(1 + NUM_HEADS)


def _set_embeddings(weight: Tensor, answer_ids: Sequence[int]) -> None:
    """Set random directions of length √D, so that all tokens have equal norm, and the two marks."""
    weight.normal_()
    weight[:, :2] = 0
    weight.mul_(math.sqrt(WIDTH) / weight.norm(dim=1, keepdim=True))
    weight[:, 0] = CONSTANT
    weight[list(answer_ids), 1] = CONSTANT


def _set_values(layer: Any) -> None:
    for projection in (layer.self_attn.v_proj, layer.mlp.gate_proj, layer.mlp.up_proj):
        nn.init.orthogonal_(projection.weight)
    layer.self_attn.v_proj.weight[:, :2] = 0
    layer.mlp.down_proj.weight.normal_(0, 0.02)


def _set_offset_heads(attention: Any, offsets: Sequence[int], constant: float, gain: float) -> None:
    """q · k = 8 Σ_f cos(θ_f (i − j − offset)) over the fast frequencies f, whatever tokens i and j are."""
    half = CHANNELS // 2
    theta = ROPE_THETA ** (-torch.arange(NUM_FAST) / half)
    amplitude = math.sqrt(8 * math.sqrt(CHANNELS)) / constant
    key, query = _heads(attention.k_proj), _heads(attention.q_proj)
    key.normal_(0, 0.001)
    query.normal_(0, 0.001)
    key[:, :NUM_FAST, 0] = amplitude
    for head, offset in enumerate(offsets):
        query[head, :NUM_FAST, 0] = amplitude * torch.cos(offset * theta)
        query[head, half : half + NUM_FAST, 0] = -amplitude * torch.sin(offset * theta)
    nn.init.orthogonal_(attention.o_proj.weight, gain=gain)


def _set_comparing_heads(attention: Any, gathered: Tensor, compared: Sequence[int]) -> None:
    """q · k = similarity of the `compared` heads' outputs − 26 nearby + 10 for words of answers, before training."""
    half, constant = CHANNELS // 2, _constant(2)
    key, query, value = _heads(attention.k_proj), _heads(attention.q_proj), _heads(attention.v_proj)
    for group, head in enumerate(compared):
        directions = gathered[:, head * CHANNELS : (head + 1) * CHANNELS].T
        key[group] = 1.9 * (directions / directions.norm(dim=1, keepdim=True))[torch.randperm(CHANNELS)]
    key[:, :, :2] = 0
    for start in (0, half):
        key[:, start : start + FIRST_SLOW] = 0
    query.copy_(key.repeat_interleave(NUM_HEADS // NUM_KEY_HEADS, 0))
    near = range(3, NUM_FAST)
    amplitude = math.sqrt(26 / len(near) * math.sqrt(CHANNELS)) / constant
    query[:, near, 0] = -amplitude
    key[:, near, 0] = amplitude
    preference = math.sqrt(10 * math.sqrt(CHANNELS)) / constant
    query[:, half - 1, 0] += preference
    key[:, half - 1, 1] += preference
    copied = value.repeat_interleave(NUM_HEADS // NUM_KEY_HEADS, 0)
    attention.o_proj.weight.copy_(copied.flatten(0, 1).T)


def _heads(projection: Any) -> Tensor:
    """A view of a projection's weight as (heads, C, D)."""
    weight: Tensor = projection.weight
    return weight.view(-1, CHANNELS, WIDTH)
