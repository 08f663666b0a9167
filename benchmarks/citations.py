"""How right the citations of answers are, calibrated and not.

    python -m benchmarks.citations [CHECKPOINT] [--data open] [--questions 200]

Questions with one gold document among ten, in any place, are answered as the service answers them. The sentences of an
answer cite the documents whose share of their attention reaches a threshold. Precision is the share of citations that
are the gold document; recall is the share of answers, without refusals, that cite it. The threshold is the one with the
best F1 on other questions, `chosen_on`, which calibration is also chosen on; beside it, what the threshold that is
served gives. Of questions that no document answers, those whose answer cites one are counted.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.record import record
from services.generate.citations import CITED_SHARE, sentences
from services.generate.data.questions import Example, Part, QuestionSet, Unanswerable, at_positions, question_set
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions, Progress
from services.generate.generation.input_processor import Item
from services.generate.http.generate_routes import AnswerSoFar
from services.generate.model.profile import CalibrationProfile
from services.nn.devices import DeviceOptions
from starters.generate import questions as _questions  # noqa: F401 (names `open`)

STARTER = Path(__file__).parents[1] / "services" / "generate" / "starter" / "open-facts"
THRESHOLDS = [round(0.05 * number, 2) for number in range(2, 19)]
NUM_DOCUMENTS = 10
BATCH = 25


@dataclass(frozen=True)
class Attended:
    """The shares of each sentence of an answer, by document; `is_right` is the answer's own judgement."""

    shares: list[list[float]]
    gold: int | None
    is_refusal: bool
    is_right: bool

    def cited(self, threshold: float) -> list[int]:
        """The documents that its sentences cite."""
        return (
            [] if self.is_refusal else [k for one in self.shares for k, share in enumerate(one) if share >= threshold]
        )


def answered(
    engine: GenerateEngine,
    questions: QuestionSet,
    examples: Sequence[Example | Unanswerable],
    profile: CalibrationProfile,
) -> Iterator[Attended]:
    """Answer questions greedily, some at a time."""
    options = AnswerOptions(questions.max_tokens, stop=questions.stop, calibration=profile, cite=True)
    for start in range(0, len(examples), BATCH):
        asked = {
            id(item): (example, AnswerSoFar("", example.documents), item)
            for example in examples[start : start + BATCH]
            for item in [engine.processor.prepare_question(example.question, example.documents, options)]
        }
        for item, progress in steps(engine, [item for *_, item in asked.values()]):
            asked[id(item)][1].add(progress)
        for example, answer, _ in asked.values():
            yield attended(questions, example, answer)


def steps(engine: GenerateEngine, items: Sequence[Item]) -> Iterator[tuple[Item, Progress]]:
    """Run answers to their end."""
    events = engine.admit(items)
    while events or engine.num_running:
        for item, progress, _ in events:
            assert isinstance(progress, Progress), "no rankings are asked for"
            yield item, progress
        waiting = engine.preparing
        events = engine.prepare(waiting[0]) if waiting else engine.step()


def attended(questions: QuestionSet, example: Example | Unanswerable, answer: AnswerSoFar) -> Attended:
    facts = answer.facts
    assert facts is not None, "it is answered"
    shares = [answer.attention.shares(sentence, facts) for sentence in sentences(answer.text)]
    is_right = questions.is_right(answer.text, example.answers)
    return Attended(shares, example.gold, answer.text == facts.refusal, is_right)


def scores(answers: Sequence[Attended], threshold: float) -> dict[str, float]:
    """Precision and recall of the citations of answerable questions."""
    cited = [(one, one.cited(threshold)) for one in answers if not one.is_refusal]
    right = sum(documents.count(one.gold) for one, documents in cited if one.gold is not None)
    precision = right / max(1, sum(len(documents) for _, documents in cited))
    recall = sum(one.gold in documents for one, documents in cited) / max(1, len(cited))
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return {
        "threshold": threshold,
        **{name: round(100 * x, 1) for name, x in (("precision", precision), ("recall", recall), ("f1", f1))},
    }


def measured(engine: GenerateEngine, questions: QuestionSet, options: argparse.Namespace) -> dict[str, Any]:
    """Choose a threshold for each way on some questions, and judge others by it."""

    def asked(part: Part, count: int) -> list[Example]:
        examples = questions.examples(part, NUM_DOCUMENTS, count, options.seed)
        return at_positions(examples, range(NUM_DOCUMENTS))

    choosing, judging = asked("calibration", options.chosen_on), asked("evaluation", options.questions)
    unanswerable = questions.unanswerable("evaluation", NUM_DOCUMENTS, options.unanswerable, options.seed)
    result = {}
    profile = engine.processor.profile
    for name, way in (("calibrated", profile), ("uncalibrated", profile.changed({"enabled": False}))):
        chosen_on = list(answered(engine, questions, choosing, way))
        threshold = max(THRESHOLDS, key=lambda one: scores(chosen_on, one)["f1"])
        answers = list(answered(engine, questions, judging, way))
        others = list(answered(engine, questions, unanswerable, way))
        result[name] = {
            "chosen": scores(answers, threshold),
            "served": scores(answers, CITED_SHARE),
            "of_right_answers": scores([one for one in answers if one.is_right], CITED_SHARE),
            "answers": sum(not one.is_refusal for one in answers),
            "right": sum(one.is_right for one in answers),
            "unanswerable": len(others),
            "unanswerable_that_cite": sum(bool(one.cited(CITED_SHARE)) for one in others),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?", default=STARTER, help="with a profile")
    parser.add_argument("--data", default="open", help="as for python -m starters evaluate litm")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--chosen-on", type=int, default=200, help="questions, for the threshold")
    parser.add_argument("--unanswerable", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    engine = GenerateEngine.load(options.checkpoint, EngineOptions(DeviceOptions("cpu", num_threads=1)))
    result = measured(engine, question_set(options.data), options)
    table = Table("answers", "threshold", "precision", "recall", title="citations, in percent")
    for name, row in result.items():
        for which in ("chosen", "served"):
            table.add_row(name, *(str(row[which][figure]) for figure in ("threshold", "precision", "recall")))
    Console().print(table)
    counts = {"questions": options.questions, "chosen_on": options.chosen_on, "documents": NUM_DOCUMENTS}
    record("citations", {"model": options.checkpoint.name, "data": options.data, **counts, **result})


if __name__ == "__main__":
    main()
