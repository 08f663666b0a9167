"""Captions of claims in many wordings. A `Style` determines all choices, so that claims can share a wording."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from starters.score.data.claims import MAX_THINGS, OPPOSITES, VALUES, Claim, Noun

# Synonyms; the first is drawn as often as all others together.
WORDS: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny", "small"),
    "big": ("big", "large", "big", "huge", "large"),
    "gray": ("gray", "grey"),
    "cyan": ("cyan", "turquoise", "aqua"),
    "purple": ("purple", "violet"),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted", "polka-dotted"),
    "checkered": ("checkered", "chequered", "checked"),
    "outlined": ("outlined", "hollow", "empty"),
    "plain": ("plain", "solid", "filled"),
    "circle": ("circle", "disc", "circle", "round shape"),
    "square": ("square", "square", "box"),
    "star": ("star", "star shape"),
    "diamond": ("diamond", "rhombus"),
    "cross": ("cross", "plus sign"),
    "ring": ("ring", "donut"),
    "oval": ("oval", "ellipse"),
    "crescent": ("crescent", "moon"),
    "heart": ("heart", "heart shape"),
}
ANYTHING = ("thing", "object", "shape", "one", "figure", "item")
WITH = {"striped": "stripes", "dotted": "dots", "checkered": "checks", "wavy": "waves"}
NUMBERS = ("no", "one", "two", "three", "four", "five")
PLURALS = {"cross": "crosses", "box": "boxes"}
RELATED: dict[str, tuple[str, ...]] = {
    "left": ("left of", "to the left of", "on the left of", "on the left side of", "at the left of",
             "on the left-hand side of", "further left than"),
    "right": ("right of", "to the right of", "on the right of", "on the right side of", "at the right of",
              "on the right-hand side of", "further right than"),
    "above": ("above", "over", "on top of", "higher than", "higher up than", "above"),
    "below": ("below", "under", "underneath", "lower than", "lower down than", "beneath"),
    "bigger": ("bigger than", "larger than"),
    "smaller": ("smaller than", "tinier than"),
}  # fmt: skip
# Frames: {a} and {b} are things with articles, {A} and {B} with "the", {n} and {m} without articles, {s} and {t} nouns
# without their adjectives {x} and {y}, {r} is a relation.
SINGLE = ("{a}", "{a}", "there is {a}", "there's {a}", "I can see {a}", "{n}", "one {n}", "{a} in the picture",
          "just {a}", "the {s} is {x}", "a {s} that is {x}", "a {s}, {x}", "this {s} is {x}", "{a} is shown",
          "it is {a}")  # fmt: skip
PAIRS = ("{a} and {b}", "{a} and {b}", "{a} and {b}", "{a} with {b}", "{a} next to {b}", "{a} beside {b}",
         "{a} near {b}", "{a}, {b}", "{n} and {m}", "{n}, {m}", "{a} alongside {b}", "{a} together with {b}",
         "both {a} and {b}",
         "there is {a} and {b}", "there are {a} and {b}", "{a} is next to {b}", "{A} is beside {B}", "{a} by {b}",
         "the {s} is {x} and the {t} is {y}", "the {s} is {x}, the {t} is {y}", "{a} and also {b}", "{a} close to {b}",
         "a {s} that is {x} and a {t} that is {y}", "the {s} is {x} while the {t} is {y}", "{A} and {B}",
         "{s}: {x}, {t}: {y}", "{b} as well as {a}")  # fmt: skip
RELATIONS = ("{a} {r} {b}", "{a} {r} {b}", "{A} is {r} {B}", "{a} is {r} {b}", "there is {a} {r} {b}", "{n} {r} {m}",
             "{A} {r} {B}", "{a} that is {r} {b}", "{a}, {r} {b}")  # fmt: skip
SIDES = {
    "left": ("{a} on the left and {b} on the right", "on the left {a}, on the right {b}", "left: {n}, right: {m}",
             "{A} is on the left and {B} is on the right"),
    "above": ("{a} at the top and {b} at the bottom", "at the top {a}, at the bottom {b}", "top: {n}, bottom: {m}",
              "{A} is at the top and {B} is at the bottom"),
}  # fmt: skip
ABSENT = ("there is no {n}", "no {n}", "there isn't {a}", "without {a}", "there is not {a}", "{a} is missing",
          "there are no {ns}", "no {ns}", "a picture without {a}", "there is no {n} in the picture",
          "it has no {n}", "not {a}", "nowhere {a}")  # fmt: skip
WITHOUT = ("{a} without {b}", "{a} but no {m}", "{a} and no {m}", "{a}, no {m}", "there is {a} but no {m}",
           "there is {a} without {b}", "{a} and not {b}", "{a} with no {m}", "{A} without {B}")  # fmt: skip
WITHS = ("{a} with {b}", "{a} and {b}", "{a} and {b}", "{a}, {m}", "there is {a} and {b}", "there is {a} with {b}",
         "{a} and {b}", "{a} with {b}", "{A} with {B}")  # fmt: skip
COUNTS = ("{n}", "{n}", "there are {n}", "exactly {n}", "I count {n}", "{n} in total", "{n} are shown", "we see {n}",
          "{n} in the picture")  # fmt: skip
OPENINGS = ("", "", "", "", "", "", "a photo of ", "a picture of ", "an image of ", "a drawing of ",
            "a photograph showing ",
            "this shows ", "you can see ", "a painting of ", "an illustration of ", "image: ", "here is ")  # fmt: skip
BEHIND = ("on a {c} background", "in front of a {c} background", "with a {c} background", "on {c}", "against {c}")
INVENTED = "bcdfgklmnprstvwz", "aeiou"


@dataclass(frozen=True)
class Style:
    """Uniform numbers in 0..1, each of which decides one choice; equal styles word different claims alike."""

    draws: tuple[float, ...]

    @classmethod
    def draw(cls, random: Random) -> "Style":
        return cls(tuple(random.random() for _ in range(12)))

    def choose(self, number: int, choices: Sequence[str]) -> str:
        """Choose by the draw of this number."""
        return choices[int(self.draws[number] * len(choices))]


def is_held_out(frame: str, word: str) -> bool:
    """Tell whether a frame is never used with a word in training: one in ten combinations."""
    return zlib.crc32(f"{frame} {word}".encode()) % 10 == 0


def caption(claim: Claim, style: Style) -> str:
    """Word a claim."""
    frame = _frame(claim, style)
    if claim.first is None:
        text = "the background is " + _word(claim.background or "", style, 9)
        return text
    first, second = claim.first, claim.second or Noun()
    if claim.relation in ("right", "below") and "{r}" not in frame:
        first, second = second, first
    numbers = (claim.number, claim.second_number)
    parts = {
        "a": _with_article(first, style, 1), "b": _with_article(second, style, 2),
        "A": "the " + _phrase(first, style, 1), "B": "the " + _phrase(second, style, 2),
        "n": _counted(first, numbers[0], style, 1), "m": _counted(second, numbers[1], style, 2),
        "ns": _phrase(first, style, 1, is_plural=True),
        "s": _phrase(Noun(shape=first.shape), style, 1), "t": _phrase(Noun(shape=second.shape), style, 2),
        "x": _adjectives(first, style), "y": _adjectives(second, style),
        "r": style.choose(3, RELATED[claim.relation]) if claim.relation else "",
    }  # fmt: skip
    text = frame.format(**parts)
    if claim.background is not None:
        text += " " + style.choose(4, BEHIND).format(c=_word(claim.background, style, 9))
    return _finished(text, style)


def claim_vocabulary() -> list[str]:
    """Texts with all words of the wordings, for learning a vocabulary."""
    frames = [*SINGLE, *PAIRS, *RELATIONS, *ABSENT, *WITHOUT, *WITHS, *COUNTS, *OPENINGS, *BEHIND]
    frames += [frame for side in SIDES.values() for frame in side]
    words = [word for words in VALUES.values() for word in words]
    words += [word for synonyms in (*WORDS.values(), *RELATED.values(), ANYTHING, NUMBERS) for word in synonyms]
    shapes = [synonym for word in VALUES["shape"] for synonym in WORDS.get(word, (word,))]
    plurals = [_plural(word) for word in (*shapes, *ANYTHING)]
    return [*frames, *words, *plurals, *WITH.values(), "a an the colored coloured with and color colour"]


def _frame(claim: Claim, style: Style) -> str:
    """Choose a frame that fits, and is not held out with the claim's first word."""
    frames = _frames(claim)
    key = _key(claim)
    start = int(style.draws[0] * len(frames))
    fitting = [frames[(start + i) % len(frames)] for i in range(len(frames))]
    return next((frame for frame in fitting if _fits(frame, claim) and not is_held_out(frame, key)), frames[0])


