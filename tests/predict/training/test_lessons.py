"""Batches hold the examples that a step is to learn from, whichever process runs which part of it."""

from dataclasses import replace

import pytest

from services.predict.data.rows import Row, TeacherOutput
from services.predict.distillation import IGNORED
from services.predict.training.lessons import Lessons, tokenised
from tests.predict.tiny_students import EOS, tiny_tokenizer
from tests.predict.toy_lessons import examples, toy_recipe, toy_t5


def test_examples_without_a_rationale_teach_their_labels_alone() -> None:
    tokenizer, model = tiny_tokenizer(), toy_t5()
    some = [replace(one, output=one.output if place % 2 else None) for place, one in enumerate(examples(8, 0))]
    batch = Lessons(tokenizer, model.config, some, toy_recipe()).batch(0)
    ((labels, rationales),) = batch.parts
    assert rationales is not None
    assert len(labels.labels) == 8
    assert len(rationales.labels) == 4
    assert batch.num_rationale_tokens == (rationales.labels != IGNORED).sum() < batch.num_label_tokens * 8


def test_parts_of_a_batch_with_rationales_all_ask_for_some() -> None:
    some = [Row("milk", "neutral", TeacherOutput("because", "because", "neutral")), *examples(7, 0, explained=0.0)]
    batch = Lessons(tiny_tokenizer(), toy_t5().config, some, toy_recipe(micro_batch_size=2)).batch(0)
    counts = [int((rationales.labels != IGNORED).sum()) for _, rationales in batch.parts if rationales is not None]
    assert len(counts) == 4
    assert sorted(counts) == [0, 0, 0, batch.num_rationale_tokens]


def test_an_epoch_takes_every_example_once_and_processes_share_it_out() -> None:
    some = [Row(f"text {number}", str(number)) for number in range(24)]
    tokenizer = tiny_tokenizer()

    def read(step: int, process: int = 0, num_processes: int = 1) -> list[str]:
        lessons = Lessons(tokenizer, toy_t5().config, some, toy_recipe(method="standard"))
        return [
            str(tokenizer.decode([id_ for id_ in row if id_ != IGNORED], skip_special_tokens=True))
            for labels, _ in lessons.batch(step, process, num_processes).parts
            for row in labels.labels.tolist()
        ]

    epochs = [[read(step) for step in range(first, first + 3)] for first in (0, 3)]
    for epoch in epochs:
        assert sorted(label for batch in epoch for label in batch) == sorted(one.label for one in some)
    assert epochs[0] != epochs[1]
    assert sorted(read(4, 0, 2) + read(4, 1, 2)) == sorted(read(4))
    assert len(read(4, 1, 2)) == 4


def test_texts_that_were_forgotten_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches() -> list[list[list[int]]]:
        lessons = Lessons(tiny_tokenizer(), toy_t5().config, examples(24, 0), toy_recipe())
        return [lessons.batch(step).parts[0][0].labels.tolist() for step in range(6)]

    remembered = batches()
    monkeypatch.setattr("services.predict.training.lessons.MAX_REMEMBERED", 8)
    assert batches() == remembered


def test_what_is_too_long_is_cut_ahead_of_its_end() -> None:
    tokenizer = tiny_tokenizer()
    (whole,) = tokenised(tokenizer, ["a man in the park"], 64)
    (cut,) = tokenised(tokenizer, ["a man in the park"], 4)
    assert cut == (*whole[:3], EOS)
