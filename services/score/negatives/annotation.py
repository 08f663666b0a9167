"""Annotation of a caption's words: Penn tags, coarse kinds, noun chunks, verb phrases.

Two annotators have the same output: TextBlob's lexicon of tags, which needs only its package, with our own rules for
the phrases; and spaCy's small English model if it is installed. Only the first MAX_WORDS words are annotated, more than
a text encoder reads: the rest stays unchanged, so that a caption of any length takes bounded work.
"""

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Protocol

from services.score.negatives.tagging import PUNCTUATION_TAGS, Tagger, textblob_lexicon

MAX_WORDS = 256

# nor are more characters of a caption read than this
MAX_CHARACTERS = 4_096

# A word is a run of characters between white space and marks, so that all kinds of scripts and emoji stay whole;
# hyphenated words and letters with full stops ("a.m.") are one word, and the second half of a contraction is a separate
# word, as in the Penn treebank.
_MARK = r"!-/:-@\[-`{-~‐-‧‹›«»¡¿…"
_LETTERS = rf"[^\s{_MARK}]+"
_CLITIC = r"['’](?:s|re|ve|ll|d|m)\b"
_WORD = re.compile(
    rf"n['’]t\b|{_CLITIC}"
    r"|(?:\b[a-z]\.){2,}"
    r"|\d+(?:[.,:/]\d+)+"
    rf"|{_LETTERS}?(?=n['’]t\b)"
    rf"|{_LETTERS}(?:(?:[-_]|['’](?!(?:s|re|ve|ll|d|m|t)\b)){_LETTERS})*"
    r"|\.\.+|[^\s]",
    re.IGNORECASE,
)

Span = tuple[int, int]  # half-open range of words


@dataclass(frozen=True, eq=False)
class Annotation:
    """The words of a caption and the texts between them: concatenated they give the caption."""

    words: tuple[str, ...]
    spaces: tuple[str, ...]  # between each word and the next, usually " " or ""
    tags: tuple[str, ...]  # Penn
    kinds: tuple[str, ...]  # universal: NOUN, PROPN, PRON, VERB, AUX, ADJ, ADV, ADP, DET, NUM, PUNCT, …
    noun_chunks: tuple[Span, ...]  # in order, without overlaps
    verb_phrases: tuple[Span, ...]  # likewise
    lead: str = ""  # before the first word
    tail: str = ""  # after the last annotated one

    @cached_property
    def lowered(self) -> tuple[str, ...]:
        return tuple(map(str.lower, self.words))

    @cached_property
    def _pieces(self) -> tuple[str, ...]:
        return tuple(map(str.__add__, self.words, self.spaces))

    def text(self, span: Span) -> str:
        """Return the text of a span of words, without what follows it."""
        start, end = span
        return "".join((*self._pieces[start : end - 1], self.words[end - 1]))

    def replaced(self, texts: Mapping[Span, str]) -> str:
        """Return the caption with spans, which do not overlap, replaced by other texts."""
        parts, done = [self.lead], 0
        for (start, end), text in sorted(texts.items()):
            parts += (*self._pieces[done:start], text, self.spaces[end - 1])
            done = end
        return "".join((*parts, *self._pieces[done:], self.tail))

    def starts_sentence(self, place: int) -> bool:
        """Tell whether only marks stand between a word and the start of the caption or the previous full stop."""
        is_first = all(kind == "PUNCT" for kind in self.kinds[:place])
        return is_first or self.words[place - 1] in (".", "!", "?")


class Annotator(Protocol):
    """An annotator of captions."""

    @property
    def name(self) -> str: ...

    def annotate(self, caption: str) -> Annotation: ...


def split_words(caption: str) -> tuple[str, list[str], list[str], str]:
    """Split into the text before the first word, the words, what follows each, and the rest after the limits."""
    read = caption[:MAX_CHARACTERS]
    found = list(islice(_WORD.finditer(read), MAX_WORDS))
    if found and len(read) < len(caption) and found[-1].end() == len(read):
        found.pop()  # cut in two
    if not found:
        return "", [], [], caption
    spaces = [read[one.end() : other.start()] for one, other in pairwise(found)]
    return (
        read[: found[0].start()],
        [sys.intern(match.group()) for match in found],
        [*spaces, ""],
        caption[found[-1].end() :],
    )


_KINDS = {"IN": "ADP", "TO": "PART", "CD": "NUM", "POS": "PART", "RP": "ADP", "CC": "CCONJ", "EX": "PRON", "UH": "INTJ"}
_STARTS = {"NNP": "PROPN", "NN": "NOUN", "JJ": "ADJ", "RB": "ADV", "MD": "AUX", "PR": "PRON", "DT": "DET", "WP": "PRON"}
_BE = frozenset(("am", "is", "are", "was", "were", "be", "been", "being", "'s", "'re", "'m", "’s", "’re", "’m"))
_HELPERS = frozenset(("have", "has", "had", "having", "do", "does", "did", "'ve", "’ve", "'d", "’d"))
NOUN_TAGS = frozenset(("NN", "NNS", "NNP", "NNPS"))
ADJECTIVE_TAGS = frozenset(("JJ", "JJR", "JJS"))


