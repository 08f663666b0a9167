"""Generated questions: the same for the same seed, and named as the data of the commands that take them."""

import pytest

from services.generate.data.questions import question_set
from starters.generate.questions import GENERATED, OPEN, generated_facts, open_unanswerable
from starters.generate.world.documents import REFUSAL


def test_generated_questions_are_the_same_each_time_and_begin_with_their_gold() -> None:
    examples = generated_facts(20, 6, seed=7)
    assert examples == generated_facts(20, 6, seed=7)
    assert examples[:5] == generated_facts(5, 6, seed=7)
    assert examples != generated_facts(20, 6, seed=8)
    for example in examples:
        assert len(example.documents) == 6
        [holder] = [k for k, document in enumerate(example.documents) if f"the {example.answers[0]}." in document.text]
        assert holder == example.gold == 0


def test_unanswerable_questions_are_the_same_each_time_and_have_the_refusal_for_an_answer() -> None:
    some = open_unanswerable(20, 4, seed=7)
    assert some[:5] == open_unanswerable(5, 4, seed=7)
    assert some != open_unanswerable(20, 4, seed=8)
    assert len({one.question for one in some}) > 10
    for one in some:
        assert (one.answers, one.gold, len(one.documents)) == ((REFUSAL,), None, 4)


@pytest.mark.parametrize("count", [0, -1])
def test_a_question_has_a_document(count: int) -> None:
    with pytest.raises(ValueError, match="at least one document"):
        generated_facts(1, count)


def test_generated_questions_are_data_by_their_names() -> None:
    assert (question_set("generated"), question_set("open")) == (GENERATED, OPEN)
    assert (GENERATED.unanswerable("evaluation", 3, 2), len(OPEN.unanswerable("evaluation", 3, 2))) == ([], 2)
