"""A fast tokenizer made of a SentencePiece model, for checkpoints that come with nothing else.

The pieces and their ranks are SentencePiece's, so are the tokens of any text: a space before it, bytes for what no
piece covers. transformers' own conversion drops the first of two leading spaces.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.core.refusals import Refused
from services.nn.loading import transformers

# U+2581, which SentencePiece writes for a space.
SPACE = "▁"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def make_fast(model: Path, config: Mapping[str, Any], added: Mapping[str, int]) -> Any:
    """Make a PreTrainedTokenizerFast of a SentencePiece BPE model.

    `config` is the checkpoint's `tokenizer_config.json`: its special tokens, chat template and whether texts begin with
    `<s>`. `added` are further tokens with their ids. Raises Refused for a damaged model, for one of another kind than
    BPE with bytes, and for added tokens whose ids do not follow the model's.
    """
    pieces = _pieces(model)
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    unknown = _content(config.get("unk_token")) or "<unk>"
    tokenizer = Tokenizer(
        models.BPE(vocab=ids, merges=_merges(pieces, ids), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = {name: token for name in SPECIAL if (token := _content(config.get(name)))}
    control = dict.fromkeys(token for token in (unknown, *special.values()) if token in ids)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    for token, number in sorted(added.items(), key=lambda entry: entry[1]):
        is_special = token in special.values()
        add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
        add([AddedToken(token, special=is_special, normalized=False)])
        if tokenizer.token_to_id(token) != number:
            raise Refused(
                f"the added token {token!r} has the id {number}, where {tokenizer.token_to_id(token)} follows"
            )
    bos = special.get("bos_token", "<s>")
    if config.get("add_bos_token", True) and bos in ids:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, ids[bos])])
    kept = {name: config[name] for name in ("chat_template", "model_max_length") if config.get(name) is not None}
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special, **kept
    )


def _pieces(model: Path) -> list[tuple[str, float]]:
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_file=str(model))
    except (RuntimeError, OSError) as error:
        raise Refused(f"{model.name} is not a SentencePiece model: {str(error).splitlines()[0]}") from None
    numbers = range(processor.get_piece_size())
    if not any(processor.is_byte(number) for number in numbers):
        raise Refused(f"{model.name} has no pieces for bytes: only BPE models with bytes, as Llama's, are converted")
    return [(processor.id_to_piece(number), processor.get_score(number)) for number in numbers]


def _merges(pieces: Sequence[tuple[str, float]], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """List the pairs of pieces that make a piece, those of better pieces first."""
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _content(token: Any) -> str | None:
    """Return the text of a token, which configurations write as text or with its properties."""
    return token.get("content") if isinstance(token, Mapping) else token
