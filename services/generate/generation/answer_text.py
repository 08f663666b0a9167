"""An answer's tokens as text that is only ever added to.

A token may end in half a character, and text may be the beginning of a stop string: both are held back until it is
clear what they are, so that nothing that was given away has to be taken back.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from services.generate.generation.sampling import TokenChoice

# Decoders' replacement for bytes that are no character, or none yet.
REPLACEMENT = "\ufffd"
# Half a character is at most three bytes, so what is held back longer is not going to become one.
MAX_HELD_TOKENS = 64
# Tokens of a continued prompt: enough for a decoder to tell that it is in the middle of a text.
NUM_CONTEXT_TOKENS = 8

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class TokenOut:
    """A token of an answer. Everything but `token_id` is there only where log-probabilities were asked for.

    `utf8` are the token's bytes, which may be part of a character. `top` are the most likely tokens in its
    place, the most likely first, without `top` of their own.
    """

    token_id: int
    utf8: bytes = b""
    logprob: float | None = None
    top: tuple["TokenOut", ...] = ()

    @property
    def text(self) -> str:
        """`utf8` as far as it is text; what is not, is marked."""
        return self.utf8.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Piece:
    """Text that is certain by now, and the tokens that it is made of; a token comes with the last of its text."""

    text: str = ""
    tokens: tuple[TokenOut, ...] = ()


class Vocabulary:
    """A fast tokenizer of transformers, read backwards: token ids to text, and each to its bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        decoder = self._backend.decoder
        self._kinds = _kinds(json.loads(decoder.__getstate__())) if decoder is not None else frozenset()
        self._added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
        self._known: dict[int, bytes] = {}

    def decode(self, token_ids: list[int]) -> str:
        """Decode token ids without special tokens and without any tidying of spaces."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=True)
        return text

    def token(self, choice: TokenChoice) -> TokenOut:
        """A choice with its bytes, if it has log-probabilities."""
        if choice.logprob is None:
            return TokenOut(choice.token_id)
        top = tuple(TokenOut(i, self.utf8(i), logprob) for i, logprob in choice.top)
        return TokenOut(choice.token_id, self.utf8(choice.token_id), choice.logprob, top)

    def utf8(self, token_id: int) -> bytes:
        """The bytes of one token in the middle of a text; empty for an id that the tokenizer does not know."""
        if token_id not in self._known:
            self._known[token_id] = self._read(token_id)
        return self._known[token_id]

    def _read(self, token_id: int) -> bytes:
        if token_id in self._added:
            return str(self._added[token_id]).encode()
        piece: str | None = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if "ByteLevel" in self._kinds:
            return b"".join(_BYTE_OF[c] if c in _BYTE_OF else c.encode() for c in piece)
        if "ByteFallback" in self._kinds and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes.fromhex(piece[3:5])
        return piece.replace("▁", " ").encode()


class Detokenizer:
    """Token ids to text, one by one; the pieces, joined, are what `decode` makes of all of them at once.

    Except after bytes that are no text: where a decoder would then read bytes before them anew, text that was given
    out is kept. `context` are token ids of the text that is continued, if it is: a decoder that drops the space a text
    begins with then keeps it.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode = decode
        # Decoding is local: a few tokens before the new ones are enough, here those from the last move on.
        self._window = list(context[-NUM_CONTEXT_TOKENS:])
        self._num_read = len(self._window)  # tokens of the window that had been given away at the last move
        self._given = decode(self._window) if self._window else ""  # of the window's text

    def push(self, token_id: int) -> str:
        """The text that is certain with this token, and was not before."""
        self._window.append(token_id)
        return self._advance(is_last=len(self._window) - self._num_read > MAX_HELD_TOKENS)

    def flush(self) -> str:
        """The text that was held back, whatever it is."""
        return self._advance(is_last=True)

    def _advance(self, *, is_last: bool) -> str:
        text = self._decode(self._window)
        certain = text if is_last else text.rstrip(REPLACEMENT)
        if not certain.startswith(self._given):
            if not is_last and self._given.startswith(certain):
                return ""
            self._window, self._num_read, self._given = self._window[self._num_read :], 0, ""
            text = self._decode(self._window)
            certain = text if is_last else text.rstrip(REPLACEMENT)
        new = certain[len(self._given) :]
        self._given = certain
        if certain == text and (new or is_last):
            self._window = self._window[self._num_read :]
            self._num_read = len(self._window)
            self._given = self._decode(self._window)
        return new


class StopStrings:
    """Cuts a text before the first stop string, or behind it where it is to be kept.

    First is the one that is complete first, of two that end together the longer: the cut does not depend on how the
    text is divided. `is_found` tells that the text has ended.
    """

    def __init__(self, stops: Sequence[str], *, is_kept: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._is_kept = is_kept
        self._held = ""
        self.is_found = False

    def push(self, text: str) -> str:
        """The text that is certain with this, and was not before."""
        if not self._stops:
            return text
        if self.is_found:
            return ""
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, start = min(found)
            self.is_found, self._held = True, ""
            return text[:end] if self._is_kept else text[:start]
        certain = len(text) - self._num_uncertain(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """The text that was held back: no more is to come, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _num_uncertain(self, text: str) -> int:
        """Characters at the end that a stop string begins with."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        lengths = range(longest, 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)


class AnswerText:
    """One answer: its tokens in, its text and the tokens of this text out."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._num_read = 0  # characters that came out of the tokens
        self._num_given = 0
        # tokens that are held back, and where their text begins and ends; the end is None until it is known
        self._held: deque[tuple[TokenOut, int, int | None]] = deque()

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string ended the answer."""
        return self._stops.is_found

    def push(self, token: TokenOut) -> Piece:
        """Return the text that is certain with this token."""
        self._held.append((token, self._num_read, None))
        return self._give(self._detokenizer.push(token.token_id))

    def finish(self) -> Piece:
        """Return the rest when no token is to come. A stop string may show up in it; the answer then ends there."""
        piece = self._give(self._detokenizer.flush())
        if self.is_stopped:
            return piece
        rest = self._stops.flush()
        tokens = (*piece.tokens, *(token for token, _, _ in self._held))
        self._held.clear()
        return Piece(piece.text + rest, tokens)

    def _give(self, read: str) -> Piece:
        if read:
            self._num_read += len(read)
            ends = ((token, begin, self._num_read if end is None else end) for token, begin, end in self._held)
            self._held = deque(ends)
        text = self._stops.push(read)
        self._num_given += len(text)
        tokens = []
        while self._held and self._is_given(*self._held[0][1:]):
            tokens.append(self._held.popleft()[0])
        if self.is_stopped:
            self._held.clear()
        return Piece(text, tuple(tokens))

    def _is_given(self, begin: int, end: int | None) -> bool:
        if self.is_stopped:
            return begin < self._num_given
        return end is not None and end <= self._num_given


def _kinds(decoder: dict[str, Any]) -> frozenset[str]:
    """Return the types of a decoder and of all its parts."""
    return frozenset({decoder["type"]}).union(*map(_kinds, decoder.get("decoders", ())))


def _byte_of_character() -> dict[str, bytes]:
    """The characters that byte-level tokenizers write bytes as: printable Latin-1 as itself, others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): bytes([byte]) for byte in printable},
        **{chr(256 + place): bytes([byte]) for place, byte in enumerate(others)},
    }


_BYTE_OF = _byte_of_character()
