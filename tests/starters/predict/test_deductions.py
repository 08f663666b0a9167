"""Generated deductions: labels and reasons checked against every world that a premise allows."""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations, product

import pytest

from services.predict.data.rows import Row
from services.predict.tasks import EOS
from starters.predict.deductions import DEDUCTIONS, ORDERS, draw_deduction
from starters.predict.drawing import draw_distinct

Worlds = list[Mapping[str, float]]
ENDS = {
    "entailment": {"That is what is said", "So it is true", "It follows"},
    "neutral": {"So it may be true or not", "So it is left open", "Nobody can tell"},
    "contradiction": {"That is not what is said", "So it is false", "It cannot be true"},
}
MORE = {words: 1 if number == 0 else -1 for pair in ORDERS for number, words in enumerate(pair)}
COMPARED = re.compile(rf"(\w+) ({'|'.join(MORE)}) (\w+)")
CONTAINED = re.compile(r"[Tt]he (\w+) is (not )?in the (\w+)")
MEMBER = re.compile(r"([A-Z]\w+) is (not )?a (\w+)")
RULE = re.compile(r"[Aa]ll (\w+)s are (\w+)s|[Nn]o (\w+) is a (\w+)")
COUNT = re.compile(r"(\w+) has (\d+) \w+")
AMOUNT = re.compile(r"(\w+) has (more|fewer|as many) \w+ (?:than|as) (\w+)")


def draw_deductions(num_rows: int, seed: int) -> list[Row]:
    return draw_distinct(draw_deduction, num_rows, random.Random(f"deductions {seed}"), set())


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return draw_deductions(1200, seed=5)


def sentences(text: str) -> list[str]:
    return re.findall(r"([^.]+)\. ?", text)


def order_worlds(premise: Sequence[str]) -> Worlds:
    names = sorted({name for one in premise for name in COMPARED.fullmatch(one).group(1, 3)})  # type: ignore[union-attr]
    return [dict(zip(names, places, strict=True)) for places in permutations(range(len(names)))]


def order_holds(claim: str, world: Mapping[str, float]) -> bool | None:
    found = COMPARED.fullmatch(claim)
    return found and (world[found[1]] - world[found[3]]) * MORE[found[2]] > 0


def group_worlds(premise: Sequence[str]) -> Worlds:
    trades = sorted({trade for one in premise for found in RULE.finditer(one) for trade in found.groups() if trade})
    return [dict(zip(trades, truths, strict=True)) for truths in product((0, 1), repeat=len(trades))]


def group_holds(claim: str, world: Mapping[str, float]) -> bool | None:
    if found := RULE.fullmatch(claim):
        first, second, excluded, by = found.groups()
        return world[first] <= world[second] if first else world[excluded] + world[by] < 2
    found = MEMBER.fullmatch(claim)
    return found and bool(world[found[3]]) != bool(found[2])


def amount_worlds(premise: Sequence[str]) -> Worlds:
    given = {found[1]: int(found[2]) for one in premise if (found := COUNT.fullmatch(one))}
    worlds: Worlds = [given]
    for one in premise:
        if found := AMOUNT.fullmatch(one):
            # around the given ones a person may have any number that the sentence allows
            tried = {count + step for count in given.values() for step in (-1, 0, 1)}
            worlds = [{**world, found[1]: count} for world in worlds for count in tried]
    return worlds


def amount_holds(claim: str, world: Mapping[str, float]) -> bool | None:
    if found := COUNT.fullmatch(claim):
        return world[found[1]] == int(found[2])
    found = AMOUNT.fullmatch(claim)
    if not found:
        return None
    difference = world[found[1]] - world[found[3]]
    return {"more": difference > 0, "fewer": difference < 0, "as many": difference == 0}[found[2]]


def place_worlds(premise: Sequence[str]) -> Worlds:
    """Either the two outermost places are apart, or one is in the place that the other thing's chain ends with."""
    inside = {found[1]: found[3] for one in premise if (found := CONTAINED.fullmatch(one))}
    outermost = sorted(set(inside.values()) - set(inside))
    everything = {*inside, *inside.values()}

    def world(links: Mapping[str, str]) -> Mapping[str, float]:
        pairs = {}
        for inner in everything:
            outer = links.get(inner)
            while outer is not None:
                pairs[f"{inner} {outer}"] = 1.0
                outer = links.get(outer)
        return pairs

    # an outermost place may be in whatever is not inside of it
    nested = [
        {**inside, place: outer}
        for place in outermost
        for outer in everything
        if f"{outer} {place}" not in world(inside) and outer != place
    ]
    return [world(links) for links in (inside, *nested)]


