"""Rows of the suite: what is asked, how it is measured and what is aimed at."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from starters.visitor import documents, facts
from starters.visitor.captions import KINDS, Kind, caption_questions
from starters.visitor.documents import Telling, answer_questions, rank_questions
from starters.visitor.galleries import (
    ALL_RENDERINGS,
    MANY_WORDS,
    MIXED,
    USUAL,
    WORDINGS,
    Words,
    gallery_question,
)
from starters.visitor.measures import (
    Chance,
    Measure,
    accuracy,
    calibration_error,
    guess,
    mean_average_precision,
    no_chance,
    random_map,
    refusals,
    right_documents,
    without_a_match,
)
from starters.visitor.questions import Question, Service
from starters.visitor.sentences import (
    CAR,
    README_PROBLEM,
    groups,
    inference_questions,
    problem_questions,
    read_sentences,
)

# A gallery has this many times as many images as another row has questions.
IMAGES_PER_QUESTION = 2


@dataclass(frozen=True)
class Probe:
    """Questions that several rows may measure. Fixed ones do not depend on the seed and are asked once."""

    name: str
    make: Callable[[Random, int], list[Question]]
    is_fixed: bool = False

    def questions(self, seed: int, count: int) -> list[Question]:
        """Make the questions of a seed, independently of other probes."""
        return self.make(Random(f"{self.name} {seed}"), count)


@dataclass(frozen=True)
class Row:
    """A measure over the questions of some probes, in percent; `aim` is a least value or, where `is_error`, a
    greatest."""

    service: Service
    group: str
    name: str
    probes: tuple[Probe, ...]
    measure: Measure = accuracy
    chance: Chance = guess
    aim: float | None = None
    is_error: bool = False

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}"


def _gallery(name: str, words: Words, rendering: str, conditions: dict[str, str]) -> Probe:
    def make(random: Random, count: int) -> list[Question]:
        num_images = IMAGES_PER_QUESTION * count
        drawn = ALL_RENDERINGS[rendering]
        return [gallery_question(drawn, random, num_images, conditions=conditions, words=words)]

    return Probe(name, make)


def _retrieval(group: str, name: str, probe: Probe, condition: int, aim: float | None) -> Row:
    return Row("embed", group, name, (probe,), mean_average_precision(condition), random_map(condition), aim)


def _embed_rows() -> Iterator[Row]:
    worded = _gallery("wordings", Words(), "plain", WORDINGS)
    for number, (wording, about) in enumerate(WORDINGS.items()):
        yield _retrieval(f"asked for the {about}", wording, worded, number, 90.0)
    for number, about in enumerate(USUAL.values()):
        for name in ALL_RENDERINGS:
            probe = _gallery(f"rendering {name}", Words(), name, USUAL)
            yield _retrieval(f"drawn otherwise, by {about}", name, probe, number, None if name == MIXED else 85.0)
        many = _gallery("eight colors and shapes", MANY_WORDS, "plain", USUAL)
        yield _retrieval(f"drawn otherwise, by {about}", "eight colors and eight shapes", many, number, None)


def _captions(kind: Kind, *, is_dark: bool) -> Probe:
    name = f"{kind.name}, {'dark' if is_dark else 'light'}"
    return Probe(name, lambda random, count: caption_questions(kind, random, count, is_dark=is_dark))


def _score_rows() -> Iterator[Row]:
    for is_dark in (False, True):
        group = f"two captions, {'dark' if is_dark else 'light'} background"
        probes = [_captions(kind, is_dark=is_dark) for kind in KINDS]
        for kind, probe in zip(KINDS, probes, strict=True):
            yield Row("score", group, kind.name, (probe,), aim=kind.aim)
        yield _calibration("score", group, "probability of the better caption, every kind", *probes)


def _calibration(service: Service, group: str, name: str, *probes: Probe) -> Row:
    name = f"expected calibration error: {name}"
    return Row(service, group, name, probes, calibration_error, no_chance, is_error=True)


def _told(name: str, telling: Telling) -> Probe:
    return Probe(name, partial(answer_questions, telling))


TOLD: dict[str, Telling] = {
    "ordinary names": Telling(),
    "foreign names": Telling(names=facts.foreign_names),
    "invented names": Telling(names=facts.invented_names),
    "names in lower case": Telling(names=facts.lower_case_names),
    "documents with titles": Telling(is_titled=True),
    "2 to 4 sentences a document": Telling(sentences=(2, 4)),
    "documents that share words": Telling(is_similar=True),
    "10 documents": Telling(num_documents=10),
    "10 documents of 2 to 4 sentences": Telling(num_documents=10, sentences=(2, 4)),
}
UNANSWERABLE: dict[str, Probe] = {
    "nobody of this name": Probe("nobody of this name", documents.unknown_names),
    "something else about the name": Probe("something else about the name", documents.unknown_relations),
    "documents about nobody": Probe("documents about nobody", documents.beside_the_point),
    "no documents": Probe("no documents", documents.without_documents),
}
CONVERSATIONS: dict[str, Probe] = {
    "documents in an earlier message": Probe("documents in an earlier message", documents.pasted_documents),
    "`documents` and an earlier question": Probe("documents and history", documents.documents_and_history),
    '"And X?" after an earlier question': Probe("follow-ups", documents.follow_ups),
}


def _generate_rows() -> Iterator[Row]:
    told = {name: _told(name, telling) for name, telling in TOLD.items()}
    for name, probe in told.items():
        yield Row("generate", "answers", name, (probe,), aim=80.0)
    forms = {relation.title: Telling(relation) for relation in facts.RELATIONS}
    forms |= {one.reverse_title: Telling(one, is_reversed=True) for one in facts.RELATIONS if one.reverse}
    asked = {name: _told(name, telling) for name, telling in forms.items()}
    for name, probe in asked.items():
        yield Row("generate", "answers by form of statement and question", name, (probe,), aim=80.0)
    for name, probe in UNANSWERABLE.items():
        yield Row("generate", "refusals of unanswerable questions", name, (probe,), chance=no_chance, aim=90.0)
    ordinary = (told["ordinary names"], told["2 to 4 sentences a document"], *asked.values())
    yield Row(
        "generate", "false refusals", "of answerable questions", ordinary, refusals, no_chance, 5.0, is_error=True
    )
    for name, probe in CONVERSATIONS.items():
        yield Row("generate", "chat with a system prompt", name, (probe,))
    yield from _document_rows(told)
    answerable = (told["ordinary names"], told["10 documents"], *UNANSWERABLE.values())
    yield _calibration("generate", "probabilities", "`relevance` of /generate", *answerable)


def _document_rows(told: dict[str, Probe]) -> Iterator[Row]:
    """Rows of the right document, by the attention of `/generate` and by rerank."""
    aims = {3: 90.0, 10: 80.0}
    ranked = {}
    for count, aim in aims.items():
        name = "ordinary names" if count == 3 else "10 documents"
        answered = told[name]
        yield Row("generate", "right document", f"of {count}, by /generate", (answered,), right_documents, guess, aim)
        ranked[count] = Probe(f"rerank of {count}", partial(rank_questions, TOLD[name]))
        yield Row("generate", "right document", f"of {count}, by /v1/rerank", (ranked[count],), aim=aim)
    unanswered = {name: _ranking(name, probe) for name, probe in UNANSWERABLE.items() if name != "no documents"}
    for name, probe in unanswered.items():
        group = "no document reaches the threshold in /v1/rerank"
        yield Row("generate", group, name, (probe,), without_a_match, no_chance)
    yield _calibration("generate", "probabilities", "scores of /v1/rerank", *ranked.values(), *unanswered.values())


def _ranking(name: str, probe: Probe) -> Probe:
    def make(random: Random, count: int) -> list[Question]:
        return [documents.as_ranking(question) for question in probe.make(random, count)]

    return Probe(f"rerank, {name}", make)


def _predict_rows() -> Iterator[Row]:
    problems = _fixed("problems")
    yield Row("predict", "everyday word problems", "one step", tuple(problems.values()), aim=80.0)
    for name, probe in problems.items():
        yield Row("predict", "everyday word problems", f"one step: {name}", (probe,))
    readme = Probe("README", lambda _random, _count: problem_questions([README_PROBLEM]), is_fixed=True)
    yield Row("predict", "everyday word problems", "the README's, without its second sentence", (readme,))
    two_steps = tuple(_fixed("two_step_problems").values())
    yield Row("predict", "everyday word problems", "two steps", two_steps)
    inferences = _fixed("inferences")
    car = Probe("car", lambda _random, _count: inference_questions([CAR]), is_fixed=True)
    yield Row("predict", "inferences", '"The car is red." / "The car is blue."', (car,))
    yield Row("predict", "inferences", "all", tuple(inferences.values()), aim=80.0)
    for name, probe in inferences.items():
        yield Row("predict", "inferences", name, (probe,))
    yield _calibration("predict", "probabilities", "word problems", *problems.values(), *two_steps)
    yield _calibration("predict", "probabilities", "inferences", *inferences.values())


def _fixed(file: str) -> dict[str, Probe]:
    """Make a probe of each group of a file."""
    ask = inference_questions if file == "inferences" else problem_questions

    def make(group: str) -> Probe:
        return Probe(
            f"{file}: {group}",
            lambda _random, _count: ask([row for row in read_sentences(file) if row["group"] == group]),
            is_fixed=True,
        )

    return {group: make(group) for group in groups(file)}


def all_rows() -> tuple[Row, ...]:
    """Return every row, in the order of the tables."""
    return (*_embed_rows(), *_score_rows(), *_generate_rows(), *_predict_rows())
