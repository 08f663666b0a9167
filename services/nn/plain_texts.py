"""Clients' texts as a tokenizer reads them best: without its control tokens or characters that it never learned.

Texts of web pages, PDFs and phones have many forms of a space, of a quotation mark or of an "fi", and characters that
nobody sees. A model whose vocabulary was not learned from texts with such forms would read strange bytes.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

# Forms of punctuation that Unicode does not call compatible with ASCII's.
_PUNCTUATION = {"'": "‘’‚‛′ʹʼ‹›", '"': "“”„‟″«»", "-": "‐‑‒–—―−", "/": "⁄∕"}
# Compatible forms that mean the same; fractions and raised or lowered digits would change a number.
_SAME_MEANING = ("<wide>", "<narrow>", "<noBreak>", "<compat>", "<font>")
# Characters that look like a space and are none, and those without a sign of their own that are no format characters.
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
_UNSEEN = "\u034f\u17b4\u17b5" + "".join(map(chr, range(0xFE00, 0xFE10)))
# A word that a hyphen divides at the end of a line, as in PDFs.
_DIVIDED = re.compile("\xad[ \t]*\r?\n[ \t]*")
# Planes with characters of these kinds: the basic one, letters of mathematics, tags.
_RANGES = (range(0x10000), range(0x1D400, 0x1D800), range(0xE0000, 0xE0200))


def _byte_characters() -> dict[int, int]:
    """Map the characters that stand for bytes in the vocabulary of a byte-level BPE (as GPT-2's) to their bytes."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printed]
    return {**{byte: byte for byte in printed}, **{0x100 + place: byte for place, byte in enumerate(others)}}


_BYTES = _byte_characters()


@functools.cache
def _plain_forms() -> dict[int, str]:
    """Map each character that has a plainer form to it: a space, nothing, or what it is compatible with."""
    forms = {ord(one): plain for plain, written in _PUNCTUATION.items() for one in written}
    for code in (code for codes in _RANGES for code in codes if code not in forms):
        character = chr(code)
        kind, decomposition = unicodedata.category(character), unicodedata.decomposition(character)
        if character.isspace() or character in _BLANK:
            forms[code] = " "
        elif kind in ("Cf", "Cc") or character in _UNSEEN:
            forms[code] = ""
        elif decomposition.startswith(_SAME_MEANING):
            forms[code] = unicodedata.normalize("NFKC", character)
    return {code: plain for code, plain in forms.items() if chr(code) not in " \t\n\r\x0b\x0c"}


def is_blank(text: str) -> bool:
    """Whether a text has no character that can be seen."""
    return not text.translate(_plain_forms()).strip()


class PlainTexts:
    """The form in which a tokenizer is given clients' texts.

    A character of which its vocabulary has no token becomes its plain form: white space a space, an invisible one
    nothing, a curly quote a straight one, a ligature or a full-width digit what it is compatible with, an accent that
    follows its letter one character with it. White space at the ends is cut off and runs of it become one space, unless
    the vocabulary has a token for a run: then the model was trained on texts as they are written. Control tokens that a
    text spells, such as `<end_of_text>` or `[SEP]`, are broken up.
    """

    def __init__(self, vocabulary: Iterable[str], controls: Iterable[str], *, ignores_case: bool = False) -> None:
        """`vocabulary` has the tokens as the tokenizer's files write them, `controls` the texts of control tokens."""
        known, has_runs_of_spaces = _learned(frozenset(vocabulary))
        self._forms = {code: plain for code, plain in _plain_forms().items() if chr(code) not in known}
        self._composes = not any(unicodedata.combining(one) for one in known)
        self._joins_spaces = not has_runs_of_spaces
        longest_first = sorted(filter(str.strip, controls), key=len, reverse=True)
        flags = re.IGNORECASE if ignores_case else 0
        # what never matches, where there are none
        self._controls = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", flags)

    @classmethod
    def of(cls, tokenizer: Any, *controls: str) -> "PlainTexts":
        """Return the form for a fast tokenizer of transformers; its added tokens and `controls` are control tokens."""
        added = {token.content for token in tokenizer.added_tokens_decoder.values()}
        return cls(tokenizer.get_vocab().keys() - added, added | set(controls))

    def characters(self, text: str) -> str:
        """Return a text with plain characters and white space."""
        if not text.isascii():
            text = _DIVIDED.sub("\xad", text)
            text = (unicodedata.normalize("NFC", text) if self._composes else text).translate(self._forms)
        elif not text.isprintable():
            text = text.translate(self._forms)
        return " ".join(text.split()) if self._joins_spaces else text

    def lines(self, text: str) -> str:
        """Return a text with plain characters and its line breaks, of which conversations are made."""
        if not self._joins_spaces:
            return self.characters(text)
        return "\n".join(map(self.characters, _DIVIDED.sub("", text).splitlines())).strip()

    def break_up(self, text: str) -> str:
        """Put a space after the first character of each control token in a text: `<pad>` becomes `< pad>`."""
        return self._controls.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def __call__(self, text: str) -> str:
        """Return a text with plain characters and no control token."""
        return self.break_up(self.characters(text))


@functools.lru_cache(maxsize=8)  # models of one family share a vocabulary, and CLIP's takes long
def _learned(vocabulary: frozenset[str]) -> tuple[frozenset[str], bool]:
    """Return the characters beyond ASCII that tokens stand for, and whether a token is a run of white space."""
    texts = list(_texts_of(vocabulary))
    return frozenset().union(*texts), any(len(text) > 1 and text.isspace() for text in texts)


def _texts_of(vocabulary: Iterable[str]) -> Iterator[str]:
    """Yield what tokens stand for, of those that tell anything: with characters beyond ASCII, or white space alone.

    A byte of a character stands for nothing by itself, and neither does a single ASCII character, which every
    vocabulary of bytes has.
    """
    tokens = [token.removesuffix("</w>") for token in vocabulary]
    is_of_bytes = set().union(*tokens) <= set(map(chr, _BYTES))
    for token in tokens:
        if is_of_bytes and not token.isascii():
            token = token.translate(_BYTES).encode("latin-1").decode(errors="ignore")
        text = token.replace("▁", " ")
        if not text.isascii() or (len(text) > 1 and text.isspace()):
            yield text
