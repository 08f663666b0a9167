"""The blind models that come with curate: they load, prefer sense to nonsense, and are refined away."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from services.core.store.checkpoint_files import packaged_starters, read_description
from services.curate.model.blind_model import BlindModel
from services.curate.refinement.loading import STARTERS
from services.curate.refinement.scores import blind_results, refine_pairs, score_pairs
from services.jobs.sugarcrepe import Pair, published_pairs, write_pairs
from tests.published_data import published

FOLDER = Path(__file__).parents[2] / "services" / "curate" / "starter"
NAMES = ("blind-plausibility", "blind-grammar")


@pytest.fixture(scope="module")
def models() -> list[BlindModel]:
    return [BlindModel.load(name, FOLDER / name, device=torch.device("cpu")) for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_starter_is_packaged_with_a_description_that_says_what_it_has_read(name: str) -> None:
    assert FOLDER / name in packaged_starters()
    description = read_description(FOLDER / name)
    assert (description.name, description.kind, description.licence) == (name, "blind-classifier", "CC-BY-SA-4.0")
    assert description.statement is not None and "no benchmark's negatives" in description.statement
    accuracy = description.metrics["held_out_accuracy"]
    assert isinstance(accuracy, float) and accuracy > 0.7
    assert sum(path.stat().st_size for path in (FOLDER / name).iterdir()) < 5_000_000


def test_the_starters_are_the_default_models() -> None:
    assert [text.partition("=")[2] for text in STARTERS] == list(NAMES)


def test_each_finds_what_it_is_for(models: list[BlindModel]) -> None:
    plausibility, grammar = models
    sense, nonsense = plausibility.scores(
        ["Four older men are sitting on a wooden bench.", "Four wooden men are sitting on an older bench."]
    )
    assert sense > nonsense + 0.2
    english, none = grammar.scores(["A dog is sitting on the grass.", "A dog sitting is the on grass."])
    assert english > none + 0.2


@pytest.mark.slow
@pytest.mark.process
def test_the_first_refinement_publishes_them_without_a_word_of_it(tmp_path: Path) -> None:
    pair = Pair(id="1", kind="negate", filename="1.jpg", caption="A dog.", negative_caption="No dog.")
    write_pairs(tmp_path / "pairs.jsonl", [pair])
    arguments = ("curate", "refine", str(tmp_path / "pairs.jsonl"), "--output", str(tmp_path / "out"))
    command = [sys.executable, "-m", "services.cli.main", *arguments, "--cache", str(tmp_path / "scores")]
    environment = {**os.environ, "FOVEA_STORE_URL": (tmp_path / "store").as_uri(), "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "published" not in done.stdout + done.stderr and "0 of 1 pairs are in" in done.stdout


@pytest.mark.slow
def test_neither_can_tell_the_true_captions_of_sugarcrepe_after_its_refinement(models: list[BlindModel]) -> None:
    pairs = published_pairs(published("sugar-crepe/unrefined"))
    kinds = [pair.kind for pair in pairs]
    scored = score_pairs(pairs, models)
    kept = refine_pairs(kinds, np.stack([one.gaps for one in scored], axis=1), seed=0)
    before = blind_results(kinds, scored, np.arange(len(pairs)))
    after = blind_results(kinds, scored, kept)
    hackable = Counter(one.attacker for one in before if one.interval[0] > 0.5)
    assert hackable["blind-plausibility"] >= 4
    for one in after:
        low, high = one.interval
        assert one.num_right == one.num_wrong > 0 and low < 0.5 < high
    assert 5_000 < len(kept) < len(pairs)