def kinds_of(words: Sequence[str], tags: Sequence[str]) -> list[str]:
    """Tag each word with its coarse kind. Forms of `be` are always auxiliary; `have` and `do` if a verb follows."""
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
    """Find spans of verb? adverb* auxiliary* verb+: the longest of those that overlap, and of equal ones the first."""
    letters = "".join([_VERB_LETTERS.get(kind, ".") for kind in kinds])
    chosen: list[Span] = []
    for run in _VERB_RUN.finditer(letters):
        found = {(start, end) for start in range(*run.span()) for end in _verb_ends(letters, start)}
        for start, end in sorted(found, key=lambda span: (span[0] - span[1], span[0])):
            if all(end <= other[0] or other[1] <= start for other in chosen):
                chosen.append((start, end))
    return tuple(sorted(chosen))


_VERB_LETTERS = {"VERB": "v", "ADV": "r", "AUX": "x"}
_VERB_RUN = re.compile("[vrx]*v")
_BEFORE_VERBS = re.compile("r*x*")


def _verb_ends(letters: str, start: int) -> Iterator[int]:
    """Yield the possible ends of verb phrases that start here."""
    for opened in (start, start + 1) if letters[start] == "v" else (start,):
        match = _BEFORE_VERBS.match(letters, opened)
        end = match.end() if match else opened
        while letters[end : end + 1] == "v":
            end += 1
            yield end


def noun_chunks(tags: Sequence[str]) -> tuple[Span, ...]:
    """Find chunks: determiner, possessive or number, adjectives with adverbs, nouns; the longest at each place.

    Adjectives may be joined ("a black and white picture"), and a possessor is in the same chunk as its possession.
    """
    return tuple(match.span() for match in _CHUNK.finditer("".join([_CHUNK_LETTERS.get(tag, ".") for tag in tags])))


_CHUNK_LETTERS = {
    **dict.fromkeys(NOUN_TAGS, "n"),
    **dict.fromkeys(ADJECTIVE_TAGS, "a"),
    **dict.fromkeys(("DT", "PDT", "PRP$"), "d"),
    **dict.fromkeys(("RB", "RBR", "RBS"), "r"),
    **{"VBN": "v", "VBG": "g", "CD": "c", "POS": "'", "CC": "k"},
}
_PROPERTIES = "(?:r*[ac](?:kr*a)?)*"
_CHUNK = re.compile(f"d*{_PROPERTIES}(?:(?<=[dacr])[vg]{_PROPERTIES})?n+(?:v(?=n)n+)?(?:'{_PROPERTIES}n+)*")


class TextBlobAnnotator:
    """Tags from TextBlob's lexicon of English words, phrases by the rules above."""

    name = "textblob"

    def __init__(self) -> None:
        self._tagger = Tagger(textblob_lexicon())

    def __reduce__(self) -> tuple[type["TextBlobAnnotator"], tuple[()]]:
        return TextBlobAnnotator, ()

    def annotate(self, caption: str) -> Annotation:
        lead, words, spaces, tail = split_words(caption)
        tags = self._tagger.tags(words)
        kinds = kinds_of([word.lower() for word in words], tags)
        return Annotation(
            words=tuple(words),
            spaces=tuple(spaces),
            tags=tuple(tags),
            kinds=tuple(kinds),
            noun_chunks=noun_chunks(tags),
            verb_phrases=verb_phrases(kinds),
            lead=lead,
            tail=tail,
        )


# unpaired surrogates, which spaCy cannot handle
_SURROGATES = re.compile("[\ud800-\udfff]")


class SpacyAnnotator:
    """Tags, kinds and noun chunks from a spaCy model of English, as in the released code of FSC-CLIP."""

    def __init__(self, model: str = "en_core_web_sm") -> None:
        import spacy

        self._model = model
        self._pipeline = spacy.load(model, exclude=["ner", "lemmatizer"])
        self.name = f"spacy {model} {self._pipeline.meta['version']}"

    def __reduce__(self) -> tuple[type["SpacyAnnotator"], tuple[str]]:
        return SpacyAnnotator, (self._model,)

    def annotate(self, caption: str) -> Annotation:
        tail = split_words(caption)[3]
        if not tail.strip() and len(caption) <= MAX_CHARACTERS:
            tail = ""  # a parse may depend on white space at the end
        read = caption[: len(caption) - len(tail)]
        document = self._pipeline.make_doc(_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", read))
        if len(document) > MAX_WORDS:  # spaCy's words are shorter than ours
            document = document[:MAX_WORDS].as_doc()
            read, tail = read[: len(document.text)], read[len(document.text) :] + tail
        document = self._pipeline(document)
        tokens = [token for token in document if not token.is_space]
        starts = [token.idx for token in tokens]
        ends = [token.idx + len(token.text) for token in tokens]
        following = [*starts, len(read)][1:]
        places = {token.i: place for place, token in enumerate(tokens)}
        kinds = tuple(token.pos_ for token in tokens)
        chunks = [[places[token.i] for token in chunk if token.i in places] for chunk in document.noun_chunks]
        return Annotation(
            words=tuple(read[start:end] for start, end in zip(starts, ends, strict=True)),
            spaces=tuple(read[end:start] for end, start in zip(ends, following, strict=True)),
            tags=tuple(token.tag_ for token in tokens),
            kinds=kinds,
            noun_chunks=tuple((chunk[0], chunk[-1] + 1) for chunk in chunks if chunk),
            verb_phrases=verb_phrases(kinds),
            lead=read[: starts[0]] if starts else read,
            tail=tail,
        )


def best_annotator() -> Annotator:
    """Return spaCy if its small English model is installed, else TextBlob's lexicon. Raises ModuleNotFoundError."""
    if importlib.util.find_spec("spacy") and importlib.util.find_spec("en_core_web_sm"):
        return SpacyAnnotator()
    return TextBlobAnnotator()
