"""Two statements as premise and hypothesis, with the label that follows from how they stand to each other."""

import random
from collections import Counter

import pytest

from starters.predict.sentence_pairs.handwritten.logic import Link, Subject, draw_logical, variants
from starters.predict.sentence_pairs.taxonomies import Relation

ANNA = Subject("Anna", "she", "she")


def pairs(first: str, second: str, link: Link, label: Relation) -> set[tuple[str, str]]:
    generator = random.Random(f"{first} {second} {link} {label}")
    drawn = [draw_logical(first, second, link, ANNA, label, generator) for _ in range(400)]
    return {(one.premise, one.hypothesis) for one in drawn if one is not None}


def test_what_implies_a_statement_is_excluded_by_its_denial() -> None:
    follows = pairs("is swimming", "is wet", "implies", "entailment")
    assert ("Anna is swimming", "she is wet") in follows
    assert ("Anna is not wet", "she is not swimming") in follows
    assert ("Anna is wet", "she is swimming") not in follows
    assert ("Anna is swimming", "she is not wet") in pairs("is swimming", "is wet", "implies", "contradiction")
    assert ("Anna is wet", "she is swimming") in pairs("is swimming", "is wet", "implies", "neutral")


def test_neither_of_two_exclusive_statements_need_be_true() -> None:
    assert ("Anna is asleep", "she is not running") in pairs("is asleep", "is running", "excludes", "entailment")
    assert ("Anna is running", "she is asleep") in pairs("is asleep", "is running", "excludes", "contradiction")
    assert ("Anna is not asleep", "she is running") in pairs("is asleep", "is running", "excludes", "neutral")


def test_open_statements_have_no_other_label() -> None:
    assert not pairs("is tired", "is tall", "open", "entailment")
    assert not pairs("is tired", "is tall", "open", "contradiction")
    assert pairs("is tired", "is tall", "open", "neutral")


@pytest.mark.parametrize("link", ["implies", "excludes", "equal"])
def test_hypotheses_are_denied_as_often_in_entailment_as_in_contradiction(link: Link) -> None:
    counts = Counter((label, is_said_denied) for _, _, is_said_denied, label in variants(link))
    for is_denied in (False, True):
        both = counts["entailment", is_denied], counts["contradiction", not is_denied]
        assert both[0] == both[1]
