"""The released data of Distilling step-by-step, where a copy lies beside the checkout, and the goldens about it."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.published_data import published

GOLDENS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "goldens" / "distill_text.json").read_text())


def folder() -> Path:
    """One folder a data set, as the released code lays them out, with PaLM's outputs."""
    return published("distill")


def digest(values: Sequence[object]) -> str:
    """As the goldens were made: of a JSON list with its characters as they are."""
    return hashlib.sha256(json.dumps(list(values), ensure_ascii=False).encode()).hexdigest()
