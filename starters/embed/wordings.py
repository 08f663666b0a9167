"""A grammar of conditions: how people ask for an attribute of a picture, and for what no picture shows.

`draw_wording` draws from tens of thousands of wordings for each attribute: keywords, imperatives, questions and other
languages. A pattern whose checksum is divisible by HELD_OUT_EVERY is never used in tuning; `held_out` draws from those
patterns alone, to see what is understood that was never asked.
"""

import functools
import zlib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase

from starters.embed.condition_words import (
    ENGLISH,
    FOREIGN,
    FOREIGN_PATTERNS,
    FOREIGN_SENTENCES,
    OWN_QUESTIONS,
    THINGS,
    VALUE_QUESTIONS,
)

HELD_OUT_EVERY = 8
# Nouns of WordNet by frequency, one a line, of which none names an attribute of a picture or one of its values.
UNRELATED_NOUNS = Path(__file__).parent / "unrelated_nouns.txt"

# `{n}` is an attribute, possibly with the thing that has it, `{p}` its plural, `{o}` the thing. None begins with "What
# is the" or ends in "the image", as the protocols' instructions do.
KEYWORDS = (
    "{n}", "{n}", "{n}", "{p}", "{p}", "{p}", "the {n}", "the {p}", "its {n}", "their {p}", "{n} only", "only {n}",
    "just the {n}", "by {n}", "same {n}", "similar {n}", "similar {p}", "{n} similarity", "search by {n}", "{n} search",
    "query: {n}", "condition: {n}", "attribute: {n}", "{n} of things", "all {p}", "any {n}",
)  # fmt: skip
IMPERATIVES = (
    "Name the {n}.", "Tell me the {n}.", "Give the {n}.", "Describe the {n}.", "Report the {n}.", "State the {n}.",
    "Identify the {n}.", "Recognize the {p}.", "Recognise the {n}.", "Say the {n}.", "Show me the {n}.",
    "Find the {n}.", "Determine the {n}.", "Note the {p}.", "Guess the {n}.", "Classify the {n}.", "Detect the {n}.",
    "Focus on the {n}.", "Focus on {p}.", "Look at the {n}.", "Look only at the {n}.", "Look at nothing but the {n}.",
    "Consider the {n}.",
    "Concentrate on the {n}.", "Attend to the {n} alone.", "Mind the {n}.", "Watch the {n}.", "Judge by the {n}.",
    "Take only the {n} into account.", "Disregard all but the {n}.", "Forget everything except the {n}.",
    "Use the {n} and nothing more.", "Care about the {n}, not about the rest.", "Keep the {n} in mind.",
    "Arrange the photos by {n}.", "Arrange these images by their {p}.", "Group the pictures by {n}.",
    "Group these by their {p}.", "Order the drawings by {n}.", "Rank the photos by {n}.", "Cluster them by {n}.",
    "Organize my pictures by {n}.", "Organise the photos according to {n}.", "Divide the photos by {n}.",
    "Match the {n}.", "Match things of the same {n}.", "Compare the {p}.", "Compare the {n} of these things.",
    "Find images of the same {n}.", "Find pictures with a similar {n}.", "Find photos with equal {p}.",
    "Retrieve pictures by {n}.", "Search for the same {n}.", "Show pictures that share the {n}.",
    "Embed this by {n}.", "Encode the {n}.", "Represent the {n}.", "Represent the picture by its {n}.",
)  # fmt: skip
QUESTIONS = (
    "Which {n}?", "Which {n} is it?", "Which {n} is this?", "Which {n} does {o} have?", "Which {n} do you see?",
    "Which {n} has {o}?", "Which {n} was used?", "Which {n} is shown?", "Which kind of {n} is shown?", "What {n}?",
    "What {n} does it have?", "What {n} does {o} have?", "What {n} is shown?", "What {n} is this?", "What's the {n}?",
    "What is its {n}?", "What is the {n}?", "What are the {p}?", "What sort of {n} is this?", "What {n} can be seen?",
    "Can you tell me the {n}?", "Can you see the {n}?", "Could you name the {n}?", "Do you know the {n}?",
    "How would you describe the {n}?", "How does the {n} look?", "Of which {n} is {o}?", "Of what {n} is it?",
    "In which {n} is {o} drawn?", "With which {n} is {o} shown?", "I want to know the {n}.", "I care about the {n}.",
    "I am interested in the {n}.", "We compare by {n}.", "Which pictures have the same {n}?", "Do they share the {n}?",
    "Is the {n} the same?", "How similar are the {p}?", "What can you say about the {n}?", "Which {p} are there?",
)  # fmt: skip
PLACES = (
    "",
    "",
    "",
    " in this picture",
    " in the picture",
    " in the photo",
    " in this drawing",
    " here",
    " shown here",
)
# Ends of imperatives and keywords, which change nothing.
ENDS = (
    ", nothing else", ", nothing more", " alone", " and not the rest", ", leaving out the rest",
    ", whatever else there is", " and no other feature", ", disregarding all other things", " exclusively",
    ", other things do not matter",
)  # fmt: skip
JOINS = ("{0} and {1}", "{0} and {1}", "{0} and the {1}", "{0}, {1}", "both {0} and {1}", "{0} & {1}", "{0} plus {1}")
# Questions about what no picture shows: `{n}` and `{p}` are nouns.
UNRELATED_PATTERNS = (
    "Is there a {n}?", "Is it about {p}?", "Does the person have a {n}?", "Who invented the {n}?", "{n} and {m}",
    "What type of {n} is it?", "Tell me about the {n} of the {m}.", "the {n} of a {m}", "a {n} with a {m}", "{n} {m}",
    "How much does the {n} cost?", "Is the {n} near the {m}?", "the {n} for the {m}", "Why is the {n} a {m}?",
)  # fmt: skip


