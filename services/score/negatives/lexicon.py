"""Words that can replace others so that a caption is no longer true of its picture.

They exclude each other: colors, sizes, shapes, materials, counts, and common things and actions.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from services.score.negatives.inflection import inflected

ADJECTIVES = (
    "red | green | blue | yellow | orange | purple violet | pink | brown | black | white | gray grey | beige tan | "
    "cyan turquoise | lime | navy | lavender | maroon | silver | golden gold",
    "small little tiny | large big huge",
    "smaller | larger bigger",
    "smallest | largest biggest",
    "tall | short",
    "long | short",
    "wide broad | narrow",
    "thick | thin",
    "old elderly | young",
    "new | old",
    "open | closed shut",
    "full | empty",
    "wet | dry",
    "clean | dirty",
    "light bright | dark",
    "hot | cold",
    "warm | cool",
    "happy | sad",
    "heavy | light",
    "smooth | rough",
    "soft | hard",
    "sunny | cloudy | rainy | snowy | foggy",
    "male | female",
    "left | right",
    "upper | lower",
    "modern | ancient",
    "fresh | rotten",
    "cooked | raw",
    "sharp | blunt",
    "high | low",
    "deep | shallow",
    "busy crowded | deserted",
    "round circular | square | triangular | rectangular | oval",
    "striped | dotted spotted | checkered checked | plain | floral",
    "wooden | metal metallic | plastic | glass | stone | leather | brick | concrete | ceramic | paper | rubber",
)
NUMBERS = ("two | three | four | five | six | seven | eight | nine | ten", "2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10")
NOUNS = (
    "circle | square | triangle | star | diamond | cross | ring | heart | rectangle | oval ellipse | pentagon | "
    "hexagon | crescent | arrow",
    "cube | sphere | cylinder | cone | pyramid",
    "person | animal | statue",
    "man guy | woman lady",
    "boy | girl",
    "baby | dog | cat",
    "dog puppy | cat kitten | horse | cow | sheep | bird | bear | elephant | giraffe | zebra | duck | goat | pig",
    "car | truck | bus | train | bicycle bike | motorcycle motorbike | boat | airplane plane | van | tram | scooter",
    "chair | couch sofa | bed | table | desk | bench | shelf | stool",
    "kitchen | bathroom | bedroom | office | garage | hallway",
    "street road | beach | field | forest | river | lake | mountain",
    "pizza | sandwich | cake | salad | soup | burger | donut doughnut | pasta",
    "apple | banana | orange | carrot | tomato | strawberry | pear | lemon",
    "cup mug | bottle | bowl | plate | glass | knife | fork | spoon",
    "shirt | jacket coat | hat cap | dress | scarf | tie | helmet",
    "skateboard | surfboard | snowboard | frisbee | kite | ball | umbrella",
    "laptop | phone cellphone | book | camera | television tv | keyboard | clock",
    "sink | toilet | bathtub | oven stove | refrigerator fridge | microwave",
    "wall | fence | tree | building house | bush | bridge | tower",
    "morning | evening | night",
    "top | bottom",
)
VERBS = (
    "sit | stand | lie | kneel | jump | sleep",
    "walk | run | swim | fly | climb",
    "push | pull",
    "hold carry | drop | throw | kick",
    "ride | push | repair",
    "open | close",
    "eat | cook | wash | throw",
    "drink | spill | pour",
    "laugh smile | cry",
    "wear | fold | sew",
)


Candidates = Sequence[tuple[str, float]]  # texts in the form of the given word, and positive weights


class Lexicon(Protocol):
    """Replacements of words."""

    def candidates(self, word: str, tag: str) -> Candidates:
        """List replacements of a lower-case word with a Penn tag, in the same form; an empty list if none is known."""
        ...


class Vocabulary:
    """The small vocabulary of `vocabulary.py`: words of a group replace each other, synonyms do not."""

    FORMS = (
        (ADJECTIVES, ("JJ", "JJR", "JJS")),
        (NUMBERS, ("CD",)),
        (NOUNS, ("NN", "NNS")),
        (VERBS, ("VB", "VBP", "VBZ", "VBG", "VBD", "VBN")),
    )
    # the first of several synonyms is the usual word
    SYNONYM_WEIGHT = 0.25

    def __init__(self) -> None:
        self._candidates: dict[tuple[str, str], list[tuple[str, float]]] = {}
        for groups, tags in self.FORMS:
            for group in groups:
                meanings = [meaning.split() for meaning in group.split("|")]
                for tag in tags:
                    self._enter([[inflected(word, tag) for word in words] for words in meanings], tag)

    def candidates(self, word: str, tag: str) -> Candidates:
        return self._candidates.get((word, tag), ())

    def _enter(self, meanings: Sequence[Sequence[str]], tag: str) -> None:
        for own in meanings:
            for word in own:
                entry = self._candidates.setdefault((word, tag), [])
                known = {text for text, _ in entry}
                for words in meanings:
                    if words is not own:
                        weights = (1.0, *(self.SYNONYM_WEIGHT for _ in words[1:]))
                        entry.extend(
                            (t, w) for t, w in zip(words, weights, strict=True) if t != word and t not in known
                        )


class FirstOf:
    """Several lexicons: the first that knows a word is used."""

    def __init__(self, lexicons: Iterable[Lexicon]) -> None:
        self._lexicons = tuple(lexicons)

    def candidates(self, word: str, tag: str) -> Candidates:
        return next((found for lexicon in self._lexicons if (found := lexicon.candidates(word, tag))), ())