def _key(claim: Claim) -> str:
    first = claim.first or Noun()
    return claim.relation or first.color or first.shape or ""


def _frames(claim: Claim) -> Sequence[str]:
    if claim.relation is not None:
        key = claim.relation if claim.relation in SIDES else OPPOSITES[claim.relation]
        return (*RELATIONS, *SIDES.get(key, ()))
    if claim.second_number == 0:
        return WITHOUT
    if claim.number == 0:
        return ABSENT
    if claim.second is not None:
        return ("{n} and {m}", "{n}, {m}", "there are {n} and {m}", "{n} with {m}") if claim.number else PAIRS
    return COUNTS if claim.number else SINGLE


def _fits(frame: str, claim: Claim) -> bool:
    """Tell whether the claim's nouns have what a frame says separately."""
    if "{x}" not in frame:
        return True
    said = [noun for noun in (claim.first, claim.second) if noun is not None]
    return all(noun.shape and (noun.color or noun.finish or noun.size) for noun in said)


def _word(word: str, style: Style, number: int) -> str:
    synonyms = WORDS.get(word, (word,))
    draw = style.draws[number]
    return synonyms[0] if draw < 0.5 else synonyms[int((2 * draw - 1) * len(synonyms))]


def _adjectives(noun: Noun, style: Style) -> str:
    words = [_word(word, style, 6) for word in (noun.size, noun.color, noun.finish) if word]
    return " and ".join(words)