def is_held_out(pattern: str) -> bool:
    """Whether a pattern or sentence is left out of tuning; bare nouns and what nouns stand alone in never are."""
    return pattern not in ("{n}", "{p}") and zlib.crc32(pattern.encode()) % HELD_OUT_EVERY == 0


def draw_wording(
    attributes: Sequence[str],
    values: Sequence[str],
    random: Random,
    *,
    owner: str | None = None,
    held_out: bool = False,
) -> str:
    """Draw a wording that asks for one or two attributes, keys of ENGLISH.

    `values` are some of the attribute's values, for questions that name them instead. `owner` is what has the
    attribute, if it is not the thing in the picture ("background").
    """
    is_single = len(attributes) == 1 and owner is None
    kind = random.random()
    if is_single and kind < 0.2:
        text = _foreign(attributes[0], random, held_out=held_out)
    elif is_single and kind < 0.32:
        text = _without_name(attributes[0], values, random, held_out=held_out)
    else:
        text = _english(_named(attributes, owner, random), random, held_out=held_out)
    return _typed(text, random)


def draw_unrelated(random: Random, *, held_out: bool = False) -> str:
    """Draw a condition that asks for nothing that the pictures show: about other things, or letters without sense.

    The nouns of tuning and the held-out nouns are different ones.
    """
    nouns = unrelated_nouns(held_out=held_out)
    first, second = random.choice(nouns), random.choice(nouns)
    kind = random.random()
    if kind < 0.65:
        noun = (first, f"{first}s")
        if random.random() < 0.6:
            # the background is an attribute too: what is asked of it decides
            thing = "background" if random.random() < 0.4 else random.choice((*THINGS, second))
            noun = (f"{first} of the {thing}", f"{first}s of the {thing}")
        text = _english(noun, random, held_out=held_out)
    elif kind < 0.9:
        text = random.choice(UNRELATED_PATTERNS).format(n=first, p=f"{first}s", m=second)
    else:
        text = " ".join(
            "".join(random.choice(ascii_lowercase) for _ in range(random.randint(2, 9)))
            for _ in range(random.randint(1, 3))
        )
    return _typed(text, random)


@functools.cache
def unrelated_nouns(*, held_out: bool = False) -> tuple[str, ...]:
    """List the nouns that name nothing in the pictures, those of tuning or the others."""
    return tuple(noun for noun in UNRELATED_NOUNS.read_text().split() if is_held_out(noun) == held_out)


