"""A run reads the data that it names, starts from the model that it names, and is made once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.core.text_files import BadFile
from services.jobs.inquiry import OutputError
from services.nn.devices import DeviceOptions
from services.predict.data.rows import Row, TeachingData
from services.predict.engine import PredictEngine
from services.predict.training.sources import DataSource, Source
from services.predict.training.train import RESULT, StudentRun, run_student
from tests.predict.tiny_students import save_student
from tests.predict.toy_data_sets import NUM_TEST, NUM_TRAIN, write_asdiv, write_esnli, write_rationales, write_svamp
from tests.predict.toy_lessons import toy_recipe

CPU = DeviceOptions("cpu", "float32", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_asdiv(write_esnli(write_svamp(tmp_path / "data")))


def read(source: Source, method: Any = "step-by-step", seed: int = 0) -> TeachingData:
    return source.read(toy_recipe(method=method, seed=seed))


def numbers(examples: list[Row]) -> list[int]:
    """Return the numbers of these rows of svamp."""
    return [int(one.input.split()[2]) for one in examples]


def told(lines: list[str]) -> Any:
    return lines.append


# Data


def test_validation_rows_are_a_part_of_the_training_rows_where_there_are_no_others(folder: Path) -> None:
    data = read(DataSource("svamp", folder))
    assert (len(data.train), len(data.valid), len(data.test)) == (18, 2, NUM_TEST)
    assert sorted(numbers(data.train) + numbers(data.valid)) == list(range(NUM_TRAIN))
    inferences = read(DataSource("esnli", folder))
    assert (len(inferences.train), len(inferences.valid), len(inferences.test)) == (9, 9, 9)
    assert inferences.valid[0].input == "valid 0</s>a dog"


def test_a_share_is_taken_ahead_of_the_validation_rows_by_the_seed(folder: Path) -> None:
    half = DataSource("svamp", folder, fraction=0.5)
    data = read(half)
    assert (len(data.train), len(data.valid), len(data.test)) == (9, 1, NUM_TEST)
    assert numbers(data.train) == numbers(read(half).train)
    assert numbers(data.train) != numbers(read(half, seed=1).train)


def test_labels_of_the_teacher_are_for_training_alone(folder: Path) -> None:
    data = read(DataSource("svamp", folder, labels="llm"))
    for one, number in zip(data.train, numbers(data.train), strict=True):
        assert one.label == f"({number} + 1)"
        assert one.rationale == f"There are {number} and one."
    assert [one.label for one in data.valid] == [f"( {number}.0 + 1.0 )" for number in numbers(data.valid)]
    assert data.test[0].label == "( 0.0 + 1.0 )"
    assert read(DataSource("svamp", folder)).train[0].label.endswith(".0 + 1.0 )")


def test_only_students_that_are_explained_inputs_read_what_was_written_about_the_test(folder: Path) -> None:
    source = DataSource("esnli", folder)
    assert {one.rationale for one in read(source).test} == {None}
    explained = read(source, "explained")
    assert {one.rationale for one in explained.test} == {"Because of test."}
    assert {one.rationale for one in explained.valid} == {"Because of valid."}
    assert {one.rationale for one in explained.train} == {"Because of train."}


def test_extracted_rationales_take_the_place_of_the_released_ones(folder: Path, tmp_path: Path) -> None:
    outputs = {row: f"One more than {row}. The answer is ({row} + 1)." for row in range(15)}
    path = write_rationales(tmp_path / "rationales.jsonl", outputs)
    data = read(DataSource("svamp", folder, path))
    assert len(data.train) == 18
    for one, number in zip(data.train, numbers(data.train), strict=True):
        assert one.rationale == (f"One more than {number}." if number < 15 else None)
    taught_by_it = read(DataSource("svamp", folder, path, labels="llm"))
    assert set(numbers(taught_by_it.train)) == {number for number in numbers(data.train) if number < 15}
    with pytest.raises(OutputError, match="the test rows need outputs too"):
        read(DataSource("svamp", folder, path), "explained")


def test_a_folder_of_extracted_rationales_has_a_file_a_split(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        outputs = dict.fromkeys(range(NUM_TRAIN if split == "train" else NUM_TEST), f"Of {split}. The answer is (1).")
        write_rationales(tmp_path / "of" / f"{split}.jsonl", outputs)
    data = read(DataSource("svamp", folder, tmp_path / "of"), "explained")
    assert {one.rationale for one in data.train + data.valid} == {"Of train."}
    assert {one.rationale for one in data.test} == {"Of test."}


def test_problems_of_asdiv_are_added_to_the_training_rows_alone(folder: Path, tmp_path: Path) -> None:
    plain, augmented = (read(DataSource("svamp", folder, augment=more)) for more in (False, True))
    assert augmented.train[:18] == plain.train
    assert [one.input for one in augmented.train[18:]] == [f"asdiv {i}\nHow many?" for i in range(8)]
    assert {one.rationale for one in augmented.train[18:]} == {None}
    assert (augmented.valid, augmented.test) == (plain.valid, plain.test)
    assert len(read(DataSource("svamp", folder, augment=True, fraction=0.5)).train) == 9 + 4
    # with the teacher's labels those that it wrote about
    for name, number in (("train", NUM_TRAIN), ("asdiv", 3)):
        write_rationales(tmp_path / "of" / f"{name}.jsonl", dict.fromkeys(range(number), "Two. The answer is (2)."))
    labelled = read(DataSource("svamp", folder, tmp_path / "of", labels="llm", augment=True))
    assert [one.label for one in labelled.train[18:]] == ["(2)"] * 3


def test_outputs_that_could_not_be_read_may_be_left_out(folder: Path, tmp_path: Path) -> None:
    outputs = {row: "Two. The answer is (2)." if row % 2 else "I do not know." for row in range(NUM_TRAIN)}
    path = write_rationales(tmp_path / "rationales.jsonl", outputs)
    kept = read(DataSource("svamp", folder, path))
    assert {one.rationale for one in kept.train} == {"Two.", " "}
    dropped = DataSource("svamp", folder, path).read(toy_recipe(drop_empty=True))
    assert numbers(dropped.train) == [number for number in numbers(kept.train) if number % 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "other"}, "the data is one of esnli"),
        ({"folder": None}, "svamp needs the folder"),
        ({"task": "cqa", "augment": True}, "augment only svamp, not cqa"),
        ({"fraction": 0.0}, "above 0 and at most 1"),
        ({"fraction": 1.5}, "above 0 and at most 1"),
    ],
)
def test_a_source_without_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataSource(**{"task": "svamp", "folder": Path("data"), **changes})


def test_data_of_which_nothing_is_left_is_refused(folder: Path, tmp_path: Path) -> None:
    path = write_rationales(tmp_path / "rationales.jsonl", {0: "I do not know."})
    with pytest.raises(BadFile, match="no row of svamp is left"):
        DataSource("svamp", folder, path, labels="llm").read(toy_recipe(drop_empty=True))


# Runs


def run_of(folder: Path, model: str = "tiny", **changes: Any) -> StudentRun:
    return StudentRun(DataSource("svamp", folder), model, toy_recipe(steps=2, vocab_size=300, **changes))


def test_a_run_makes_a_student_once(folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    outcome = run_student(run_of(folder), tmp_path / "run", told(lines))
    assert lines
    result = json.loads((tmp_path / "run" / RESULT).read_text())
    assert result["outcome"]["test_accuracy"] == outcome.test_accuracy
    assert result["run"]["data"]["task"] == "svamp"
    assert result["run"]["recipe"]["alpha"] == 0.5
    assert (outcome.num_train, len(outcome.evaluations)) == (18, 1)
    assert PredictEngine.load(tmp_path / "run" / "checkpoint", CPU).has_rationales
    # states are of no use any more, and a result is only read
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint", RESULT, "tensorboard"]
    lines.clear()
    assert run_student(run_of(folder), tmp_path / "run", told(lines)) == outcome
    assert not lines


def test_the_result_of_another_run_is_refused(folder: Path, tmp_path: Path) -> None:
    run_student(run_of(folder), tmp_path / "run", told([]))
    with pytest.raises(ValueError, match=r"--learning-rate was 0\.005, and is 0\.1"):
        run_student(run_of(folder, learning_rate=0.1), tmp_path / "run", told([]))
    other = replace(run_of(folder), data=DataSource("svamp", folder, fraction=0.5))
    with pytest.raises(ValueError, match=r"--fraction was 1\.0, and is 0\.5"):
        run_student(other, tmp_path / "run", told([]))


def test_a_student_from_a_directory_has_its_weights_and_tokenizer(folder: Path, tmp_path: Path) -> None:
    directory = save_student(tmp_path / "model", kind="v1.1", num_layers=1)
    run = run_of(folder, str(directory))
    model, tokenizer = run.load(read(run.data))
    for name, weight in load_file(directory / "model.safetensors").items():
        torch.testing.assert_close(model.state_dict()[name], weight, atol=0, rtol=0)
    assert tokenizer("box").input_ids[-1] == 1
    assert run_student(run, tmp_path / "run", told([])).num_parameters == model.num_parameters()


def test_students_from_scratch_differ_by_seed_and_share_a_tokenizer_over_methods(folder: Path) -> None:
    run = run_of(folder)
    data = read(run.data)
    first, again, other = (
        replace(run, recipe=replace(run.recipe, seed=seed)).load(data)[0].shared.weight for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    vocabularies = [
        replace(run, recipe=replace(run.recipe, method=method)).load(data)[1].get_vocab()
        for method in ("standard", "step-by-step")
    ]
    assert vocabularies[0] == vocabularies[1]
    assert len(vocabularies[0]) <= 300


def test_what_is_no_t5_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model 'huge' is neither a directory"):
        run_student(run_of(folder, "huge"), tmp_path / "run", told([]))
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    save_file({"pooler.dense.bias": torch.zeros(8)}, tmp_path / "bert" / "model.safetensors")
    with pytest.raises(ValueError, match="'bert' is not t5"):
        run_student(run_of(folder, str(tmp_path / "bert")), tmp_path / "run", told([]))
