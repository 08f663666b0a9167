"""Request and response bodies of the score service: Fovea's own form, and vLLM's."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue

from services.core.http.bodies import JsonList
from services.core.http.request_fields import StrictRequest
from services.core.images.references import JsonImage
from services.core.serving.model_object import ModelObject
from services.score.negatives.kinds import PAPER_KINDS, Kind

# Seeds are what fits into eight bytes.
MAX_SEED = 2**63 - 1


class ScoreOptions(StrictRequest):
    """Options besides the image and its captions, in any form of request."""

    explain: bool = Field(default=False, description="Answer with a heatmap of each token of each caption.")
    truncate: bool = Field(default=False, description="Cut captions at the model's context length, not refuse them.")
    model: str | None = Field(None, description="Checked against the served model.")


class ScoreRequest(ScoreOptions):
    """One image and the captions to be told apart on it."""

    image: JsonImage = Field(description="Data URI, base64 or `http(s)` URL.")
    captions: JsonList[str] = Field(description="In any order; equal ones are computed once.")


class Usage(BaseModel):
    """`prompt_tokens` counts the tokens of every caption."""

    images: int
    prompt_tokens: int
    total_tokens: int


class CaptionScore(BaseModel):
    """Scores of one caption, `index` from 0."""

    index: int
    caption: str
    # "global" is a word of Python's
    global_: float = Field(alias="global", description="Cosine of the pooled embeddings.")
    local: float = Field(description="Mean cosine of a token and the patches that it attends to.")
    score: float = Field(description="What ranks: (1 - local_weight) x global + local_weight x local.")
    probability: float = Field(ge=0, le=1, description="Softmax of the scaled scores over all captions.")


class Explanation(BaseModel):
    """Attention of the tokens of one caption."""

    index: int
    tokens: list[str] = Field(
        description="Pieces of words; one that continues a word begins with `##`, the last is the end of the text."
    )
    heatmaps: list[list[list[float]]] = Field(
        description="Of each token rows x columns of patches: its attention from 0, least, to 1, most (Eq. 6)."
    )


class ScoreAnswer(BaseModel):
    """Scores in the order of the captions."""

    object: Literal["list"] = "list"
    model: str = Field(description="`name@version` of the checkpoint that answered.")
    best: int = Field(description="Index of the highest score, the first of equal ones.")
    scores: list[CaptionScore]
    explain: list[Explanation] | None
    usage: Usage


# One side of vLLM's pairs: a text, an image, vLLM's `{"content": [part]}`, or `{"image": …}` and `{"text": …}`.
VllmInput = str | dict[str, JsonValue]


class VllmScoreRequest(BaseModel):
    """vLLM's request; told apart by having no `image` and no `captions`.

    One input against one or many, or as many against as many; each pair is an image and a text, in either order.
    A string is an image where it is a data URI, an `http(s)` URL, or base64 of an image. The two sides may also be
    called `queries` and `documents`, `queries` and `items`, or `text_1` and `text_2`.
    """

    data_1: VllmInput | JsonList[VllmInput]
    data_2: VllmInput | JsonList[VllmInput]
    model: str | None = None
    truncate_prompt_tokens: Literal[-1] | None = Field(
        None, description="-1 cuts texts at the model's context length, not refuses them."
    )


class VllmScore(BaseModel):
    index: int
    object: Literal["score"] = "score"
    score: float


class VllmUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class VllmScoreAnswer(BaseModel):
    """vLLM's form: the scores alone, in the order of the pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="`name@version` of the checkpoint that answered.")
    data: list[VllmScore]
    usage: VllmUsage


class NegativesRequest(StrictRequest):
    """A caption to be made false while it stays a sentence."""

    caption: str
    kinds: Annotated[JsonList[Kind], Field(min_length=1)] = Field(
        list(PAPER_KINDS), description="In the order of the answer; each is answered once."
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="Equal requests of equal seeds get equal answers.")


class Negative(BaseModel):
    kind: Kind
    text: str


class NegativesAnswer(BaseModel):
    """A kind that the caption has no counterpart for is left out."""

    caption: str
    negatives: list[Negative]


class ModelLimits(BaseModel):
    """Limits of one request."""

    max_captions: int
    max_images: int
    max_explained_captions: int
    max_heatmap_numbers: int
    max_image_bytes: int
    max_image_pixels: int
    max_negative_characters: int


class HardNegativeSources(BaseModel):
    """Kinds and sources of hard negatives on this machine."""

    kinds: list[str]
    sources: dict[str, str | None] | None = Field(description="Null until they are loaded.")


class Model(ModelObject):
    """The served model, and how it mixes what it ranks by."""

    max_model_len: int = Field(description="Most tokens of a caption.")
    image_size: tuple[int, int] = Field(description="Height and width that every image is brought to.")
    patches: tuple[int, int] = Field(description="Rows and columns of a heatmap.")
    local_weight: float = Field(description="Of `local` in `score`; `global` has the rest.")
    logit_scale: float = Field(description="What scores are multiplied by ahead of the softmax.")
    limits: ModelLimits
    hard_negatives: HardNegativeSources


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]
