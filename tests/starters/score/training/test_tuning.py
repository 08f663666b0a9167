"""The starter is tuned on scenes and on pictures with claims."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.score.negatives.annotation import TextBlobAnnotator
from services.score.negatives.hard_negatives import KINDS, HardNegatives
from services.score.training.batches import TuningData
from starters.score.data.claimed_pictures import ClaimedPictures, PictureBatch, Pictures
from starters.score.training.tuning import ClaimedSource, SceneLexicon, SceneRecipe, SceneSource
from tests.score.tiny import IMAGE_SIZE, tiny_clip


def test_claims_are_rivals_only_of_pictures_that_they_are_false_of() -> None:
    clip = tiny_clip()
    claims = ClaimedPictures(clip.tokenizer, Pictures(2, 6, IMAGE_SIZE), 6, close=0.5)
    made = HardNegatives(TextBlobAnnotator(), SceneLexicon())
    source = ClaimedSource(SceneSource(IMAGE_SIZE), claims, KINDS, excludes_true=True)
    data = TuningData(source, clip.tokenizer, made, KINDS, 3, 10)
    batch = data(1)
    assert batch.rivals is not None
    assert isinstance(batch.facts, PictureBatch)
    assert batch.rivals[:4, :4].all()
    assert not batch.rivals[:4, 4:].any()
    assert not batch.rivals[4:, :4].any()
    assert torch.equal(batch.rivals[4:, 4:], ~claims.captioned(1).is_true)
    assert torch.equal(batch.facts.pixels, batch.images[4:])
    assert replace(data, source=replace(source, excludes_true=False))(1).rivals is None


def test_negatives_of_generated_captions_use_their_words_alone() -> None:
    lexicon = SceneLexicon()
    assert {word for word, _ in lexicon.candidates("red", "JJ")} >= {"navy", "lime", "cyan"}
    assert {word for word, _ in lexicon.candidates("crosses", "NNS")} >= {"circles", "stars"}
    assert {word for word, _ in lexicon.candidates("circles", "NNS")} >= {"crosses"}
    assert lexicon.candidates("two", "CD") == [("three", 1.0)]
    assert not lexicon.candidates("maroon", "JJ")


def test_every_recipe_of_the_starter_can_be_read() -> None:
    assert SceneRecipe.names() == ["scenes", "scenes-closer", "scenes-seeing"]
    assert all(SceneRecipe.read(name).steps for name in SceneRecipe.names())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("close = 1.5", "close: Input should be less"),
        ("named = -1.0", "named"),
        ('method = "negclip"\nexcludes_true = true', "excludes_true is not for it"),
    ],
)
def test_what_makes_no_training_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        SceneRecipe.read(str(tmp_path / "bad.toml"))
