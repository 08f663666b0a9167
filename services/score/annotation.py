"""A caption as words with what grammar says of each: Penn tags, coarse kinds, noun chunks, verb phrases.

Two annotators say the same things: TextBlob's lexicon of tags, which needs nothing but its package, with rules of our
own for the phrases; and spaCy's small English model where it is installed. Only the first MAX_WORDS words are
annotated, which is more than a text encoder reads: what comes after them stays as it is, so that a caption of any
length takes bounded work.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Protocol

MAX_WORDS = 256
# no word is longer; a tagger is asked about no more of it
MAX_TAGGED_CHARACTERS = 48

# A contraction's second half stands for itself, as in the Penn treebank; a hyphen binds.
WORD = re.compile(
    r"n['’]t\b|['’](?:s|re|ve|ll|d|m)\b"
    r"|\d+(?:[.,:/]\d+)*"
    r"|[^\W\d_]+?(?=n['’]t\b)"
    r"|[^\W_]+(?:[-_][^\W_]+)*"
    r"|\.\.+|\S",
    re.IGNORECASE,
)
PUNCTUATION_TAGS = frozenset((".", ",", ":", "``", "''", "(", ")", "-LRB-", "-RRB-", "HYPH", "NFP"))

Span = tuple[int, int]  # half-open range of words


@dataclass(frozen=True)
class Annotation:
    """The words of a caption and what stands between them: joined again they are the caption."""

    words: tuple[str, ...]
    spaces: tuple[str, ...]  # what follows each word before the next, mostly " " or ""
    tags: tuple[str, ...]  # Penn
    kinds: tuple[str, ...]  # universal: NOUN, PROPN, PRON, VERB, AUX, ADJ, ADV, ADP, DET, NUM, PUNCT, …
    noun_chunks: tuple[Span, ...]  # in order, none overlaps
    verb_phrases: tuple[Span, ...]  # likewise
    lead: str = ""  # before the first word
    tail: str = ""  # after the last annotated one

    @cached_property
    def lowered(self) -> tuple[str, ...]:
        return tuple(map(str.lower, self.words))

    def text(self, span: Span) -> str:
        """What a span of words says, without what follows it."""
        start, end = span
        pairs = zip(self.words[start:end], (*self.spaces[start : end - 1], ""), strict=True)
        return "".join(part for pair in pairs for part in pair)

    def replaced(self, texts: Mapping[Span, str]) -> str:
        """The caption with other texts in place of spans, of which none overlaps."""
        parts, done = [self.lead], 0
        for (start, end), text in sorted(texts.items()):
            parts.extend(self._between(done, start))
            parts += (text, self.spaces[end - 1])
            done = end
        parts.extend(self._between(done, len(self.words)))
        return "".join((*parts, self.tail))

    def _between(self, start: int, end: int) -> Iterator[str]:
        for pair in zip(self.words[start:end], self.spaces[start:end], strict=True):
            yield from pair


class Annotator(Protocol):
    """What reads a caption's grammar."""

    @property
    def name(self) -> str: ...

    def annotate(self, caption: str) -> Annotation: ...


def split_words(caption: str) -> tuple[str, list[str], list[str], str]:
    """What is before the first word, at most MAX_WORDS words, what follows each, and the rest of the caption."""
    found = list(islice(WORD.finditer(caption), MAX_WORDS))
    if not found:
        return caption, [], [], ""
    spaces = [caption[one.end() : other.start()] for one, other in pairwise(found)]
    return caption[: found[0].start()], [match.group() for match in found], [*spaces, ""], caption[found[-1].end() :]


_KINDS = {"IN": "ADP", "TO": "PART", "CD": "NUM", "POS": "PART", "RP": "ADP", "CC": "CCONJ", "EX": "PRON", "UH": "INTJ"}
_STARTS = {"NNP": "PROPN", "NN": "NOUN", "JJ": "ADJ", "RB": "ADV", "MD": "AUX", "PR": "PRON", "DT": "DET", "WP": "PRON"}
_BE = frozenset(("am", "is", "are", "was", "were", "be", "been", "being", "'s", "'re", "'m", "’s", "’re", "’m"))
_HELPERS = frozenset(("have", "has", "had", "having", "do", "does", "did", "'ve", "’ve", "'d", "’d"))
NOUN_TAGS = frozenset(("NN", "NNS", "NNP", "NNPS"))
ADJECTIVE_TAGS = frozenset(("JJ", "JJR", "JJS"))


