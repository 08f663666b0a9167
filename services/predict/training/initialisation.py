"""T5s from scratch in named shapes, their tokenizers, and low-rank matrices for the attention of large models.

The initial weights are transformers', from which AdamW learns only with a large learning rate, 1e-3 to 3e-3 for "tiny",
after a few warm-up steps. The low-rank matrices are those of Hu et al. (2022).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from services.nn.loading import transformers

PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"  # 0, 1, 2, as T5 has them
MIN_VOCABULARY = 3 + 256
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

    Returns peft's handle. Raises ValueError if peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ValueError("lora_rank needs the package peft, which is not installed") from None
    config = LoraConfig(r=rank, lora_alpha=SCALE * rank, lora_dropout=0.0, target_modules=["q", "v"])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config)


@dataclass(frozen=True)
class Shape:
    """Sizes of a T5, which has equally many encoder and decoder layers unless `num_decoder_layers` is given.

    `is_gated` chooses the feed-forward layers and the head of v1.1 and flan, gated GELU and a separate head, over those
    of the first T5, ReLU and the embeddings as head. `dropout` is that of training.
    """

    d_model: int
    num_layers: int
    num_heads: int
    d_ff: int
    d_kv: int = 64
    is_gated: bool = False
    dropout: float = 0.1
    num_decoder_layers: int | None = None


SHAPES: Mapping[str, Shape] = {
    # For trainings of minutes: with dropout, losses were twice as large after the same number of steps, and each step
    # took longer.
    "tiny": Shape(64, 2, 4, 256, d_kv=16, dropout=0.0),
    "mini": Shape(128, 3, 4, 384, d_kv=32, dropout=0.0),
    "small": Shape(512, 6, 8, 2048),
    "base": Shape(768, 12, 12, 3072),
    "small-v1.1": Shape(512, 8, 6, 1024, is_gated=True),
    "base-v1.1": Shape(768, 12, 12, 2048, is_gated=True),
}


def create_t5(sizes: Shape, vocab_size: int, seed: int) -> Any:
    """Create a T5ForConditionalGeneration, float32, on the CPU, ready for training.

    Its control tokens are those of `build_tokenizer`. The random state of the process does not change.
    """
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
    return model
