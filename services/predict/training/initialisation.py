"""T5s from scratch in named shapes, their tokenizers, and low-rank matrices for the attention of large models.

The initial weights are transformers', like the original T5's. AdamW learns from them only with a large learning rate,
1e-3 to 3e-3 for "tiny", after a few warm-up steps; that of finetuning, 5e-5, hardly changes embeddings of length
√d_model. The low-rank matrices are those of Hu et al. (2022), for models too large to be trained in full.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from services.nn.loading import transformers

PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"  # 0, 1, 2, as T5 has them
MIN_VOCABULARY = 3 + 256
# The first bucket of T5's relative positions is a token's own; equal tokens begin with a logit of √d_kv, 5.7 for 32.
OWN_POSITION_BIAS = -12.0
# Where other heads do not begin to look: a bias moves by at most the learning rate a step, too slowly to learn this.
ELSEWHERE_BIAS = -6.0
# Buckets of relative positions: 0 is a token's own, 1 to 7 tokens so many places before it, the next 8 those further
# before, and the second half those after it.
_AFTER = 16
_NEAR = 3
# A word, a digit or other characters with a preceding space; other white space.
_PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def build_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """Build a PreTrainedTokenizerFast of at most `vocab_size` tokens, the same for the same texts in the same order.

    It appends the end of sequence to every text. A word at the start of a text, or after a control token, has the same
    token as elsewhere. Raises ValueError for fewer than MIN_VOCABULARY tokens.
    """
    if vocab_size < MIN_VOCABULARY:
        raise ValueError(f"the control tokens and all bytes are {MIN_VOCABULARY} tokens; {vocab_size} is too few")
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS, UNKNOWN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # the trainer would learn the characters of an end of sequence as a word
    tokenizer.train_from_iterator((piece for text in texts for piece in text.split(EOS)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, 1)])
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


# LoRA's scale is SCALE / rank · rank, so that the matrices' contribution does not shrink with a small rank.
SCALE = 2


def add_lora(model: Any, rank: int, seed: int) -> Any:
    """Add matrices of this rank to the queries and values of `model`, in place, and train only these.

    Returns peft's handle, for `merged_copy`. Raises ValueError if peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ValueError("lora_rank needs the package peft, which is not installed") from None
    config = LoraConfig(r=rank, lora_alpha=SCALE * rank, lora_dropout=0.0, target_modules=["q", "v"])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def merged_copy(handle: Any) -> Any:
    """Copy to a plain model, with the matrices merged into the weights."""
    return copy.deepcopy(handle).merge_and_unload()


@dataclass(frozen=True)
class Shape:
    """Sizes of a T5, which has equally many encoder and decoder layers unless `num_decoder_layers` is given.

    `is_gated` chooses the feed-forward layers and the head of v1.1 and flan, gated GELU and a separate head, over those
    of the first T5, ReLU and the embeddings as head. `dropout` is that of training. With `has_matching_heads`, equal
    tokens begin to attend to each other in half of the encoder's heads, and the others begin to look only before a
    token, near it, or after it.
    """

    d_model: int
    num_layers: int
    num_heads: int
    d_ff: int
    d_kv: int = 64
    is_gated: bool = False
    dropout: float = 0.1
    has_matching_heads: bool = False
    num_decoder_layers: int | None = None


SHAPES: Mapping[str, Shape] = {
    # For trainings of minutes: with dropout, losses were twice as large after the same number of steps, and each step
    # took longer.
    "tiny": Shape(64, 2, 4, 256, d_kv=16, dropout=0.0),
    "mini": Shape(128, 3, 4, 384, d_kv=32, dropout=0.0),
    # Two sentences are compared word by word: from random keys, 50,000 pairs of sentences taught nothing.
    "micro": Shape(128, 3, 4, 512, d_kv=32, dropout=0.0, has_matching_heads=True),
    # The encoder compares; a decoder that writes one of three labels costs as much for each of its layers.
    "milli": Shape(192, 4, 6, 512, d_kv=32, dropout=0.0, has_matching_heads=True, num_decoder_layers=2),
    # Learns what "milli" has no room for, from millions of pairs: hours on a CPU, minutes on a GPU.
    "centi": Shape(256, 6, 8, 640, d_kv=32, dropout=0.0, has_matching_heads=True, num_decoder_layers=2),
    "small": Shape(512, 6, 8, 2048),
    "base": Shape(768, 12, 12, 3072),
    "small-v1.1": Shape(512, 8, 6, 1024, is_gated=True),
    "base-v1.1": Shape(768, 12, 12, 2048, is_gated=True),
}


