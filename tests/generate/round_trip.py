"""Whether documents are where a prompt says that they are."""

from collections.abc import Sequence
from typing import Any

from services.generate.prompts.templates import Piece, Prompt


def check_round_trip(tokenizer: Any, pieces: Sequence[Piece], prompt: Prompt) -> None:
    """Raise ValueError, naming the document, unless every span of `prompt` decodes to exactly its piece's text.

    Tokenizers that normalise (lower case, NFKC) do not pass, and need not.
    """
    mark = tokenizer("x", add_special_tokens=False).input_ids
    for piece in pieces:
        if piece.document is None:
            continue
        start, end = prompt.spans[piece.document]
        # behind a mark, because decoders drop the space that a text begins with
        decoded = tokenizer.decode(mark + list(prompt.input_ids[start:end]), clean_up_tokenization_spaces=False)
        if decoded != f"x{piece.text}":
            message = f"document {piece.document} decodes to {decoded[1:]!r} instead of {piece.text!r}"
            raise ValueError(message)
