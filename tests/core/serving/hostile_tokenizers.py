"""Tokenizers whose normalizers hang, grow or break their library at a token, which they meet as they are read."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[3] / "services/generate/starter/litm-facts/tokenizer.json"


@dataclass(frozen=True)
class Hostile:
    normalizer: dict[str, Any]
    token: str


# Each run takes some 30 ms; a few letters more, and the regex engine gives up by itself.
NESTED = {"type": "Replace", "pattern": {"Regex": "(x+x+)+[yz]"}, "content": ""}
HANGING = Hostile(NESTED, f"{'x' * 20} " * 20_000)
PANICKING = Hostile(NESTED, "x" * 100)
THOUSANDFOLD = {"type": "Replace", "pattern": {"String": "x"}, "content": "x" * 1000}
GROWING = Hostile({"type": "Sequence", "normalizers": [THOUSANDFOLD] * 4}, "x")


def hostile_tokenizer(hostile: Hostile, source: Path = SOURCE) -> dict[str, Any]:
    """Return the content of a `tokenizer.json` with the normalizer, and the token added."""
    tokenizer: dict[str, Any] = json.loads(source.read_text())
    settings = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    tokenizer["added_tokens"].append({"id": 1_000_000, "content": hostile.token, **settings})
    return {**tokenizer, "normalizer": hostile.normalizer}
