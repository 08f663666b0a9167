"""Tokens that an answer must not contain: equations name only numbers of their text."""

from pathlib import Path

import pytest

from services.nn.devices import DeviceOptions
from services.predict.engine import PredictEngine
from services.predict.number_slots import SlotTokens
from services.predict.training.initialisation import build_tokenizer
from services.predict.written_numbers import RESULTS, SLOTS

STARTER = Path(__file__).parents[2] / "services" / "predict" / "starter" / "word-problems"


@pytest.fixture(scope="module")
def tokenizer():  # type: ignore[no-untyped-def]
    texts = [f"She had {slot} figs and {result} more." for slot in SLOTS[:4] for result in RESULTS[:2]]
    return build_tokenizer(texts * 3, 400)


def signs_of(tokenizer, tokens) -> str:  # type: ignore[no-untyped-def]
    return "".join(sorted(set("".join(tokenizer.decode([token]) for token in tokens)) & set(SLOTS + RESULTS)))


def test_signs_without_a_number_are_forbidden_and_results_only_in_labels(tokenizer) -> None:  # type: ignore[no-untyped-def]
    ids = tokenizer("He had ② figs and ate ①.").input_ids
    slots = SlotTokens(tokenizer)
    assert signs_of(tokenizer, slots.forbidden(ids, is_label=True)) == "③④❶❷"
    assert signs_of(tokenizer, slots.forbidden(ids, is_label=False)) == "③④"
    assert not set(ids) & set(slots.forbidden(ids, is_label=True))


def test_bytes_of_which_a_sign_could_be_made_are_forbidden_too(tokenizer) -> None:  # type: ignore[no-untyped-def]
    ids = tokenizer("He had ① figs.").input_ids
    parts = tokenizer(SLOTS[19]).input_ids  # a sign that the vocabulary writes as bytes
    assert set(parts[1:-1]) & set(SlotTokens(tokenizer).forbidden(ids, is_label=True))


def test_a_text_without_signs_forbids_nothing(tokenizer) -> None:  # type: ignore[no-untyped-def]
    assert SlotTokens(tokenizer).forbidden(tokenizer("He had figs.").input_ids, is_label=True) == ()


@pytest.mark.parametrize(
    ("body", "question"),
    [
        ("I had £20 and spent half of it.", "How much is left?"),
        ("She had 12 apples.", "How many did they have in 3 days, 4 weeks or 5 years?"),
        ("We have a third of 60 and double of that.", "How much is that?"),
        ("Nobody counted.", "How many were there?"),
        ("There are 7.", "And the others, less the first ones, times the last ones?"),
    ],
)
def test_an_equation_never_has_a_gap(body: str, question: str) -> None:
    engine = PredictEngine.load(STARTER, DeviceOptions(device="cpu", dtype="float32"))
    values = {"body": body, "question": question}
    (alone,) = engine.run_batch([engine.prepare(values)])
    with_reason, again = engine.run_batch([engine.prepare(values, rationale=True), engine.prepare(values)])
    assert alone.label == with_reason.label == again.label
    if any(character.isdigit() for character in body + question):
        assert "?" not in alone.label
