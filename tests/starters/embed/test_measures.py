"""The measurements in a manifest tell what an embedder sees under a wording."""

import pytest

from starters.embed.measures import evaluate_wordings
from tests.embed.evaluation.test_colorshape import ByColor


def test_an_embedder_that_reads_no_condition_is_unchanged_by_any_wording() -> None:
    measured = evaluate_wordings(ByColor(), num_per_class=2)
    assert measured["unrelated_cosine"] == pytest.approx(1)
    assert measured["map_color_worded"] == pytest.approx(measured["map_color_worded_anew"])
    assert measured["map_color_worded"] > 60 > measured["map_shape_worded"]
    assert measured["wider_map_color"] > measured["wider_map_shape"]
