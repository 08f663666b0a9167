"""Questions over made-up documents: answerable ones, unanswerable ones, and conversations about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from starters.visitor.facts import (
    BESIDE_THE_POINT,
    RELATIONS,
    USUAL_RELATION,
    Names,
    Relation,
    ordinary_names,
    similar_names,
    similar_pets,
    things,
)
from starters.visitor.questions import Question

MAX_TOKENS = 32
SYSTEM_PROMPT = "You answer questions about the documents that you are given. Keep your answers short."
# Told besides the fact that is asked for; each of another kind than a pet.
_BESIDES = tuple(relation for relation in RELATIONS if relation.kind != "pet")


@dataclass(frozen=True)
class Telling:
    """Number of documents, sentences of each, and about whom they tell something in which relation.

    Documents that are similar share words of their names and things with others; the name may be the title.
    """

    relation: Relation = USUAL_RELATION
    names: Names = ordinary_names
    num_documents: int = 3
    sentences: tuple[int, int] = (1, 1)
    is_reversed: bool = False
    is_similar: bool = False
    is_titled: bool = False


@dataclass(frozen=True)
class Facts:
    """Documents, and for each the name and the thing that it tells of."""

    documents: tuple[str | dict[str, str], ...]
    names: tuple[str, ...]
    things: tuple[str, ...]


def answer_questions(telling: Telling, random: Random, count: int) -> list[Question]:
    """Ask `/generate` for what one of the documents tells; each place of it is equally frequent."""
    return [_question("answer", telling, random, number) for number in range(count)]


def rank_questions(telling: Telling, random: Random, count: int) -> list[Question]:
    """Ask `/v1/rerank` which document answers."""
    return [_question("rank", telling, random, number) for number in range(count)]


def _question(form: Any, telling: Telling, random: Random, number: int) -> Question:
    facts = tell(telling, random)
    gold = number % telling.num_documents
    asked, answers = _asked(telling, facts, gold)
    body: dict[str, Any] = {"query": asked, "documents": list(facts.documents)}
    if form == "rank":
        return Question("rank", body, gold, tuple(range(telling.num_documents)), gold)
    return Question("answer", {**body, "max_tokens": MAX_TOKENS}, (answers[gold],), answers, gold)


def _asked(telling: Telling, facts: Facts, gold: int) -> tuple[str, tuple[str, ...]]:
    """Return the question about a document, and the answer that each document would give."""
    if telling.is_reversed:
        return telling.relation.ask_reversed(facts.things[gold]), facts.names
    return telling.relation.ask(facts.names[gold]), facts.things


def tell(telling: Telling, random: Random, names: Sequence[str] | None = None) -> Facts:
    """Write documents that tell one fact of the relation each, among other facts about the same name.

    The names are drawn unless they are given.
    """
    count = telling.num_documents
    if names is None:
        names = similar_names(random, count) if telling.is_similar else telling.names(random, count)
    asked = similar_pets(random, count) if telling.is_similar else things(telling.relation.kind, random, count)
    documents: list[str | dict[str, str]] = []
    for name, thing in zip(names, asked, strict=True):
        others = [one for one in _BESIDES if one.kind != telling.relation.kind]
        besides = random.sample(others, random.randint(*telling.sentences) - 1)
        told = [telling.relation.state(name, thing)]
        told += [one.state(name, things(one.kind, random, 1)[0]) for one in besides]
        random.shuffle(told)
        text = " ".join(told)
        documents.append({"title": name, "text": text} if telling.is_titled else text)
    return Facts(tuple(documents), tuple(names), tuple(asked))


def unknown_names(random: Random, count: int) -> list[Question]:
    """Ask about somebody who is in no document."""
    questions = []
    for _ in range(count):
        relation = random.choice(RELATIONS)
        *told, stranger = ordinary_names(random, 4)
        facts = tell(Telling(relation), random, told)
        questions.append(_unanswerable(relation.ask(stranger), facts.documents))
    return questions


def unknown_relations(random: Random, count: int) -> list[Question]:
    """Ask for something else about somebody who is in a document."""
    questions = []
    for _ in range(count):
        told, asked = random.sample(RELATIONS, 2)
        while told.kind == asked.kind:
            told, asked = random.sample(RELATIONS, 2)
        facts = tell(Telling(told), random)
        questions.append(_unanswerable(asked.ask(random.choice(facts.names)), facts.documents))
    return questions


def beside_the_point(random: Random, count: int) -> list[Question]:
    """Ask about somebody over documents about nobody."""
    return [
        _unanswerable(random.choice(RELATIONS).ask(ordinary_names(random, 1)[0]), random.sample(BESIDE_THE_POINT, 3))
        for _ in range(count)
    ]


def without_documents(random: Random, count: int) -> list[Question]:
    """Ask without any document."""
    return [_unanswerable(random.choice(RELATIONS).ask(ordinary_names(random, 1)[0]), ()) for _ in range(count)]


def _unanswerable(asked: str, documents: Sequence[str | dict[str, str]]) -> Question:
    return Question("answer", {"query": asked, "documents": list(documents), "max_tokens": MAX_TOKENS}, ())


def as_ranking(question: Question) -> Question:
    """Turn a question over documents into one for their ranking."""
    body = {"query": question.body["query"], "documents": question.body["documents"]}
    return Question("rank", body, question.document, tuple(range(len(body["documents"]))), question.document)


def pasted_documents(random: Random, count: int) -> list[Question]:
    """Ask in chat about documents that an earlier message holds, after a first question about another of them."""

    def messages(facts: Facts, first: int, second: int) -> list[dict[str, str]]:
        pasted = "\n".join(f"Document {place}: {text}" for place, text in enumerate(facts.documents, start=1))
        return [
            _message("user", f"{pasted}\n\n{USUAL_RELATION.ask(facts.names[first])}"),
            _message("assistant", facts.things[first]),
            _message("user", USUAL_RELATION.ask(facts.names[second])),
        ]

    return [_chat(random, messages, has_field=False) for _ in range(count)]


def documents_and_history(random: Random, count: int) -> list[Question]:
    """Ask in chat with the field `documents`, a system prompt and an earlier question."""

    def messages(facts: Facts, first: int, second: int) -> list[dict[str, str]]:
        return [
            _message("user", USUAL_RELATION.ask(facts.names[first])),
            _message("assistant", facts.things[first]),
            _message("user", USUAL_RELATION.ask(facts.names[second])),
        ]

    return [_chat(random, messages, has_field=True) for _ in range(count)]


def follow_ups(random: Random, count: int) -> list[Question]:
    """Ask in chat "And …?", which only the earlier question explains."""

    def messages(facts: Facts, first: int, second: int) -> list[dict[str, str]]:
        return [
            _message("user", USUAL_RELATION.ask(facts.names[first])),
            _message("assistant", facts.things[first]),
            _message("user", f"And {facts.names[second]}?"),
        ]

    return [_chat(random, messages, has_field=True) for _ in range(count)]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _chat(random: Random, messages: Callable[[Facts, int, int], list[dict[str, str]]], *, has_field: bool) -> Question:
    facts = tell(Telling(), random)
    first, second = random.sample(range(len(facts.names)), 2)
    body: dict[str, Any] = {
        "messages": [_message("system", SYSTEM_PROMPT), *messages(facts, first, second)],
        "max_tokens": MAX_TOKENS,
    }
    if has_field:
        body["documents"] = list(facts.documents)
    return Question("chat", body, (facts.things[second],), facts.things, second)
