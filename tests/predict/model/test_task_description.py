"""task.json: what it may say, and texts that a tokenizer is to read as texts."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.core.refusals import Refused
from services.predict.model.task_description import TASK_FILE, PlainValues, TaskDescription
from services.predict.tasks import CQA, ESNLI, NO_PREFIXES, RELEASED_PREFIXES, TASKS, Task
from tests.predict.tiny_students import EOS, tiny_tokenizer


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_task_comes_back_from_a_folder_as_it_was(task: Task, tmp_path: Path) -> None:
    written = TaskDescription.of(task, RELEASED_PREFIXES, has_rationales=True, max_target_tokens=48)
    written.write(tmp_path)
    read = TaskDescription.read(tmp_path)
    assert read == written
    assert read.to_task() == task
    assert (read.label_prefix, read.rationale_prefix) == ("predict: ", "explain: ")
    assert (read.max_input_tokens, read.max_target_tokens) == (1024, 48)


def test_a_student_without_rationales_has_no_prefix_for_them() -> None:
    description = TaskDescription.of(ESNLI, NO_PREFIXES, has_rationales=False)
    assert description.label_prefix == ""
    assert description.rationale_prefix is None


GOOD = TaskDescription.of(CQA, RELEASED_PREFIXES, has_rationales=True).model_dump(mode="json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fields": []}, "fields"),
        ({"fields": ["question", "question"]}, "fields must be unique"),
        ({"choices": "options"}, "'options', which is not a field"),
        ({"labels": ["a", "b"]}, "not both"),
        ({"choices": None, "labels": []}, "labels"),
        ({"choices": None, "labels": ["a", "a"]}, "labels must be unique"),
        ({"metric": "bleu"}, "metric"),
        ({"max_target_tokens": 0}, "max_target_tokens"),
        ({"lables": []}, "lables"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused_by_what_is_wrong_with_it(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / TASK_FILE).write_text(json.dumps(GOOD | changes))
    with pytest.raises(Refused, match=message):
        TaskDescription.read(tmp_path)


def test_a_folder_without_a_task_or_with_half_of_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="missing"):
        TaskDescription.read(tmp_path)
    (tmp_path / TASK_FILE).write_text('{"task":')
    with pytest.raises(Refused, match="Invalid JSON"):
        TaskDescription.read(tmp_path)


@pytest.mark.parametrize(
    "text", ["</s>", "a</s>b", "<pad><extra_id_0>", "<</s>/s>", "<pa<pad>d>", "</s></s>", "<unk>", "</s", "a < /s> b"]
)
def test_a_text_that_spells_control_tokens_is_read_without_any(text: str) -> None:
    tokenizer = tiny_tokenizer()
    values = PlainValues(tokenizer)
    ids = tokenizer(values.make_plain({"a": text})["a"]).input_ids
    assert values.num_controls(ids) == 1
    assert ids[-1] == EOS
    assert tokenizer.unk_token_id not in ids


def test_an_ordinary_text_stays_as_it_is() -> None:
    texts = {name: name for name in ("", "a < b > c", "<p>word</p>", "s>", "日本 🌍")}
    assert PlainValues(tiny_tokenizer()).make_plain(texts) == texts


def test_what_is_no_text_is_left_for_the_task_to_refuse() -> None:
    values: dict[str, Any] = {"a": "</s>", "b": ["</s>", 3], "c": 3, "d": None}
    assert PlainValues(tiny_tokenizer()).make_plain(values) == {"a": "< /s>", "b": ["< /s>", 3], "c": 3, "d": None}
