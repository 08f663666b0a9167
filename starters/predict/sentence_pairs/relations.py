"""Sentence pairs about people and their relations."""

import random
from collections.abc import Mapping

from starters.predict.everyday.naming import choose
from starters.predict.everyday.words import MEN, THINGS, WOMEN
from starters.predict.sentence_pairs.frames import SentencePair, with_article
from starters.predict.sentence_pairs.taxonomies import Relation

# Relations of a first person to a second, with the genders of both: the converse, and wider words.
KIN: Mapping[str, tuple[str, str, str, str, str]] = {
    # name: genders, converse for a son or brother, converse for a daughter or sister, wider word, excluded ones
    "mother": ("f", "son", "daughter", "parent", "father,sister,daughter,aunt,son"),
    "father": ("m", "son", "daughter", "parent", "mother,brother,son,uncle,daughter"),
    "son": ("m", "father", "mother", "child", "daughter,father,brother,uncle"),
    "daughter": ("f", "father", "mother", "child", "son,mother,sister,aunt"),
    "brother": ("m", "brother", "sister", "sibling", "sister,father,son,uncle"),
    "sister": ("f", "brother", "sister", "sibling", "brother,mother,daughter,aunt"),
    "grandmother": ("f", "grandson", "granddaughter", "grandparent", "grandfather,sister,mother,granddaughter"),
    "grandfather": ("m", "grandson", "granddaughter", "grandparent", "grandmother,brother,father,grandson"),
    "uncle": ("m", "nephew", "niece", "relative", "aunt,father,brother,nephew"),
    "aunt": ("f", "nephew", "niece", "relative", "uncle,mother,sister,niece"),
    "wife": ("f", "husband", "husband", "spouse", "sister,mother,daughter"),
    "husband": ("m", "wife", "wife", "spouse", "brother,father,son"),
}
# Relations between any two people: the converse, and what a converse relation excludes.
ROLES: Mapping[str, str] = {
    "boss": "employee",
    "employee": "boss",
    "teacher": "student",
    "student": "teacher",
    "doctor": "patient",
    "patient": "doctor",
    "friend": "friend",
    "neighbor": "neighbor",
    "colleague": "colleague",
    "cousin": "cousin",
    "classmate": "classmate",
    "guest": "host",
    "host": "guest",
    "trainer": "trainee",
    "landlord": "tenant",
    "tenant": "landlord",
}
# Verbs between two people: told, the converse, and what both exclude.
DEALS = (
    ("{a} sold {x} to {b}", "{b} bought {x} from {a}", "{b} sold {x} to {a}"),
    ("{a} gave {b} {x}", "{b} [got|received] {x} from {a}", "{b} gave {a} {x}"),
    ("{a} lent {b} {x}", "{b} borrowed {x} from {a}", "{a} borrowed {x} from {b}"),
    ("{a} sent {x} to {b}", "{b} received {x} from {a}", "{b} sent {x} to {a}"),
    ("{a} beat {b} at chess", "{b} lost to {a} at chess", "{b} [beat {a} at chess|won against {a}]"),
    ("{a} won against {b}", "{b} lost against {a}", "{b} won against {a}"),
    ("{a} teaches {b}", "{b} is taught by {a}", "{b} teaches {a}"),
    ("{a} works for {b}", "{b} is {a}'s [boss|employer]", "{a} is {b}'s boss"),
    ("{a} is married to {b}", "{b} is married to {a}", "{a} is [single|not married]"),
    ("{a} met {b}", "{b} met {a}", "{a} [never met|has never seen] {b}"),
    ("{a} follows {b}", "{b} is followed by {a}", "{a} does not follow {b}"),
    ("{a} and {b} are twins", "{a} and {b} are the same age", "{a} is older than {b}"),
    ("{a} lives with {b}", "{b} lives with {a}", "{a} lives alone"),
    ("{a} and {b} are [sisters|brothers|cousins]", "{a} and {b} are relatives", "{a} and {b} are not related"),
    ("{a} is an only child", "{a} has no [brothers|sisters|siblings]", "{a} has a [brother|sister]"),
    ("{a} is an orphan", "{a}'s parents are dead", "{a} lives with {her} parents"),
    ("{a} and {b} have three children", "{a} and {b} are parents", "{a} [has no children|is childless]"),
    ("{a} is pregnant", "{a} is expecting a baby", "{a} is not expecting a baby"),
)
_OPEN = (
    "{a} likes {b}",
    "{a} lives near {b}",
    "{a} is tall",
    "{b} is rich",
    "{a} and {b} went to the cinema",
    "{b} has a dog",
    "{a} is tired",
)


