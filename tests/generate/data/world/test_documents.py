"""Questions of the open world: the gold document tells the answer, and no document tells what has to be refused."""

import random
from itertools import pairwise

import pytest

from services.generate.data.world.documents import REFUSAL, Scope, World, draw_world
from services.generate.data.world.relations import RELATIONS, filled
from services.generate.data.world.words import VALUES, names, values


def worlds(count: int, scope: Scope, seed: int = 0) -> list[World]:
    generator = random.Random(seed)
    return [draw_world(generator, scope) for _ in range(count)]


def test_an_answer_stands_in_its_document_and_a_refusal_has_none() -> None:
    generator = random.Random(1)
    seen = set()
    for world in worlds(200, Scope()):
        asked = world.ask(generator)
        seen.add(asked.gold is None)
        if asked.gold is None:
            assert asked.answer == REFUSAL
        else:
            document = world.documents[asked.gold]
            assert asked.answer.lower() in f"{document.title} {document.text}".lower()
    assert seen == {True, False}


def test_a_question_for_a_name_has_one_right_document() -> None:
    generator = random.Random(2)
    for world in worlds(100, Scope((4, 8), reversed=1.0, refused=0.0)):
        asked = world.ask(generator)
        if asked.gold is None or not asked.is_reversed:
            continue
        told = next(
            one
            for one in world.articles[asked.gold].told
            if filled(asked.template, asked.answer, one.value) == asked.question
        )
        same = [article.name for article in world.articles for one in article.told if one == told]
        assert same == [asked.answer]


def test_a_refused_name_or_value_is_in_no_document_or_is_asked_for_something_else() -> None:
    generator = random.Random(3)
    for world in worlds(100, Scope(refused=1.0, titled=0.0)):
        asked = world.ask(generator)
        told = {
            filled(question, article.name, one.value)
            for article in world.articles
            for one in article.told
            for question in (*one.form.questions, *one.form.reverse)
        }
        assert asked.question not in told


def test_the_scope_bounds_documents_and_sentences() -> None:
    for world in worlds(60, Scope((2, 5), sentences=3, titled=1.0)):
        assert 2 <= len(world.documents) <= 5
        assert all(
            document.title or not article.name
            for article, document in zip(world.articles, world.documents, strict=True)
        )
        assert all(1 <= len(article.told) + len(article.beside) <= 3 for article in world.articles)


def test_names_of_a_world_differ_and_similar_ones_share_words() -> None:
    generator = random.Random(4)
    shared = 0
    for _ in range(50):
        drawn = names(generator, 6, is_similar=True)
        assert len(set(drawn)) == 6
        words = sorted(word for name in drawn for word in name.split())
        shared += any(one == other for one, other in pairwise(words))
    assert shared > 25


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_values_of_a_class_differ(kind: str) -> None:
    drawn = values(random.Random(5), kind, 12)
    assert len(set(drawn)) == 12
    assert all(value.strip() == value != "" for value in drawn)


def test_every_template_names_what_it_asks_about() -> None:
    for relation in RELATIONS:
        for form in relation.forms:
            assert all("{x}" in one and ("{p}" in one or "{a}" in one) for one in form.statements)
            assert all("{x}" in one and "{p}" not in one for one in form.questions)
            assert all("{x}" not in one and ("{p}" in one or "{a}" in one) for one in form.reverse)


def test_a_vowel_gets_the_other_article() -> None:
    assert filled("{x} has {a}.", "Ann", "old cat") == "Ann has an old cat."
    assert filled("{x} has {a}.", "the tall sailor", "cat") == "The tall sailor has a cat."