def kinds_of(words: Sequence[str], tags: Sequence[str]) -> list[str]:
    """The coarse kind of each word. A form of `be` always helps; `have` and `do` where a verb follows."""
    kinds = []
    for place, (word, tag) in enumerate(zip(words, tags, strict=True)):
        if tag in PUNCTUATION_TAGS:
            kind = "PUNCT"
        elif tag.startswith("V"):
            helps = word in _BE or (word in _HELPERS and _verb_follows(tags, place))
            kind = "AUX" if helps else "VERB"
        else:
            kind = _KINDS.get(tag) or _STARTS.get(tag[:3]) or _STARTS.get(tag[:2]) or "X"
        kinds.append(kind)
    return kinds


def _verb_follows(tags: Sequence[str], place: int) -> bool:
    following = next((tag for tag in tags[place + 1 : place + 4] if not tag.startswith("RB")), "")
    return following.startswith("V")


def verb_phrases(kinds: Sequence[str]) -> tuple[Span, ...]:
    """Runs of verb? adverb* helper* verb+, the longest from each place on."""
    letters = "".join({"VERB": "v", "ADV": "r", "AUX": "x"}.get(kind, ".") for kind in kinds)
    return tuple(match.span() for match in re.finditer("v?r*x*v+", letters))


def noun_chunks(tags: Sequence[str]) -> tuple[Span, ...]:
    """Determiner or possessive or number, then adjectives with their adverbs, then nouns: the longest of each."""
    letters = "".join(map(_chunk_letter, tags))
    pattern = r"(?:d*(?:r*[ajcv](?=[r,ajcvn]))*n+(?:'r*[ajv]*n+)*)"
    return tuple(match.span() for match in re.finditer(pattern, letters))


def _chunk_letter(tag: str) -> str:
    if tag in NOUN_TAGS:
        return "n"
    if tag in ADJECTIVE_TAGS:
        return "a"
    return {"DT": "d", "PDT": "d", "PRP$": "d", "CD": "c", "RB": "r", "RBR": "r", "VBN": "v", "POS": "'"}.get(tag, ".")


class TextBlobAnnotator:
    """Tags by TextBlob's lexicon of 94,000 English words and its endings, phrases by the rules above."""

    name = "textblob"

    def __init__(self) -> None:
        from textblob.en import parser

        self._parser = parser

    def annotate(self, caption: str) -> Annotation:
        lead, words, spaces, tail = split_words(caption)
        lowered = [word.lower() for word in words]
        tagged = self._parser.find_tags([word[:MAX_TAGGED_CHARACTERS] for word in lowered])
        tags = tuple(_mended(words, [tag or "NN" for _, tag in tagged]))
        kinds = tuple(kinds_of(lowered, tags))
        chunks, phrases = noun_chunks(tags), verb_phrases(kinds)
        return Annotation(tuple(words), tuple(spaces), tags, kinds, chunks, phrases, lead, tail)


_SIDES = frozenset(("left", "right"))


def _mended(words: Sequence[str], tags: list[str]) -> list[str]:
    """What the lexicon says of each word, where its neighbours tell better."""
    for place, word in enumerate(words):
        tag = tags[place]
        if tag.startswith("NNP") and not word[:1].isupper():
            tags[place] = "NNS" if word.endswith("s") and not word.endswith("ss") else "NN"
        if not any(map(str.isalnum, word)) and tag not in PUNCTUATION_TAGS and tag != "POS":
            tags[place] = ":"
        if word in _SIDES and "".join(words[place + 1 : place + 2]) == "of":
            tags[place] = "RB"
    return tags
