"""Calls of the score service and their results."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.core.images.inputs import ImageInput
from services.core.images.references import ImageLimits
from services.score.engine import Cosines
from services.score.model.features import Heatmaps


@dataclass(frozen=True)
class CallLimits:
    """Limits of one call, by the settings' names; a call beyond them is rejected with the limit and its value."""

    max_captions: int
    max_images: int
    max_explained_captions: int
    max_heatmap_numbers: int
    max_image_bytes: int
    max_image_pixels: int
    max_negative_characters: int
    max_negative_captions: int
    max_vqa_captions: int

    @property
    def images(self) -> ImageLimits:
        return ImageLimits(max_image_bytes=self.max_image_bytes, max_pixels=self.max_image_pixels)


@dataclass(frozen=True)
class Caption:
    """A caption from a request; `param` is its field, for error messages."""

    text: str
    param: str


def captions_of(texts: Sequence[str]) -> list[Caption]:
    """Name the captions of a list by their places in its field."""
    return [Caption(text, f"captions.{index}") for index, text in enumerate(texts)]


@dataclass(frozen=True)
class ScoreCall:
    """Images and captions of a request; `pairs` are places in `images` and `captions`, in the order of the response.

    `is_vllm` calls get a response in vLLM's format; in all other calls, the pairs are the only image with each caption.
    A second model is asked about the `vqa_top_k` captions of the highest scores.
    """

    images: Sequence[ImageInput] = ()
    captions: Sequence[Caption] = ()
    pairs: Sequence[tuple[int, int]] = ()
    model: str | None = None
    explain: bool = False
    truncate: bool = False
    vqa_top_k: int | None = None
    is_vllm: bool = False


@dataclass(frozen=True)
class Explained:
    """The compared tokens of one caption (W strings), and each one's attention, (W, rows, columns)."""

    tokens: list[str]
    heatmaps: Heatmaps


@dataclass(frozen=True)
class Scored:
    """Similarities of the call's R pairs, (R,) float32 each; `explained` for each pair, or None if not requested.

    `model` is the `name@version` that computed them; its `logit_scale` turns them into probabilities, and with its
    `logit_bias`, None for a model trained with a softmax, into those of single pairs. Local ones are NaN for a model
    that has none. `vqa` has the probabilities of `vqa_model`, None for the pairs that it was not asked about or did not
    answer; without a second opinion there are none.
    """

    global_cosines: Cosines
    local_cosines: Cosines
    scores: Cosines
    explained: list[Explained] | None
    num_images: int
    prompt_tokens: int
    model: str
    logit_scale: float
    logit_bias: float | None = None
    vqa: Sequence[float | None] | None = None
    vqa_model: str | None = None

    @property
    def best(self) -> int:
        """The pair of the highest score, or of the highest `vqa` if there is one, where ties go to the higher score.

        The first in a tie of both.
        """
        known = {place: vqa for place, vqa in enumerate(self.vqa or ()) if vqa is not None}
        if not known:
            return int(self.scores.argmax())
        return max(known, key=lambda place: (known[place], self.scores[place]))
