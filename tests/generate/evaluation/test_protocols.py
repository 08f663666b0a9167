"""Each protocol counts what its table says, on a model whose attention and answers are known."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from services.generate.calibrate.bench import Bench
from services.generate.calibrate.search import Measured
from services.generate.data.questions import Example, QuestionSet, at_positions, place_gold
from services.generate.evaluation.protocols import (
    CALIBRATED,
    LIKELIHOOD,
    METHODS,
    SAVINGS,
    SORTING,
    VANILLA,
    AnswerOptions,
    Study,
    accuracy_by_position,
    answer,
    attention_and_use,
    attention_everywhere,
    compare_estimates,
    hypotheses,
    num_prompts,
    recall_at_3,
    reordered,
)
from services.generate.evaluation.results import MOST_USED
from services.generate.generation.bias import DummyOptions
from services.generate.generation.ranking import rank
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import BiasTable, CalibrationProfile
from starters.generate.questions import generated_facts
from tests.generate.tiny_models import tiny_model, tiny_tokenizer

EXAMPLES = generated_facts(6, 4)
PROFILE = CalibrationProfile(enabled=True, layers=(1,), rel_layers=(1,), temperature=1e-3)
OPTIONS = AnswerOptions(3)


def is_even(text: str, answers: Sequence[str]) -> bool:
    return len(text) % 2 == 0


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(tiny_model(num_hidden_layers=2), tiny_tokenizer())


@pytest.fixture(scope="module")
def study(model: LanguageModel) -> Study:
    return Study(Bench(model, QuestionSet("generated", "", 3, (), is_even)), PROFILE, OPTIONS)


@dataclass(frozen=True)
class Reader(Study):
    """Says the text of the document at a place, which its attention prefers; right if that is the gold one."""

    place: int = 0

    def answers(self, examples: Sequence[Example], *, is_calibrated: bool = False) -> list[str]:
        return [one.documents[one.gold if is_calibrated else self.place].text for one in examples]


@dataclass(frozen=True)
class KnownAttention(Bench):
    """Attn is relevance, 1e-2 of gold, plus a bias of the place, both exactly known."""

    bias: tuple[float, ...] = (0.3, 0.0, 0.1, 0.2)

    def attention(self, examples: Sequence[Example], span_rule: str) -> Iterator[Tensor]:
        for one in examples:
            relevance = torch.tensor([1e-2 * (place == one.gold) for place in range(4)])
            yield (torch.tensor(self.bias) + relevance).expand(2, 4, 4)

    def measure(
        self, examples: Sequence[Example], span_rule: str, kind: str, options: DummyOptions | None = None
    ) -> Iterator[Measured]:
        for one, attention in zip(examples, self.attention(examples, span_rule), strict=True):
            yield Measured(attention, torch.tensor(self.bias).expand(2, 4, 4), one.gold, 100, 50)


@pytest.fixture(scope="module")
def known(model: LanguageModel) -> Reader:
    questions = QuestionSet("generated", "", 3, (), lambda text, answers: answers[0] in text)
    return Reader(KnownAttention(model, questions), PROFILE, OPTIONS)


def test_accuracy_is_the_share_of_right_answers_at_each_position(known: Reader) -> None:
    scores = accuracy_by_position(known, EXAMPLES, (0, 2), (VANILLA, CALIBRATED))
    assert scores == {VANILLA: {"0": 100, "2": 0}, CALIBRATED: {"0": 100, "2": 100}}


@pytest.mark.slow
def test_rows_are_those_that_are_asked_for_and_what_has_no_position_has_one_number(study: Study) -> None:
    scores = accuracy_by_position(study, EXAMPLES[:2], (0, 3))
    assert list(scores) == list(METHODS)
    for method, columns in scores.items():
        assert list(columns) == (["0", "3"] if "attention" in method.lower() else ["Avg."])
    assert list(accuracy_by_position(study, EXAMPLES[:2], (0,), (f"{SORTING} + Cal.",))) == [f"{SORTING} + Cal."]


def test_accuracy_is_of_the_answers_that_the_service_gives(study: Study, model: LanguageModel) -> None:
    placed = [place_gold(example, 2) for example in EXAMPLES]
    for is_calibrated, profile in ((False, None), (True, PROFILE)):
        texts = answer(model, study.bench.prompts(placed, "newline"), OPTIONS, profile)
        assert study.answers(placed, is_calibrated=is_calibrated) == texts
        share = sum(len(text) % 2 == 0 for text in texts) / len(texts)
        assert study.accuracy(placed, is_calibrated=is_calibrated) == pytest.approx(100 * share)


def test_reordered_documents_are_those_of_the_ranking_and_gold_goes_with_them(study: Study) -> None:
    placed = at_positions(EXAMPLES, (0, 1, 2, 3))
    for example, moved in zip(placed, reordered(study, placed, "query_likelihood"), strict=True):
        order = rank(study.own.model, example.question, example.documents, "query_likelihood").order
        assert moved.documents == tuple(example.documents[place] for place in order)
        assert moved.documents[moved.gold] == example.documents[example.gold]
    alike = [reordered(study, [place_gold(EXAMPLES[0], place)], "query_likelihood")[0] for place in (0, 3)]
    assert alike[0] == alike[1]
    (sorted_,) = reordered(study, placed[:1], "attention")
    assert set(sorted_.documents) == set(placed[0].documents)


def test_recall_counts_gold_among_the_three_best_of_each_method(known: Reader) -> None:
    # in the middle of four, at the second place, gold is attended least of all
    scores = recall_at_3(known, EXAMPLES, methods={})
    assert scores == {
        VANILLA: {"recall_at_3": 0.0},
        CALIBRATED: {"recall_at_3": 1.0},
        f"{VANILLA}, layers 1–1": {"recall_at_3": 0.0},
        f"{CALIBRATED}, layers 1–1": {"recall_at_3": 1.0},
    }


def test_recall_is_of_the_profiles_heads_where_it_has_any(known: Reader) -> None:
    with_heads = replace(known, profile=PROFILE.changed({"rel_heads": ((1, 0), (1, 2))}))
    scores = recall_at_3(with_heads, EXAMPLES, methods={})
    assert list(scores) == [VANILLA, CALIBRATED, f"{VANILLA}, heads", f"{CALIBRATED}, heads"]
    assert scores[f"{CALIBRATED}, heads"] == {"recall_at_3": 1.0}


def test_recall_of_rankings_is_of_each_document_alone(study: Study) -> None:
    scores = recall_at_3(study, EXAMPLES[:3], methods={LIKELIHOOD: "query_likelihood"})
    found = []
    for example in EXAMPLES[:3]:
        placed = place_gold(example, 1)
        ranking = rank(study.own.model, placed.question, placed.documents, "query_likelihood").scores
        found.append(sum(score >= ranking[1] for score in ranking) <= 3)
    assert scores[LIKELIHOOD] == {"recall_at_3": pytest.approx(sum(found) / 3)}


def test_wrong_answers_show_attention_and_what_was_used_by_position(known: Reader) -> None:
    scores = attention_and_use(known, EXAMPLES, seed=0)
    likeness = scores["TF-IDF, original order"]
    # not 1, since a document's title is not in what was said
    assert likeness["0"] > 0.9 > max(likeness["1"], likeness["2"], likeness["3"])
    attention = scores["Attention, original order"]
    assert attention == pytest.approx({"0": 0.3, "1": 0.01, "2": 0.1, "3": 0.2})
    # the first document is attended most and its text is what was said
    assert scores[MOST_USED] == {"Highest": len(EXAMPLES), "Lowest": 0}
    lowest = attention_and_use(replace(known, place=2), EXAMPLES, seed=0)
    assert lowest[MOST_USED] == {"Highest": 0, "Lowest": len(EXAMPLES)}
    assert scores["Attention, shuffled order"] != attention


def test_without_wrong_answers_there_is_nothing_to_show(known: Reader) -> None:
    scores = attention_and_use(replace(known, place=1), EXAMPLES, seed=0)
    assert scores["TF-IDF, original order"] == scores["Attention, shuffled order"] == {}
    assert scores[MOST_USED] == {"Highest": 0, "Lowest": 0}


def test_every_document_is_measured_at_every_position(known: Reader, study: Study) -> None:
    attention = attention_everywhere(known, EXAMPLES[:2])
    wanted = torch.tensor([[0.3, 0.0, 0.1, 0.2]]) + torch.tensor([[1e-2], [0], [0], [0]])
    assert attention.allclose(wanted.expand(2, 4, 4))
    measured = attention_everywhere(study, EXAMPLES[:1])
    (turned,) = study.own.attention(
        [replace(EXAMPLES[0], documents=(*EXAMPLES[0].documents[2:], *EXAMPLES[0].documents[:2]))], "newline"
    )
    assert measured[0, [2, 3, 0, 1], [0, 1, 2, 3]].allclose(turned.mean(dim=(0, 1)), atol=1e-6)


def test_the_hypotheses_hold_where_attention_is_relevance_plus_bias(known: Reader) -> None:
    scores = hypotheses(known, EXAMPLES[:2])
    assert scores["Condition 1"] == {"share": 1.0}
    # documents that are equally relevant are in no order
    assert scores["Condition 2"] == {"share": pytest.approx(0.5)}
    assert scores["Linear"]["spearman"] > 0.7
    # the place without any bias leaves documents there without attention, and so without a logarithm
    assert "Log-linear" not in scores


@pytest.mark.slow
def test_estimates_are_compared_with_the_papers_in_what_they_give_and_cost(study: Study) -> None:
    table = BiasTable(bucket=16, attention=(0.01, 0.02, 0.03, 0.04), num_prompts=5)
    placed = at_positions(EXAMPLES, (0, 1, 2, 3))
    scores = compare_estimates(study, placed, [table], ("exact", "tree", "single", "cached"))
    assert list(scores) == ["vanilla", "exact", "tree", "single", "cached", *SAVINGS, "none"]
    short, whole = scores["tree, dummies of 4 tokens"], scores["tree"]
    assert short["relative_cost"] < whole["relative_cost"]
    # a window leaves out what dummies read, not what they are
    assert scores["tree, window of 64"]["relative_cost"] == pytest.approx(whole["relative_cost"])
    assert scores["exact"]["bias_spearman"] == scores["exact"]["rel_spearman"] == pytest.approx(1)
    assert scores["exact"]["relative_cost"] == 1
    assert 0 < scores["tree"]["relative_cost"] < 1
    assert 1 < scores["single"]["prefills"] < scores["tree"]["prefills"] < scores["exact"]["prefills"]
    for name in ("cached", "none"):
        assert (scores[name]["relative_cost"], scores[name]["prefills"]) == (0, 1)
    # a bias that is the same everywhere has no order
    assert "bias_spearman" not in scores["none"]
    assert set(scores["vanilla"]) == {"average", "middle", "ends"}
    right = study.bench.ask([None], placed)[0]
    shares = [right[place] + (right[place + 4] if place < 2 else 0) for place in range(4)]
    counts = [2, 2, 1, 1]
    assert scores["vanilla"]["average"] == pytest.approx(
        25 * sum(share / count for share, count in zip(shares, counts, strict=True))
    )


def test_a_cached_bias_needs_a_table_for_as_many_documents(study: Study) -> None:
    table = BiasTable(bucket=16, attention=(0.01, 0.02), num_prompts=5)
    with pytest.raises(ValueError, match="no table of the bias for 4 documents"):
        compare_estimates(study, EXAMPLES[:2], [table], ("cached",))


Work = Callable[[Study, Sequence[Example]], object]


@pytest.mark.parametrize(
    ("protocol", "work", "total"),
    [
        ("accuracy", lambda study, some: accuracy_by_position(study, some, (0, 3)), 28),
        ("recall", recall_at_3, 8),
        ("hypotheses", hypotheses, 8),
    ],
)
def test_progress_is_told_by_prompts_of_a_number_known_before(
    study: Study, protocol: str, work: Work, total: int
) -> None:
    counts: list[int] = []
    watched = replace(study, bench=replace(study.bench, on_progress=counts.append))
    work(watched, EXAMPLES[:2])
    assert sum(counts) == total == num_prompts(protocol, 2, len(EXAMPLES[0].documents), (0, 3), METHODS)
