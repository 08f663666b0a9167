"""Questions of the open world: the gold document tells the answer, and no document tells what has to be refused."""

import random
from itertools import pairwise

import pytest

from starters.generate.world.documents import REFUSAL, Scope, World, draw_world
from starters.generate.world.relations import RELATIONS, filled
from starters.generate.world.subjects import ATTRIBUTE, ORGANISATIONS, group
from starters.generate.world.words import VALUES, names, values


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
        told = asked.told
        assert told is not None
        assert filled(asked.template, asked.answer, told.value).lower().rstrip("?") in asked.question.lower()
        same = [article.name for article in world.articles for one in article.told if one == told]
        assert same == [asked.answer]


def test_a_refused_name_or_value_is_in_no_document_or_is_asked_for_something_else() -> None:
    generator = random.Random(3)
    for world in worlds(200, Scope(refused=1.0, titled=0.0)):
        asked = world.ask(generator)
        told = {
            filled(question, article.name, one.value).lower().rstrip("?.")
            for article in world.articles
            for one in article.told
            for question in (*one.form.questions, *one.form.reverse)
        }
        assert asked.question.lower().rstrip("?.").rpartition(": ")[2] not in told


def test_many_refused_questions_ask_a_known_name_for_what_is_told_of_another() -> None:
    generator = random.Random(5)
    known = elsewhere = 0
    for world in worlds(300, Scope((3, 6), refused=1.0)):
        asked = world.ask(generator)
        assert asked.relation is not None
        about = [article for article in world.articles if article.name and article.name in asked.question]
        groups = {name for article in about for name in article.groups}
        if about and not asked.is_reversed and group(asked.relation) not in groups:
            known += 1
            elsewhere += any(group(asked.relation) in article.groups for article in world.articles)
    assert known > 100
    assert elsewhere > 40


def test_two_documents_may_tell_different_things_about_one_name() -> None:
    found = 0
    for world in worlds(100, Scope((3, 6), divided=1.0, mixed=0.0)):
        told = [(article.name, group(one.relation)) for article in world.articles for one in article.told]
        assert len(set(told)) == len(told)
        names_told = [article.name for article in world.articles if article.name]
        found += len(set(names_told)) < len(names_told)
    assert found > 60


def test_documents_about_companies_tell_of_companies() -> None:
    for world in worlds(50, Scope(corporate=1.0)):
        relations = {one.relation for article in world.articles for one in article.told}
        assert all(one in ORGANISATIONS or one.name.startswith(ATTRIBUTE) for one in relations)


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
