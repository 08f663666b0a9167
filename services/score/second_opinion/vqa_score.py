"""VQAScore (Lin et al., "Evaluating text-to-visual generation with image-to-text generation", 2024).

    VQAScore(I, T) = P("Yes" | I, 'Does this figure show "T"? Please answer yes or no.')

under a vision-language model: the probability that the first token of its answer is "yes", in any spelling.
"""

import base64
import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from PIL import Image

# The most that OpenAI's API returns, and vLLM's by default.
NUM_TOP_TOKENS = 20
JPEG_QUALITY = 95
# What stands around a word in a token: spaces and marks, and the signs that vocabularies of SentencePiece and of bytes
# have for spaces and line breaks, which some servers return.
AROUND_WORDS = " \t\n.,:;!\"'`*“”‘’▁ĠĊ"


def question(caption: str) -> str:
    """The question about a caption, as the paper asks it."""
    return f'Does this figure show "{caption}"? Please answer yes or no.'


def request_body(model: str, image_url: str, caption: str) -> dict[str, Any]:
    """A chat completion of one token, with the most probable tokens in its place."""
    parts = [
        {"type": "image_url", "image_url": {"url": image_url}},
        {"type": "text", "text": question(caption)},
    ]
    return {
        "model": model,
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": NUM_TOP_TOKENS,
    }


def yes_probability(first_token: Mapping[str, float]) -> float | None:
    """The probability of "yes" from the log-probabilities of an answer's first token.

    None if neither "yes" nor "no" is among them: then the model did not answer the question.
    """
    total = {"yes": 0.0, "no": 0.0}
    for token, logprob in first_token.items():
        word = token.strip(AROUND_WORDS).lower()
        if word in total:
            total[word] += math.exp(logprob)
    return min(total["yes"], 1.0) if any(total.values()) else None


def jpeg_url(image: Image.Image, max_side: int) -> str:
    """Encode an RGB image, at most `max_side` pixels wide and high, as a data URL."""
    smaller = image.copy()
    smaller.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    encoded = BytesIO()
    smaller.save(encoded, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(encoded.getvalue()).decode()}"
