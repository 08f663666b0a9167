"""What a student gives a GPU to do: how many operations, copies and waits, which cost more than the computation."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from services.nn.captured import MAX_ROWS
from services.predict.engine import PredictEngine
from services.predict.model import student as student_module
from services.predict.model.scoring import Candidates
from services.predict.model.student import Student
from services.predict.model.task_description import TaskDescription
from services.predict.tasks import ESNLI, RELEASED_PREFIXES, SVAMP, FieldValue, Task
from tests.nn.counted_gpu import GPU, CountedGPU
from tests.predict.tiny_students import EOS, PAD, tiny_t5, tiny_tokenizer

NUM_LAYERS = 3  # of the encoder, and of the decoder
PAIR: dict[str, FieldValue] = {"premise": "A man is walking a dog.", "hypothesis": "A person is outside."}
PROBLEM: dict[str, FieldValue] = {"body": "Each box has 5 apples.", "question": "How many apples are there in 4 boxes?"}


def student_on_gpu(tokenizer: Any = None, **settings: Any) -> Student:
    """Make a student whose answers end at the limit: the host reads zeros from it, and 0 ends nothing."""
    return Student(tiny_t5(**settings).to(GPU, torch.bfloat16), tokenizer)


def draw_inputs(num_inputs: int, longest: int = 60) -> list[list[int]]:
    return [[*[3 + index % 7] * (1 + 37 * index % longest), EOS] for index in range(num_inputs)]


def tree(num_labels: int) -> Candidates:
    """Make labels of which every second one shares its first token with others."""
    labels = [[10 + index, 5, EOS] if index % 2 else [9, 10 + index, EOS] for index in range(num_labels)]
    return Candidates(labels, PAD)


def again(run: Callable[[], object], num_inputs: int) -> CountedGPU:
    """Count what runs for the third time if graphs of it are captured before."""
    for _ in range(2 if num_inputs <= MAX_ROWS else 0):
        CountedGPU.of(run)
    return CountedGPU.of(run)


def scored(student: Student, inputs: Sequence[Sequence[int]], tries: Sequence[Candidates]) -> CountedGPU:
    return again(lambda: student.score(student.encode(inputs), tries), len(inputs))


def decoded(student: Student, num_inputs: int, max_tokens: int, num_forbidden: int = 0) -> CountedGPU:
    forbidden = [range(10, 10 + num_forbidden)] * num_inputs if num_forbidden else []
    inputs = draw_inputs(num_inputs)
    return again(lambda: student.decode(student.encode(inputs), max_tokens, forbidden), num_inputs)


@pytest.mark.parametrize("num_labels", [2, 16, 60])
@pytest.mark.parametrize("num_inputs", [1, 2, 64])
def test_inputs_are_copied_once_labels_once_and_scores_are_read_once(num_inputs: int, num_labels: int) -> None:
    student, inputs = student_on_gpu(), draw_inputs(num_inputs, longest=200)
    assert scored(student, inputs, [tree(num_labels)] * num_inputs).crossings == (2, 1)
    assert scored(student, inputs, [tree(num_labels) for _ in inputs]).crossings == (2, 1)


def test_scores_of_more_rows_than_one_pass_takes_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trie = tree(16)
    monkeypatch.setattr(student_module, "MAX_DECODER_ROWS", 2 * trie.num_nodes)
    assert scored(student_on_gpu(), draw_inputs(6), [trie] * 6).crossings == (4, 1), "labels once for each of 3 passes"


@pytest.mark.parametrize("num_labels", [2, 16, 60])
def test_all_labels_are_scored_in_one_run_of_the_decoder(num_labels: int) -> None:
    one_length, two_lengths = [[5, EOS]] * 20, [[5, EOS], [5] * 70] * 10
    for inputs, num_groups in ((one_length, 1), (two_lengths, 2)):
        counted = scored(student_on_gpu(), inputs, [tree(num_labels)] * len(inputs))
        attentions = counted.operations["scaled_dot_product_attention"]
        assert attentions == NUM_LAYERS * num_groups + 2 * NUM_LAYERS


def test_scoring_takes_as_many_operations_whatever_the_batch() -> None:
    student, trie = student_on_gpu(), tree(16)
    counts = [scored(student, draw_inputs(size), [trie] * size).num_operations for size in (17, 64)]
    assert counts[0] == counts[1]
    assert scored(student, draw_inputs(64), [tree(16) for _ in range(64)]).num_operations == counts[0]


@pytest.mark.parametrize("num_forbidden", [0, 5])
@pytest.mark.parametrize("num_inputs", [1, 2, 32])
def test_a_decoded_token_is_read_once_and_nothing_is_copied_for_it(num_inputs: int, num_forbidden: int) -> None:
    few, many = (decoded(student_on_gpu(), num_inputs, length, num_forbidden) for length in (3, 13))
    assert many.crossings == (few.crossings[0], 13)
    assert few.crossings == (2 if num_forbidden else 1, 3)
    assert many.reads == [2 * num_inputs] * 13  # a token and its log-probability each


@pytest.mark.parametrize("num_forbidden", [0, 5])
def test_a_decoded_token_takes_as_many_operations_whatever_the_batch(num_forbidden: int) -> None:
    student = student_on_gpu()
    counts = []
    for num_inputs in (17, 32):
        few, many = (decoded(student, num_inputs, length, num_forbidden) for length in (3, 13))
        counts.append(many.num_operations - few.num_operations)
    assert len(set(counts)) == 1


def test_products_are_added_to_what_they_change_in_the_same_operation() -> None:
    counted = decoded(student_on_gpu(), 32, 13)
    assert counted.operations["addmm_"] == 2 * NUM_LAYERS + 13 * 3 * NUM_LAYERS
    assert counted.operations["add"] == 1, "only the mask, to the bias among an input's tokens"


@pytest.mark.parametrize("num_inputs", [1, 4, 16])
def test_labels_of_a_few_inputs_are_scored_by_two_graphs_and_some_operations(num_inputs: int) -> None:
    counted = scored(student_on_gpu(), draw_inputs(num_inputs), [tree(16)] * num_inputs)
    assert counted.operations["graph"] == 2
    assert counted.num_operations <= 13


@pytest.mark.parametrize("num_inputs", [1, 4, 16])
def test_a_decoded_token_of_a_few_inputs_is_a_graph(num_inputs: int) -> None:
    few, many = (decoded(student_on_gpu(), num_inputs, length) for length in (3, 13))
    assert many.operations - few.operations == {"graph": 10}
    assert few.operations["graph"] == 1 + 3
    assert few.num_operations <= 15


def test_an_answer_that_ends_is_not_waited_for_twice() -> None:
    student = student_on_gpu(eos_token_id=0)
    assert decoded(student, 8, 12).crossings == (1, 1)


@pytest.mark.parametrize(("task", "fields"), [(ESNLI, PAIR), (SVAMP, PROBLEM)], ids=["labels", "free text"])
@pytest.mark.parametrize("rationale", [False, True])
def test_a_batch_of_the_engine_crosses_as_often_as_one_input(
    task: Task, fields: dict[str, FieldValue], rationale: bool
) -> None:
    description = TaskDescription.of(task, RELEASED_PREFIXES, has_rationales=True, max_target_tokens=12)
    engine = PredictEngine(student_on_gpu(tiny_tokenizer()), description)
    field = next(iter(fields))
    items = [engine.prepare({**fields, field: "word " * (1 + index)}, rationale=rationale) for index in range(32)]
    is_scored, is_decoded = task.labels is not None, rationale or task.labels is None
    for some in (items[:1], items):
        crossings = CountedGPU.of(engine.run_batch, some).crossings
        assert crossings == (1 + is_scored, is_scored + 12 * is_decoded)
