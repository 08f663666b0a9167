"""Prompts of teachers, and the parsing of their outputs."""

import re
from collections import Counter
from pathlib import Path

import pytest

from services.core.text_files import BadFile
from services.predict.data.teacher_outputs import Dialect, parse_output, read_output
from services.predict.extraction.command import PROMPT_FILES, load_prompts
from services.predict.tasks import ANLI1, ASDIV, CQA, ESNLI, SVAMP, TASKS, FieldValue, Task

INFERENCE: dict[str, FieldValue] = {"premise": "It rains {here}.", "hypothesis": "It is wet."}
QUESTION: dict[str, FieldValue] = {"question": "What is wet?", "choices": ["the sun", "rain", "a {brace}"]}
PROBLEM: dict[str, FieldValue] = {"body": "Ann has 2 pens.", "question": "How many?"}
VALUES = {"esnli": INFERENCE, "anli1": INFERENCE, "cqa": QUESTION, "svamp": PROBLEM, "asdiv": PROBLEM}

SMALL = """
question: "Q: {input}\\nA:"
answer: "{rationale} So the answer is {label}."
stop: ["\\n\\nQ:"]
few_shot: Go on like this.
zero_shot: Say why, then the answer.
demonstrations:
  - question: Where do fish swim?
    choices: [air, sea]
    rationale: Fish need water.
    label: sea
"""


def small(folder: Path, text: str = SMALL) -> Path:
    path = folder / "prompts.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_every_task_has_about_ten_demonstrations(task: Task) -> None:
    prompts = load_prompts(task)
    assert 9 <= len(prompts.file.demonstrations) <= 12
    assert PROMPT_FILES.keys() == TASKS.keys()


@pytest.mark.parametrize("dialect", ["palm", "gpt"])
@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_the_released_rules_read_each_demonstration_as_it_was_meant(task: Task, dialect: Dialect) -> None:
    prompts = load_prompts(task)
    given = VALUES[task.name]
    for number, demonstration in enumerate(prompts.file.demonstrations):
        shown = prompts.messages(given)[2 * number + 2]
        assert shown["role"] == "assistant"
        # a teacher that goes on with a question of its own is cut off there
        own_question = prompts.messages(given)[-1]["content"]
        for text in (shown["content"], f"{shown['content']}\n\n{own_question}"):
            parsed = parse_output(task.name, text, dialect)
            assert (parsed.rationale, parsed.label) == (demonstration["rationale"], demonstration["label"])
            assert parsed.problem is None


def test_demonstrations_are_balanced_over_the_labels() -> None:
    for task in (ESNLI, ANLI1):
        labels = Counter(one["label"] for one in load_prompts(task).file.demonstrations)
        assert labels == dict.fromkeys(task.labels or (), 3)
    places = Counter(list(one["choices"]).index(str(one["label"])) for one in load_prompts(CQA).file.demonstrations)
    assert places == dict.fromkeys(range(5), 2)
    equations = "".join(str(one["label"]) for one in load_prompts(SVAMP).file.demonstrations)
    assert [equations.count(operator) for operator in "+-*/"] == [3, 3, 3, 3]


def test_no_two_labels_of_one_kind_stand_together_too_long() -> None:
    for task in (ESNLI, ANLI1):
        labels = [str(one["label"]) for one in load_prompts(task).file.demonstrations]
        assert all(len(set(labels[start : start + 3])) > 1 for start in range(len(labels) - 2))


def test_demonstrated_equations_have_the_value_that_their_reasoning_comes_to() -> None:
    for one in load_prompts(SVAMP).file.demonstrations:
        last = re.findall(r"= (\d+)", str(one["rationale"]))[-1]
        assert SVAMP.value(str(one["label"])) == int(last)
        # and it is calculated with the numbers of the problem
        numbers = set(re.findall(r"\d+", f"{one['body']} {one['question']}"))
        assert set(re.findall(r"\d+", str(one["label"]))) <= numbers


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_completion_is_the_demonstrations_and_the_input_without_its_answer(task: Task) -> None:
    prompts = load_prompts(task)
    parts = prompts.completion(VALUES[task.name]).split("\n\n")
    assert len(parts) == len(prompts.file.demonstrations) + 1
    turns = [turn["content"] for turn in prompts.messages(VALUES[task.name])[1:]]
    assert parts[:-1] == [f"{question} {answer}" for question, answer in zip(turns[::2], turns[1::2], strict=False)]
    assert parts[-1] == turns[-1]
    assert parts[-1].endswith({"esnli": "\nReasonings:", "anli1": "\nAnswer:"}.get(task.name, "\nA:"))


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_an_output_ends_where_the_next_question_would_begin(task: Task) -> None:
    prompts = load_prompts(task)
    (stop,) = prompts.file.stop
    asked = prompts.completion(VALUES[task.name])
    assert asked.count(stop) == len(prompts.file.demonstrations)


