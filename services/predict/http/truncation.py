"""Texts cut so that an input fits, where a request asks for it."""

from collections.abc import Mapping
from typing import Any, Literal

from services.core.errors import TooLarge
from services.predict.engine import Item, PredictEngine

Side = Literal["left", "right"]


def prepare_cut(engine: PredictEngine, fields: Mapping[str, str], side: Side, place: str) -> Item:
    """The item of an input whose texts lose what is too much for the model, the longer ones first, at this side.

    Raises what `PredictEngine.prepare` raises, but TooLarge only where no text is left to be cut.
    """
    limit = engine.description.max_input_tokens
    num_characters = limit * engine.max_token_characters  # more can't fit, and would take long to tokenise
    texts = {
        name: text[:num_characters] if side == "right" else text[-num_characters:] for name, text in fields.items()
    }
    too_many = 0
    while True:
        try:
            return engine.prepare(texts, place=place)
        except TooLarge:
            if not any(texts.values()):
                raise
        around = engine.prepare(dict.fromkeys(texts, ""), place=place).prompt_tokens
        texts = _cut(engine.tokenizer, texts, max(0, limit - around - too_many), side)
        too_many = 2 * too_many + 1  # texts side by side may take a few tokens more than each on its own


def _cut(tokenizer: Any, texts: Mapping[str, str], max_tokens: int, side: Side) -> dict[str, str]:
    """Texts of so many tokens together."""
    offsets = {
        name: tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
        for name, text in texts.items()
    }
    kept = {name: len(spans) for name, spans in offsets.items()}
    while sum(kept.values()) > max_tokens:
        kept[max(kept, key=lambda name: kept[name])] -= 1
    return {name: _ended(text, offsets[name], kept[name], side) for name, text in texts.items()}


def _ended(text: str, spans: list[tuple[int, int]], num_kept: int, side: Side) -> str:
    if num_kept >= len(spans):
        return text
    if num_kept == 0:
        return ""
    return text[: spans[num_kept][0]] if side == "right" else text[spans[-num_kept][0] :]