def place_holds(claim: str, world: Mapping[str, float]) -> bool | None:
    found = CONTAINED.fullmatch(claim)
    return found and (f"{found[1]} {found[3]}" in world) != bool(found[2])


Kind = tuple[Callable[[Sequence[str]], Worlds], Callable[[str, Mapping[str, float]], bool | None]]
KINDS: dict[str, Kind] = {
    "orders": (order_worlds, order_holds),
    "places": (place_worlds, place_holds),
    "groups": (group_worlds, group_holds),
    "amounts": (amount_worlds, amount_holds),
}


def kind_of(premise: str) -> str:
    if COMPARED.search(premise):
        return "orders"
    return "amounts" if COUNT.search(premise) else "groups" if RULE.search(premise) else "places"


def read(row: Row) -> tuple[str, Worlds, str]:
    """The kind of a deduction, the worlds in which its premise holds, and its hypothesis."""
    premise, hypothesis = row.input.split(EOS)
    kind = kind_of(premise)
    worlds_of, holds = KINDS[kind]
    facts = sentences(premise)
    worlds = [world for world in worlds_of(facts) if all(holds(fact, world) for fact in facts)]
    assert worlds, row
    return kind, worlds, hypothesis.removesuffix(".")


def verdict(kind: str, claim: str, worlds: Worlds) -> str | None:
    holds = {KINDS[kind][1](claim, world) for world in worlds}
    if None in holds:
        return None
    return "neutral" if len(holds) == 2 else "entailment" if True in holds else "contradiction"


def test_a_deduction_is_a_premise_a_hypothesis_a_label_and_its_reasons() -> None:
    (row,) = draw_deductions(1, seed=0)
    assert row.output is not None
    premise, hypothesis = row.input.split(EOS)
    assert premise == (
        "The box is in the tent. The wagon is in the bag. The letter is in the box. The stone is in the"
        " cellar. The cellar is in the wagon."
    )
    assert hypothesis == ("The stone is in the wagon.")
    assert row.label == row.output.label == "entailment"
    assert row.output.rationale == (
        "The stone is in the cellar. The cellar is in the wagon. So the stone is in the wagon. That is what is said."
    )
    assert row.output.text == f"{row.output.rationale} So the answer is entailment."


def test_a_label_tells_in_which_of_all_worlds_of_the_premise_the_hypothesis_holds(rows: list[Row]) -> None:
    for row in rows:
        kind, worlds, hypothesis = read(row)
        assert verdict(kind, hypothesis, worlds) == row.label, row


def test_every_step_of_the_reasons_follows_and_their_end_is_the_label(rows: list[Row]) -> None:
    num_checked: Counter[str] = Counter()
    for row in rows:
        assert row.output is not None
        kind, worlds, _ = read(row)
        *steps, end = sentences(row.output.rationale)
        assert end in ENDS[row.label], row
        claims = [claim.removeprefix("So ") for step in steps for claim in re.split(r", so |, but |, and | and ", step)]
        verdicts = [verdict(kind, claim, worlds) for claim in claims]
        assert set(verdicts) <= {"entailment", None}, row
        num_checked[kind] += verdicts.count("entailment")
        assert all(int(a) > int(b) for a, b in re.findall(r"(\d+) is more than (\d+)", row.output.rationale))
        assert all(int(a) < int(b) for a, b in re.findall(r"(\d+) is fewer than (\d+)", row.output.rationale))
    assert min(num_checked[kind] for kind in KINDS) > 300


def test_labels_are_as_likely_in_every_kind(rows: list[Row]) -> None:
    counts = Counter((read(row)[0], row.label) for row in rows)
    assert len(counts) == 4 * 3
    assert all(60 < count < 140 for count in counts.values())


def test_no_word_of_a_hypothesis_gives_its_label_away(rows: list[Row]) -> None:
    by_word: dict[str, Counter[str]] = {}
    for row in rows:
        for word in set(re.findall(r"\w+", row.input.split(EOS)[1])):
            by_word.setdefault(word, Counter())[row.label] += 1
    for word, counts in by_word.items():
        if counts.total() >= 100:
            assert max(counts.values()) < 0.5 * counts.total(), word


def test_inputs_differ_and_a_draw_is_the_same_for_its_seed(rows: list[Row]) -> None:
    assert len({row.input for row in rows}) == len(rows)
    assert draw_deductions(50, seed=5) == rows[:50]
    assert draw_deductions(50, seed=6) != rows[:50]
    assert DEDUCTIONS.labels == ("entailment", "neutral", "contradiction")
