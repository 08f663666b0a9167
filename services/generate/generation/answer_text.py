"""An answer's tokens as append-only text.

A token may end in the middle of a character, and text may be the beginning of a stop string: both are held back until
this is decided, so that no emitted text has to be retracted.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.generate.generation.sampling import TokenChoice

# Decoders' replacement for bytes that are not a character, or not yet.
REPLACEMENT = "\ufffd"
# An incomplete character has at most three bytes, so bytes held back longer never become a character.
MAX_HELD_TOKENS = 64
# Tokens of a continued prompt: enough for a decoder to know that it is in the middle of a text.
NUM_CONTEXT_TOKENS = 8

Decode = Callable[[list[int]], str]
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class TokenOut:
    """A token of an answer. Only `token_id` is set unless log-probabilities were requested.

    `utf8` are the token's bytes, which may be part of a character. `top` are the most likely tokens in its
    place, the most likely first, without `top` of their own.
    """

    token_id: int
    utf8: bytes = b""
    logprob: float | None = None
    top: tuple["TokenOut", ...] = ()

    @property
    def text(self) -> str:
        """`utf8` as text, with invalid bytes replaced."""
        return self.utf8.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Piece:
    """Final text and its tokens; a token comes with the last part of its text."""

    text: str = ""
    tokens: tuple[TokenOut, ...] = ()


class Vocabulary:
    """Decoding by a fast tokenizer of transformers: token ids to text, and each id to its bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        decoder = self._backend.decoder
        self._kinds = _kinds(json.loads(decoder.__getstate__())) if decoder is not None else frozenset()
        self._added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
        self._known: dict[int, bytes] = {}

    def decode(self, token_ids: list[int]) -> str:
        """Decode token ids without special tokens and without cleaning up spaces."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=True)
        return text

    def token(self, choice: TokenChoice) -> TokenOut:
        """Add its bytes to a choice if it has log-probabilities."""
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
    """Converts token ids to text one by one; the joined pieces equal `decode` of all ids at once.

    The exception is after invalid bytes: if a decoder would then reinterpret earlier bytes, emitted text is kept.
    `context` are token ids of a text to be continued, so that a decoder which drops leading spaces keeps this one.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode = decode
        # Decoding is local: a few tokens before the new ones are enough, here those since the window last moved.
        self._window = list(context[-NUM_CONTEXT_TOKENS:])
        self._num_read = len(self._window)  # tokens of the window that had been emitted at the last move
        self._given = decode(self._window) if self._window else ""  # emitted text of the window

    def push(self, token_id: int) -> str:
        """Add a token, and return the text that becomes final with it."""
        self._window.append(token_id)
        return self._advance(is_last=len(self._window) - self._num_read > MAX_HELD_TOKENS)

    def flush(self) -> str:
        """Return the text that was held back."""
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
    """Cuts a text before the first stop string.

    The first stop string is the one that is complete first; of two that end together, the longer one. So the cut does
    not depend on how the text is divided. `found` is the one that has ended the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add text, and return the text that becomes final with it."""
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, start, self.found = min(found)
            self._held = ""
            return text[:start]
        certain = len(text) - self._num_uncertain(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return the text that was held back: no more text follows, so it is not a stop string."""
        held, self._held = self._held, ""
        return held

    def _num_uncertain(self, text: str) -> int:
        """Count the characters at the end that may begin a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        lengths = range(longest, 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)


class AnswerText:
    """Converts one answer's tokens to its text and the tokens of this text."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._num_read = 0  # characters decoded from the tokens
        self._num_given = 0
        # tokens that are held back, with the beginning and end of their text; the end is None until known
        self._held: deque[tuple[TokenOut, int, int | None]] = deque()

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string ended the answer."""
        return self._stops.found is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.found

    def push(self, token: TokenOut) -> Piece:
        """Return the text that becomes final with this token."""
        self._held.append((token, self._num_read, None))
        return self._give(self._detokenizer.push(token.token_id))

    def take(self, token: TokenOut, *, is_end: bool, is_last: bool) -> tuple[Piece, FinishReason | None]:
        """Return what becomes final with a token, and why the answer ends with it; None if it goes on.

        A token that `is_end` is the model's end of text, which is no text; `is_last` is the last that is allowed.
        """
        piece = Piece() if is_end else self.push(token)
        if (is_end or is_last) and not self.is_stopped:
            rest = self.finish()
            piece = Piece(piece.text + rest.text, piece.tokens + rest.tokens)
        if is_end or self.is_stopped:
            return piece, "stop"
        return piece, "length" if is_last else None

    def finish(self) -> Piece:
        """Return the rest after the last token. If it contains a stop string, the answer ends there."""
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
    """The characters with which byte-level tokenizers write bytes: printable Latin-1 unchanged, others from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): bytes([byte]) for byte in printable},
        **{chr(256 + place): bytes([byte]) for place, byte in enumerate(others)},
    }


_BYTE_OF = _byte_of_character()
