"""Pairs and blind models for tests of refinement."""

from pathlib import Path

import numpy as np
import pytest

from services.jobs.sugarcrepe import Pair, PairKind, write_pairs
from tests.tiny_text_models import WORDS, write_tiny_causal, write_tiny_grammar, write_tiny_vera

KINDS: tuple[PairKind, ...] = ("replace_obj", "swap_att", "negate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of random words, and three models that score them."""
    folder = tmp_path_factory.mktemp("refine")
    generator = np.random.default_rng(0)

    def sentence() -> str:
        return " ".join(generator.choice(WORDS[3:], size=generator.integers(2, 7)))

    pairs = [
        Pair(
            id=f"{n}", kind=KINDS[n % 3], filename=f"{n % 50}.jpg", caption=sentence(), negative_caption=sentence(),
            made_by="a draw of words",
        )
        for n in range(900)
    ]  # fmt: skip
    write_pairs(folder / "pairs.jsonl", pairs)
    write_tiny_vera(folder / "vera")
    write_tiny_grammar(folder / "cola")
    write_tiny_causal(folder / "gpt2", "gpt2", begin="</s>")
    return folder
