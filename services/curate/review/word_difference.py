"""Words in which two captions differ."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

# Words with their hyphens and apostrophes, single other signs, and what lies between them.
_TOKENS = re.compile(r"\w+(?:[-'’]\w+)*|\s+|[^\w\s]")
# A run of text, and whether the other caption lacks it.
Run = tuple[str, bool]


def word_difference(first: str, second: str) -> tuple[list[Run], list[Run]]:
    """Return both captions as runs of text, those marked that the other lacks; the runs of each join to the whole.

    Words are compared as written, except for their case.
    """
    tokens = (_TOKENS.findall(first), _TOKENS.findall(second))
    words = [[(place, token) for place, token in enumerate(side) if not token.isspace()] for side in tokens]
    first_words, second_words = ([token.casefold() for _, token in side] for side in words)
    matcher = SequenceMatcher(None, first_words, second_words, autojunk=False)
    same: tuple[set[int], set[int]] = (set(), set())
    for block in matcher.get_matching_blocks():
        same[0].update(place for place, _ in words[0][block.a : block.a + block.size])
        same[1].update(place for place, _ in words[1][block.b : block.b + block.size])
    return _runs(tokens[0], same[0]), _runs(tokens[1], same[1])


def _runs(tokens: Sequence[str], same: set[int]) -> list[Run]:
    def is_marked(place: int) -> bool:
        if tokens[place].isspace():  # between two marked words
            return 0 < place < len(tokens) - 1 and is_marked(place - 1) and is_marked(place + 1)
        return place not in same

    return list(_joined((token, is_marked(place)) for place, token in enumerate(tokens)))


def _joined(runs: Iterable[Run]) -> list[Run]:
    joined: list[Run] = []
    for text, is_marked in runs:
        if joined and joined[-1][1] == is_marked:
            joined[-1] = (joined[-1][0] + text, is_marked)
        else:
            joined.append((text, is_marked))
    return joined
