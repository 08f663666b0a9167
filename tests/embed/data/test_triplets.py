"""Conversations in LLaVA's format become triplets, whose epochs visit every image once."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.embed.data.triplets import LlavaData, llava_triplets

CONVERSATIONS: list[dict[str, Any]] = [
    {
        "id": "1",
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat color is it?"},
            {"from": "gpt", "value": "It is red."},
            {"from": "human", "value": "And its shape?"},
            {"from": "gpt", "value": "A circle."},
        ],
    },
    {"id": "text-only", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    {
        "id": "2",
        "image": "b.png",
        "conversations": [{"from": "human", "value": "Where?\n<image>"}, {"from": "gpt", "value": "Left."}],
    },
]


def test_turns_of_a_conversation_become_rows_of_one_image() -> None:
    images, triplets = llava_triplets([CONVERSATIONS[0], CONVERSATIONS[2]])
    assert images == ["a.png", "b.png"]
    assert triplets.image_index.tolist() == [0, 0, 1]
    assert triplets.instructions == ["What color is it?", "And its shape?", "Where?"]
    assert triplets.answers == ["It is red.", "A circle.", "Left."]


def test_an_answer_without_a_question_is_refused_by_the_records_id() -> None:
    with pytest.raises(ValueError, match="'7'"):
        llava_triplets([{"id": "7", "image": "a.png", "conversations": [{"from": "gpt", "value": "Yes."}]}])


def test_llava_epochs_visit_every_image_once_in_another_order(tmp_path: Path) -> None:
    records = [{**CONVERSATIONS[0], "image": f"{i}.png"} for i in range(10)]
    (tmp_path / "data.json").write_text(json.dumps([*records, CONVERSATIONS[1]]))
    data = LlavaData(tmp_path / "data.json", tmp_path)
    seen = [file.name for step in range(5) for file in data.batch(0, step, 4)[0]]
    first, second = seen[:10], seen[10:]
    assert sorted(first) == sorted(second) == sorted(f"{i}.png" for i in range(10))
    assert first != second


def test_a_file_that_is_no_list_of_conversations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"image": "a.png"}')
    with pytest.raises(ValueError, match="a list of turns is needed"):
        LlavaData(tmp_path / "data.json", tmp_path)
