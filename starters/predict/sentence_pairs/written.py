"""Pairs of sentences that people wrote, to which a student's confidence is fitted and which it never learns from.

Held-out pairs of a generator are too easy for that: a student is right about more of them than of anybody's.
"""

import json
from pathlib import Path

from services.predict.data.rows import Row
from starters.predict.inferences import INFERENCES

FILE = "written_pairs.jsonl"


def written_inferences() -> list[Row]:
    """Read the pairs, equally many for each label."""
    lines = Path(__file__).with_name(FILE).read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines]
    texts = [INFERENCES.input_text({name: pair[name] for name in INFERENCES.fields}) for pair in pairs]
    return [Row(text, pair["label"]) for text, pair in zip(texts, pairs, strict=True)]