def vocabulary() -> list[str]:
    """List texts with every word of the grammar, in tuning or held out, but the unrelated nouns."""
    nouns = [word for family in (*ENGLISH.values(), *FOREIGN.values()) for pair in family for word in pair]
    sentences = [text for family in (*FOREIGN_SENTENCES.values(), *OWN_QUESTIONS.values()) for text in family]
    patterns = [*KEYWORDS, *IMPERATIVES, *QUESTIONS, *PLACES, *ENDS, *JOINS, *UNRELATED_PATTERNS, *FOREIGN_PATTERNS]
    words = [*nouns, *sentences, *patterns, *VALUE_QUESTIONS, *THINGS, "please of the thing"]
    return [text.format(*"xy", n="x", p="x", o="it", v="x", w="x", m="x") for text in words]


@functools.cache
def _chosen(patterns: tuple[str, ...], *, held_out: bool) -> tuple[str, ...]:
    """Keep the patterns that are held out, or the others; all of them where that leaves none."""
    return tuple(pattern for pattern in patterns if is_held_out(pattern) == held_out) or patterns


def _english(noun: tuple[str, str], random: Random, *, held_out: bool) -> str:
    patterns = random.choices((KEYWORDS, IMPERATIVES, QUESTIONS), (30, 35, 35))[0]
    pattern = random.choice(_chosen(patterns, held_out=held_out))
    thing = random.choice(("it", "this", *(f"the {name}" for name in THINGS)))
    text = pattern.format(n=noun[0], p=noun[1], o=thing)
    if patterns is not QUESTIONS and random.random() < 0.12:
        return text.rstrip(".") + random.choice(_chosen(ENDS, held_out=held_out))
    if patterns is KEYWORDS or random.random() < 0.5:
        return text
    return text[:-1] + random.choice(PLACES) + text[-1]


def _named(attributes: Sequence[str], owner: str | None, random: Random) -> tuple[str, str]:
    """Name one or two attributes, possibly with their owner: singular and plural."""
    names = [random.choice(ENGLISH[attribute]) for attribute in attributes]
    if len(names) == 2:
        if random.random() < 0.5:  # with the usual names half of the time: there are too many pairs of all
            names = [ENGLISH[attribute][0] for attribute in attributes]
        order, join = random.sample((0, 1), 2), random.choice(JOINS)
        both = [join.format(names[order[0]][number], names[order[1]][number]) for number in (0, 1)]
        is_of_background = attributes[order[1]] == "background"
    else:
        both = list(names[0])
        is_of_background = attributes[0] == "background"
    if owner is not None:
        return f"{both[0]} of the {owner}", f"{both[1]} of the {owner}s"
    if is_of_background or random.random() < 0.5:
        return both[0], both[1]
    thing = random.choice(THINGS)
    return f"{both[0]} of the {thing}", f"{both[1]} of the {thing}s"


def _foreign(attribute: str, random: Random, *, held_out: bool) -> str:
    if random.random() < 0.5:
        return random.choice(_chosen(FOREIGN_SENTENCES[attribute], held_out=held_out))
    noun = random.choice(random.choice(FOREIGN[attribute]))
    return random.choice(_chosen(FOREIGN_PATTERNS, held_out=held_out)).format(n=noun)


def _without_name(attribute: str, values: Sequence[str], random: Random, *, held_out: bool) -> str:
    thing = random.choice(("it", "this", *(f"the {name}" for name in THINGS[:3])))
    if len(values) > 1 and random.random() < 0.3:
        first, second = random.sample(list(values), 2)
        return random.choice(_chosen(VALUE_QUESTIONS, held_out=held_out)).format(o=thing, v=first, w=second)
    return random.choice(_chosen(OWN_QUESTIONS[attribute], held_out=held_out)).format(o=thing)


def _typed(text: str, random: Random) -> str:
    """Write a text as somebody types it: without the last mark, or politely."""
    if random.random() < 0.3:
        text = text.rstrip(".? ")
    if random.random() < 0.04:
        text = f"Please {text}" if random.random() < 0.5 else f"{text.rstrip('.')}, please"
    return text
