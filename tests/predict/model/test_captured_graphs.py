"""Students whose encoder, labels and steps are captured as graphs, run without a GPU."""

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch

from services.nn import captured
from services.nn.broken_model import BrokenModel
from services.nn.captured import MAX_GRAPHS
from services.predict.engine import PredictEngine
from services.predict.model import student as student_module
from services.predict.model.decoding import ANSWER_STEP
from services.predict.model.student import Decoded, Student
from services.predict.model.task_description import TaskDescription
from services.predict.tasks import ESNLI, RELEASED_PREFIXES
from tests.nn.eager_graphs import eager_graphs
from tests.predict.model.test_student import draw_candidates, draw_inputs
from tests.predict.tiny_students import KINDS, Kind, tiny_t5, tiny_tokenizer

BATCHES = [(5,), (70, 3), (5,), (130,), (9, 60, 64), (1,) * 16, (70, 3), (20,) * 17, (500, 400), (5,)]


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> tuple[Student, Student]:
    """The same student twice; the second pads as on a GPU."""
    plain, padding = (Student(tiny_t5(request.param), None) for _ in range(2))
    padding._length_step, padding.captures_graphs = student_module.GPU_LENGTH_STEP, True
    return plain, padding


def assert_same(some: Sequence[Decoded], others: Sequence[Decoded]) -> None:
    assert [one.token_ids for one in some] == [one.token_ids for one in others]
    assert [one.logprob for one in some] == pytest.approx([one.logprob for one in others], abs=1e-3)


def test_labels_have_the_scores_of_a_student_without_graphs(pair: tuple[Student, Student]) -> None:
    recurring = draw_candidates(seed=1)

    def scores(student: Student) -> list[torch.Tensor]:
        found = []
        for number, lengths in enumerate(BATCHES):
            inputs = draw_inputs(*lengths, seed=number)
            for trie in (recurring, draw_candidates(seed=number), recurring):
                found += student.score(student.encode(inputs), [trie] * len(inputs))
        return found

    expected = scores(pair[0])
    with eager_graphs() as graphs:
        found = scores(pair[1])
    assert graphs
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_whose_graphs_compute_something_else_fails_its_check(kind: Kind) -> None:
    description = TaskDescription.of(ESNLI, RELEASED_PREFIXES, has_rationales=True, max_target_tokens=12)
    for are_wrong, outcome in ((False, nullcontext()), (True, pytest.raises(BrokenModel))):
        student = Student(tiny_t5(kind), tiny_tokenizer())
        student.captures_graphs = True
        engine = PredictEngine(student, description)
        with eager_graphs(are_wrong=are_wrong) as graphs, outcome:
            engine.warm_up()
            engine.self_check()
        assert graphs


@pytest.mark.parametrize(("max_tokens", "max_graphs"), [(70, MAX_GRAPHS), (3, 1)])
def test_texts_are_those_of_a_student_without_graphs(
    pair: tuple[Student, Student], max_tokens: int, max_graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare whole batches, every second input, and texts that lack some tokens."""

    def texts(student: Student) -> list[Decoded]:
        found = []
        for number, lengths in enumerate(BATCHES[: 3 if max_tokens > ANSWER_STEP else None]):
            inputs = draw_inputs(*lengths, seed=number)
            encoded = student.encode(inputs)
            found += student.decode(encoded, max_tokens)
            found += student.decode(encoded.of(range(0, len(inputs), 2)), max_tokens)
            found += student.decode(encoded, max_tokens, [[index + 3, index + 4] for index in range(len(inputs))])
        return found

    expected = texts(pair[0])
    with eager_graphs() as graphs:
        monkeypatch.setattr(captured, "MAX_GRAPHS", max_graphs)
        assert_same(texts(pair[1]), expected)
    assert graphs
