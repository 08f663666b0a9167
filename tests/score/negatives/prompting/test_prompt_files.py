"""Prompts as files that people read and change."""

import shutil
from pathlib import Path

import pytest

from services.core.text_files import BadFile
from services.score.negatives.prompting.checks import FORM_OF, WRITTEN_KINDS
from services.score.negatives.prompting.prompt_files import OWN_PROMPTS, STEPS_OF, load_prompts
from services.score.negatives.prompting.writer import concepts_of, labelled, one_text


def test_every_type_has_at_least_seven_demonstrations_and_one_without_anything_to_change() -> None:
    for kind, file in load_prompts().items():
        assert len(file.demonstrations) >= 7, kind
        assert any(not one.concepts for one in file.demonstrations), kind


def test_what_demonstrations_answer_is_read_as_it_was_meant() -> None:
    for kind, file in load_prompts().items():
        for one in file.demonstrations:
            for step in STEPS_OF[FORM_OF[kind]]:
                answer = one.answer(step)
                if step in ("locate", "one_step"):
                    assert tuple(concepts_of(answer)) == one.concepts
                if one.concepts and step in ("compose", "one_step", "swap"):
                    assert one_text(answer, "new sentence") == one.new_sentence
                if one.concepts and step in ("propose", "one_step"):
                    assert labelled(answer)["new"] == one.new


def test_a_chat_is_the_instructions_the_demonstrations_and_the_sentence() -> None:
    file = load_prompts()["replace_obj"]
    messages = file.messages("compose", "A cat sits.", "cat", "dog")
    assert messages[0] == {"role": "system", "content": file.instructions["compose"].strip()}
    assert messages[-1] == {"role": "user", "content": "Sentence: A cat sits.\nChosen: cat\nNew: dog"}
    shown = [one for one in file.demonstrations if one.concepts]
    assert [turn["content"] for turn in messages[2:-1:2]] == [f"New sentence: {one.new_sentence}" for one in shown]


def test_a_folder_may_replace_the_prompts_of_some_types(tmp_path: Path) -> None:
    own = (OWN_PROMPTS / "swap_obj.toml").read_text().replace("You get a sentence", "You are given a sentence")
    (tmp_path / "swap_obj.toml").write_text(own)
    loaded, built_in = load_prompts(tmp_path), load_prompts()
    assert loaded["swap_obj"].instructions["swap"].strip().startswith("You are given")
    assert {kind: loaded[kind] for kind in WRITTEN_KINDS[:3]} == {kind: built_in[kind] for kind in WRITTEN_KINDS[:3]}


def test_the_printed_prompts_ask_as_figure_4_3_does_and_their_answers_are_read() -> None:
    printed = load_prompts(Path("printed"))
    messages = printed["replace_obj"].messages("one_step", "A dog sleeps.")
    assert messages[0]["content"].startswith(
        "Given an input sentence describing a scene, your task is to:\n\n1. Locate"
    )
    assert messages[1]["content"] == "Original sentence: A man is in a kitchen making pizzas."
    assert messages[2]["content"].splitlines() == [
        *('Nouns: ["man", "kitchen", "pizzas"]', "Selected noun: man", "New noun: woman"),
        "New sentence: A woman is in a kitchen making pizzas.",
    ]
    assert messages[-1]["content"] == "Original sentence: A dog sleeps."
    for kind in ("replace_obj", "replace_att", "replace_rel"):
        file = printed[kind]
        for place, one in enumerate(file.demonstrations):
            answer = file.messages("one_step", "x")[2 + 2 * place]["content"]
            assert tuple(concepts_of(answer)) == one.concepts
            found = labelled(answer)
            assert (found["chosen"], found["new"]) == (one.chosen, one.new)
            assert one_text(answer, "new sentence") == one.new_sentence
    assert printed["swap_obj"] == load_prompts()["swap_obj"]


@pytest.mark.parametrize(
    ("name", "old", "new", "complaint"),
    [
        (
            "replace_obj",
            'new_sentence = "A waiter carries two plates of salad',
            'new_sentence = "A cook carries two',
            "1",
        ),
        ("replace_obj", 'new = "salad"\n', "", "demonstrations.1: new and concepts go together"),
        ("swap_obj", "[instructions]\nswap", "[instructions]\nlocate", "instructions.swap is missing"),
        ("add_obj", "chosen", "choosen", "demonstrations.0.choosen: Extra inputs"),
        ("add_obj", "[instructions]", "[instructions", "add_obj.toml: "),
    ],
)
def test_prompts_that_cant_be_used_are_told_with_file_and_place(
    tmp_path: Path, name: str, old: str, new: str, complaint: str
) -> None:
    text = (OWN_PROMPTS / f"{name}.toml").read_text()
    assert old in text
    (tmp_path / f"{name}.toml").write_text(text.replace(old, new))
    with pytest.raises(BadFile, match=complaint) as refused:
        load_prompts(tmp_path)
    assert f"{name}.toml" in str(refused.value)


def test_a_file_that_belongs_to_no_type_is_refused(tmp_path: Path) -> None:
    shutil.copy(OWN_PROMPTS / "add_obj.toml", tmp_path / "add_object.toml")
    with pytest.raises(BadFile, match=r"add_object\.toml belongs to no type; there are replace_obj"):
        load_prompts(tmp_path)
    with pytest.raises(BadFile, match="is not a folder"):
        load_prompts(tmp_path / "missing")
