"""A tokenizer for a student from scratch, learnt from the texts that it is to be taught with.

Bytes and the frequent pieces of words, by byte pair encoding, so that any text can be read and comes back as it was;
digits stay apart, so that a number which was never seen is still one of known digits. The control tokens are T5's.
"""

from collections.abc import Iterable
from typing import Any

from services.nn.torchvision_operators import declare_torchvision_operators

PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"  # 0, 1, 2, as T5 has them
MIN_VOCABULARY = 3 + 256
# A word, a digit or other signs with the space ahead of it; further white space.
_PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def build_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """A PreTrainedTokenizerFast of at most so many tokens, the same for the same texts in the same order.

    It puts the end of sequence behind every text. The first word of a text, and of what follows a control token, is the
    token that it would be further on. Raises ValueError for fewer than MIN_VOCABULARY tokens.
    """
    if vocab_size < MIN_VOCABULARY:
        raise ValueError(f"the control tokens and all bytes are {MIN_VOCABULARY} tokens; {vocab_size} do not hold them")
    declare_torchvision_operators()
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

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
    # the trainer would learn the signs of an end of sequence as a word
    tokenizer.train_from_iterator((piece for text in texts for piece in text.split(EOS)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, 1)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
