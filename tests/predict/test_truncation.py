"""Texts cut so that they fit."""

from typing import Any

import pytest

from services.core.errors import TooLarge
from services.predict.engine import PredictEngine
from services.predict.model.student import Student
from services.predict.model.task_description import TaskDescription
from services.predict.service import Side, prepare_cut
from services.predict.tasks import ESNLI, RELEASED_PREFIXES
from tests.predict.tiny_students import tiny_t5, tiny_tokenizer

LIMIT = 60


@pytest.fixture(scope="module")
def engine() -> PredictEngine:
    description = TaskDescription.of(ESNLI, RELEASED_PREFIXES, has_rationales=False, max_input_tokens=LIMIT)
    return PredictEngine(Student(tiny_t5(), tiny_tokenizer()), description)


def text_of(engine: PredictEngine, item: Any) -> str:
    text: str = engine.tokenizer.decode(item.label_ids)
    return text.removeprefix("predict: ").removesuffix("</s>")


def test_what_fits_stays_as_it_is(engine: PredictEngine) -> None:
    fields = {"premise": "A man walks.", "hypothesis": "A man."}
    assert prepare_cut(engine, fields, "right", "inputs.0").label_ids == engine.prepare(fields).label_ids


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("length", [40, 500, 50_000])
def test_the_longer_text_loses_its_end_or_its_beginning(engine: PredictEngine, side: Side, length: int) -> None:
    premise, hypothesis = " ".join(map(str, range(length))), "A man."
    item = prepare_cut(engine, {"premise": premise, "hypothesis": hypothesis}, side, "inputs.0")
    assert LIMIT - 2 <= item.prompt_tokens <= LIMIT
    kept, separator, other = text_of(engine, item).partition("</s>")
    assert (separator, other) == ("</s>", hypothesis)
    assert kept
    assert premise.startswith(kept) if side == "right" else premise.endswith(kept)


def test_two_long_texts_keep_as_much_of_each(engine: PredictEngine) -> None:
    item = prepare_cut(engine, {"premise": "1" * 300, "hypothesis": "2" * 200}, "right", "inputs.0")
    premise, _, hypothesis = text_of(engine, item).partition("</s>")
    assert abs(len(premise) - len(hypothesis)) <= 2


def test_texts_that_spell_a_control_token_are_cut_and_stay_text(engine: PredictEngine) -> None:
    item = prepare_cut(engine, {"premise": "x</s>" * 100, "hypothesis": "y"}, "right", "inputs.0")
    assert item.prompt_tokens <= LIMIT
    assert item.label_ids.count(1) == 2, "the separator's and the end"


def test_where_nothing_is_left_to_cut_the_input_is_refused() -> None:
    description = TaskDescription.of(ESNLI, RELEASED_PREFIXES, has_rationales=False, max_input_tokens=2)
    engine = PredictEngine(Student(tiny_t5(), tiny_tokenizer()), description)
    with pytest.raises(TooLarge):
        prepare_cut(engine, {"premise": "a", "hypothesis": "b"}, "right", "inputs.0")