def create_t5(shape: str, vocab_size: int, seed: int) -> Any:
    """Create a T5ForConditionalGeneration, float32, on the CPU, ready for training.

    Its control tokens are those of `build_tokenizer`. Raises KeyError for an unknown shape. The random state of the
    process does not change.
    """
    sizes = SHAPES[shape]
    settings: dict[str, Any] = {"tie_word_embeddings": not sizes.is_gated, "decoder_start_token_id": 0}
    config = transformers().T5Config(
        vocab_size=vocab_size,
        d_model=sizes.d_model,
        d_kv=sizes.d_kv,
        d_ff=sizes.d_ff,
        num_layers=sizes.num_layers,
        num_decoder_layers=sizes.num_decoder_layers,
        num_heads=sizes.num_heads,
        dropout_rate=sizes.dropout,
        feed_forward_proj="gated-gelu" if sizes.is_gated else "relu",
        pad_token_id=0,
        eos_token_id=1,
        **settings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = transformers().T5ForConditionalGeneration(config)
    if sizes.has_matching_heads:
        _match_equal_tokens(model, sizes)
    return model


@torch.no_grad()
def _match_equal_tokens(model: Any, sizes: Shape) -> None:
    """Begin half of the encoder's heads with their queries as keys, in the keys' scale, and without their own position.

    In the first block, what such a head returns is the token that it attends to, projected and negative: what two
    sentences share is taken away, and the words in which they differ remain.
    """
    num_heads = sizes.num_heads // 2
    rows = slice(0, num_heads * sizes.d_kv)
    _begin_matching(model.encoder, rows)
    first = model.encoder.block[0].layer[0].SelfAttention
    first.o.weight[:, rows] = -_take_tokens(first, rows)
    biases = first.relative_attention_bias.weight
    biases[0, :num_heads] = OWN_POSITION_BIAS
    for head in range(num_heads, sizes.num_heads):
        _look((head - num_heads) % 3, biases[:, head])


@torch.no_grad()
def add_matching_heads(model: Any, num_heads: int, seed: int) -> Any:
    """Copy a T5 with more heads, which begin by matching equal tokens in the encoder and change no answer.

    They take what they find in the first block, and random projections of it in later ones; their outputs begin as 0.
    """
    config = copy.deepcopy(model.config)
    config.num_heads += num_heads
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        grown = type(model)(config)
    weights = model.state_dict()
    for name, weight in grown.state_dict().items():
        old = weights[name]
        if name.endswith("Attention.o.weight"):
            weight.zero_()
        weight[tuple(slice(0, size) for size in old.shape)] = old
    added = slice(model.config.num_heads * config.d_kv, None)
    _begin_matching(grown.encoder, added)
    first = grown.encoder.block[0].layer[0].SelfAttention
    _take_tokens(first, added)
    first.relative_attention_bias.weight[:, model.config.num_heads :] = 0
    first.relative_attention_bias.weight[0, model.config.num_heads :] = OWN_POSITION_BIAS
    return grown


def _begin_matching(encoder: Any, rows: slice) -> None:
    """Begin the keys of some heads as their queries, in the keys' scale."""
    for block in encoder.block:
        attention = block.layer[0].SelfAttention
        queries = attention.q.weight[rows]
        attention.k.weight[rows] = queries * (attention.k.weight[rows].std() / queries.std())


def _take_tokens(attention: Any, rows: slice) -> Tensor:
    """Let the values of some heads be orthonormal projections of the tokens; return the matrix that undoes them."""
    orthonormal: Tensor = torch.linalg.qr(attention.v.weight[rows].T).Q
    attention.v.weight[rows] = orthonormal.T
    return orthonormal


def _look(way: int, bias: Tensor) -> None:
    """Let a head look before a token, near it, or after it: way 0, 1 or 2. `bias` (buckets,) is changed."""
    if way == 0:
        bias[0], bias[_AFTER:] = ELSEWHERE_BIAS, ELSEWHERE_BIAS
    elif way == 1:
        bias[_NEAR:_AFTER], bias[_AFTER + _NEAR :] = ELSEWHERE_BIAS, ELSEWHERE_BIAS
    else:
        bias[:_AFTER] = ELSEWHERE_BIAS