def draw_relation(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw how two people are related, or what one did with the other."""
    way = generator.random()
    if way < 0.5:
        return _draw_kin(label, generator)
    one, two = generator.sample(WOMEN + MEN, 2)
    names = {
        "a": one,
        "b": two,
        "x": with_article(generator.choice(THINGS)[1]),
        "her": "her" if one in WOMEN else "his",
    }
    if label == "neutral" and generator.random() < 0.6:
        told = generator.choice(tuple(ROLES)) if generator.random() < 0.5 else ""
        premise = f"{one} is {two}'s {told}" if told else choose(generator.choice(DEALS)[0], generator).format(**names)
        return SentencePair(premise, generator.choice(_OPEN).format(**names), label, "that is not told")
    if way < 0.7:
        role = generator.choice(tuple(ROLES))
        back = ROLES[role]
        if label == "entailment":
            return SentencePair(f"{one} is {two}'s {role}", f"{two} is {one}'s {back}", label, f"a {role} has a {back}")
        if label == "contradiction":
            said = (
                f"{two} is not {one}'s {back}"
                if back == role or generator.random() < 0.4
                else f"{two} is {one}'s {role}"
            )
            return SentencePair(f"{one} is {two}'s {role}", said, label, f"a {role} has a {back}")
        return None
    told, converse, excluded = (choose(text, generator).format(**names) for text in generator.choice(DEALS))
    if label == "neutral":
        return None
    if label == "entailment" and generator.random() < 0.3 and converse != told:
        told, converse = converse, told
    return SentencePair(told, converse if label == "entailment" else excluded, label, f"so {converse}")


def _draw_kin(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw a family relation, its converse, a wider word, the gender, or another relation."""
    kin = generator.choice(tuple(KIN))
    gender, for_man, for_woman, wider, excluded = KIN[kin]
    one = generator.choice(WOMEN if gender == "f" else MEN)
    two = generator.choice([name for name in WOMEN + MEN if name != one])
    if kin in ("wife", "husband"):
        two = generator.choice(MEN if kin == "wife" else WOMEN)
    back = for_man if two in MEN else for_woman
    told = generator.choice(
        (
            f"{one} is {two}'s {kin}",
            f"{one} is the {kin} of {two}",
            f"{two}'s {kin} is {one}",
            f"{two}'s {kin} is called {one}",
        )
    )
    elders = ("mother", "father", "grandmother", "grandfather")
    true = [
        f"{two} is {one}'s {back}",
        f"{one} is {two}'s {wider}",
        f"{one} is a {'woman' if gender == 'f' else 'man'}",
        f"{one} and {two} are [related|family]",
    ]
    false = [f"{one} is {two}'s {word}" for word in excluded.split(",")]
    false += [
        f"{one} is a {'man' if gender == 'f' else 'woman'}",
        f"{two} is {one}'s {kin}" if kin not in ("brother", "sister") else f"{two} has no siblings",
    ]
    if kin in elders:
        true += [f"{one} is older than {two}", f"{one} has a child", f"{one} has children"]
        false += [f"{one} is younger than {two}", f"{one} has no children"]
    if kin in ("wife", "husband"):
        true += [f"{one} is married", f"{two} is married", f"{one} and {two} are married"]
        false += [f"{one} is single", f"{two} is not married", f"{one} and {two} are not married"]
    if kin in ("brother", "sister"):
        true += [f"{two} has a {kin}", f"{one} and {two} have the same parents"]
        false += [f"{two} is an only child", f"{one} is an only child"]
    open_ = [
        *(one_.format(a=one, b=two) for one_ in _OPEN),
        f"{two} has two {kin}s",
        f"{one} is {two}'s teacher",
        f"{one} lives with {two}",
    ]
    if kin not in elders:
        open_ += [f"{one} is older than {two}"] if kin not in ("son", "daughter") else []
    said = generator.choice({"entailment": true, "contradiction": false, "neutral": open_}[label])
    return SentencePair(told, choose(said, generator), label, f"{one} is the {kin} of {two}")
