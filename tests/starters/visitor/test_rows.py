"""The rows of the suite ask what they say, the same for the same seed, and can be answered."""

from functools import cache
from random import Random
from statistics import fmean

import pytest

from starters.visitor.questions import Asked, Question, read_response
from starters.visitor.rows import Row, all_rows
from tests.starters.visitor.answerers import Answerer, guessing, perfect

COUNT = 8
ROWS = {f"{row.service}: {row.key}": row for row in all_rows()}
GUESSES = 60
# galleries take long to draw
BY_SERVICE = [pytest.param("embed", marks=pytest.mark.slow), "score", "generate", "predict"]


PROBES = {probe.name: probe for row in ROWS.values() for probe in row.probes}


@cache
def questions_of_probe(name: str) -> list[Question]:
    return PROBES[name].questions(0, COUNT)


def questions_of(key: str) -> tuple[Question, ...]:
    return tuple(question for probe in ROWS[key].probes for question in questions_of_probe(probe.name))


def measured(row: Row, questions: tuple[Question, ...], answerer: Answerer) -> float | None:
    return row.measure([Asked(one, read_response(one, answerer(one))) for one in questions])


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(ROWS) == len(all_rows())


@pytest.mark.parametrize("service", BY_SERVICE)
def test_an_answerer_that_is_always_right_gets_100_in_every_row_and_makes_no_errors(service: str) -> None:
    for key, row in ROWS.items():
        if row.service == service:
            value = measured(row, questions_of(key), perfect)
            assert value == pytest.approx(0.0 if row.is_error else 100.0), key


@pytest.mark.parametrize("service", BY_SERVICE)
def test_an_answerer_that_guesses_gets_what_every_row_says_of_a_guess(service: str) -> None:
    for key, row in ROWS.items():
        questions = questions_of(key)
        chance = row.chance(questions)
        if row.service == service and chance is not None:
            random = Random(key)
            # galleries are large, so a few guesses are enough
            times = 12 if service == "embed" else GUESSES
            values = [measured(row, questions, guessing(random)) for _ in range(times)]
            assert fmean(value for value in values if value is not None) == pytest.approx(chance, abs=12), key


@pytest.mark.slow
def test_equal_seeds_ask_the_same_and_other_seeds_something_else() -> None:
    for name, probe in PROBES.items():
        assert probe.questions(0, COUNT) == questions_of_probe(name), name
        assert (probe.questions(1, COUNT) == questions_of_probe(name)) == probe.is_fixed, name


@pytest.mark.slow
def test_every_row_of_a_probe_that_draws_its_questions_has_as_many_as_asked_for() -> None:
    for key, row in ROWS.items():
        for probe in row.probes:
            if not probe.is_fixed:
                questions = questions_of_probe(probe.name)
                sizes = [len(one.body["images"]) if one.form == "gallery" else 1 for one in questions]
                assert sum(sizes) == (2 * COUNT if row.service == "embed" else COUNT), key


@pytest.mark.slow
def test_right_captions_and_documents_stand_at_every_place_equally_often() -> None:
    for key, row in ROWS.items():
        places = [one.right if one.form == "caption" else one.document for one in questions_of(key)]
        if row.service == "score" and row.chance(questions_of(key)):
            assert places.count(0) == places.count(1), key
        if "10 documents" in key:
            assert places == list(range(COUNT)), key


def test_aims_are_those_that_were_set() -> None:
    aims = {key: row.aim for key, row in ROWS.items()}
    for key, aim in aims.items():
        if key.startswith("embed: asked for"):
            assert aim == 90, key
        if key.startswith("embed: drawn otherwise") and "mixed" not in key and "eight" not in key:
            assert aim == 85, key
        if key.startswith("score") and "calibration" not in key:
            hard = any(word in key for word in ("no …", "without", "three", "to five"))
            assert aim == (75 if hard else 85), key
        if key.startswith("generate: answers"):
            assert aim == 80, key
        if key.startswith("generate: refusals"):
            assert aim == 90, key
    assert aims["generate: right document: of 3, by /v1/rerank"] == 90
    assert aims["generate: right document: of 10, by /v1/rerank"] == 80
    assert aims["generate: false refusals: of answerable questions"] == 5
    assert aims["predict: everyday word problems: one step"] == aims["predict: inferences: all"] == 80


@pytest.mark.parametrize("about", ["color", "shape"])
def test_either_attribute_is_asked_for_in_many_wordings(about: str) -> None:
    wordings = [row.name for row in ROWS.values() if row.group == f"asked for the {about}"]
    assert len(wordings) >= 10
    usual = {
        "color": ("What is the colour of the object in the image?", "colors"),
        "shape": ("shapes", "form", "geometry"),
    }
    assert set(usual[about]) <= set(wordings)