def test_prompts_are_laid_out_to_the_character(tmp_path: Path) -> None:
    prompts = load_prompts(CQA, small(tmp_path))
    asked = "Q: What is wet?\nAnswer Choices:\n(a) the sun\n(b) rain\n(c) a {brace}\nA:"
    shown = "Q: Where do fish swim?\nAnswer Choices:\n(a) air\n(b) sea\nA:"
    answer = "Fish need water. So the answer is (b) sea."
    assert prompts.completion(QUESTION) == f"{shown} {answer}\n\n{asked}"
    assert prompts.messages(QUESTION) == [
        {"role": "system", "content": "Go on like this."},
        {"role": "user", "content": shown},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": asked},
    ]
    elicited = f"Say why, then the answer.\n\n{asked}"
    zero_shot = load_prompts(CQA, small(tmp_path), is_zero_shot=True)
    assert zero_shot.completion(QUESTION) == elicited
    assert zero_shot.messages(QUESTION) == [{"role": "user", "content": elicited}]


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_zero_shot_prompts_show_a_form_that_is_read(task: Task) -> None:
    """The last line of what they say is the form itself."""
    prompts = load_prompts(task, is_zero_shot=True)
    form = prompts.file.zero_shot.strip().splitlines()[-1]
    values = {**QUESTION, "choices": ["the words of choice a", "b"]} if task is CQA else VALUES[task.name]
    assert read_output(task, values, f"Because it is so.\n{form}").problem is None


def test_a_label_must_be_a_choice_of_its_own_question_or_an_equation_with_a_value() -> None:
    rain = read_output(CQA, QUESTION, " It falls. So the answer is (b) rain.")
    assert (rain.rationale, rain.label, rain.problem) == ("It falls.", "rain", None)
    snow = read_output(CQA, QUESTION, "It falls. So the answer is (b) snow.")
    assert (snow.rationale, snow.label, snow.problem) == ("It falls.", "snow", "unknown_label")
    assert read_output(CQA, QUESTION, "It falls.").problem == "no_answer"
    two = read_output(SVAMP, PROBLEM, "2 are 2. The answer is (2).")
    assert (two.rationale, two.label, two.problem) == ("2 are 2.", "(2)", None)
    assert read_output(SVAMP, PROBLEM, "None. The answer is (2 / 0).").problem == "no_value"
    assert read_output(ASDIV, PROBLEM, "Ann. The answer is (two).").problem == "no_value"
    assert read_output(ESNLI, INFERENCE, "So.\nAnswer: perhaps").problem == "unknown_label"
    assert read_output(ESNLI, INFERENCE, "").problem == "no_answer"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("label: sea", "label: lake", "demonstration 1: 'lake' is not one of air, sea"),
        ("label: sea", "note: sea", "demonstration 1 has no label"),
        ("    label: sea\n", "", "demonstration 1 has no label"),
        ("label: sea", "label: 3", "label"),
        ("choices: [air, sea]", "choices: [sea]", "demonstration 1: choices must be"),
        ("question: Where", "riddle: Where", "demonstration 1: cqa has no field 'riddle'"),
        ("So the answer is", "Thus", "demonstration 1: it is parsed as"),
        ("Fish need water.", "Fish? So the answer is easy.", "demonstration 1: it is parsed as"),
        ("Q: {input}", "Q: {problem}", "braces"),
        ("Q: {input}", "Q: {input", "braces"),
        ("stop:", "stops:", "there is no 'stops'; the nearest is 'stop'"),
        ("few_shot: Go on like this.", "few_shot: [", "prompts.yaml"),
        ("{rationale} So", "So", "demonstration 1: it is parsed as"),
    ],
)
def test_prompts_that_would_mislead_are_refused_with_what_is_wrong(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert SMALL.count(old) == 1
    path = small(tmp_path, SMALL.replace(old, new))
    with pytest.raises(BadFile, match=re.escape(complaint)) as refused:
        load_prompts(CQA, path)
    assert str(refused.value).startswith(f"{path}")


def test_the_guides_file_of_prompts_is_one(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "distill.md").read_text()
    (shown,) = re.findall(r"```yaml\n(question: .*?)```", guide, re.DOTALL)
    prompts = load_prompts(CQA, small(tmp_path, shown))
    assert prompts.completion(QUESTION).count("So the answer is (b) sea.") == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=re.escape(f"{tmp_path / 'none.yaml'}")):
        load_prompts(CQA, tmp_path / "none.yaml")


def test_comments_change_no_digest_and_every_word_does(tmp_path: Path) -> None:
    digest = load_prompts(CQA, small(tmp_path)).file.digest()
    assert load_prompts(CQA, small(tmp_path, f"# as before\n{SMALL}\n")).file.digest() == digest
    changed = SMALL.replace("Fish need water.", "Fish like water.")
    assert load_prompts(CQA, small(tmp_path, changed)).file.digest() != digest