def _phrase(noun: Noun, style: Style, number: int, *, is_plural: bool = False) -> str:
    """Write a noun phrase without an article."""
    head = _word(noun.shape, style, 7) if noun.shape else style.choose(8, ANYTHING)
    head = _plural(head) if is_plural else head
    adjectives = [_word(word, style, 6) for word in (noun.size, noun.color) if word]
    if noun.finish in WITH and style.draws[5] < 0.25:
        return " ".join([*adjectives, head, "with", WITH[noun.finish]])
    if noun.finish:
        adjectives.insert(len(adjectives) if style.draws[5] < 0.7 else 0, _word(noun.finish, style, 6))
    return " ".join([*adjectives, head])


def _with_article(noun: Noun, style: Style, number: int) -> str:
    phrase = _phrase(noun, style, number)
    return f"{'an' if phrase[0] in 'aeiou' and not phrase.startswith('one') else 'a'} {phrase}"


def _counted(noun: Noun, count: int | None, style: Style, number: int) -> str:
    """Write a noun phrase with its number, if there is one other than none."""
    if not count:
        return _phrase(noun, style, number)
    said = str(count) if style.draws[10] < 0.3 else NUMBERS[min(count, MAX_THINGS)]
    return f"{said} {_phrase(noun, style, number, is_plural=count > 1)}"


def _plural(phrase: str) -> str:
    return PLURALS.get(phrase, phrase + "s")


def _finished(text: str, style: Style) -> str:
    """Add an opening, sometimes with an invented word, and a full stop."""
    opening = style.choose(11, OPENINGS)
    if opening and text.startswith(("there", "I ", "the ", "no ", "we ", "a picture", "it ", "on the", "at the")):
        opening = ""
    share = style.draws[4]
    if share > 0.96:
        consonants, vowels = INVENTED
        digits = [int(share * 10**k) for k in range(3, 9)]
        word = "".join(
            (consonants if i % 2 == 0 else vowels)[d % (16 if i % 2 == 0 else 5)] for i, d in enumerate(digits)
        )
        opening = f"a {word} of "
    return opening + text + ("." if style.draws[9] > 0.8 else "")
