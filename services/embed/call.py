"""A call to embed inputs and its result, the limits of one, and the engine of a checkpoint as its callers see it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from PIL import Image

from services.core.batching.batcher import Answer, Batcher, Batchers, Engine, Submission
from services.core.batching.slices import all_or_first_failure
from services.core.images.inputs import ImageInput
from services.core.images.references import ImageLimits
from services.core.serving.served_checkpoint import CheckpointEngine, Served
from services.embed.model.items import Embeddings, Item, Pixels, Reading
from services.nn.clip_texts import Text

EMBEDDINGS_PER_INPUT = 4
EncodingFormat = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]


class EmbedModel(CheckpointEngine, Engine[Item, Reading], Protocol):
    """The engine of a checkpoint, as used by service and collections. Everything except batches runs on any thread."""

    @property
    def context_length(self) -> int: ...
    @property
    def embedding_width(self) -> int: ...
    @property
    def dtype_name(self) -> str: ...
    @property
    def image_side(self) -> int | None: ...
    @property
    def state_bytes(self) -> int | None: ...

    def prepare_text(self, text: str, *, truncate: bool = False) -> Text: ...

    def prepare_condition(self, text: str, *, truncate: bool = False) -> Text: ...

    def prepare_beside(self, text: str, *, truncate: bool = False) -> Text: ...

    def prepare_image(self, image: Image.Image, digest: str, conditions: Sequence[Text | None]) -> Sequence[Item]: ...

    def transform(self, image: Image.Image) -> Pixels: ...

    def prepare_pixels(
        self, pixels: Pixels, digest: str, conditions: Sequence[Text | None], *, keeps_state: bool = False
    ) -> Sequence[Item]: ...

    def cost(self, item: Item) -> int: ...


@dataclass(frozen=True)
class EmbedBatchers(Batchers):
    """The queues of one engine, on one compute thread."""

    images: Batcher[Item, Reading]
    texts: Batcher[Item, Reading]

    async def submit(
        self, submissions: Sequence[Submission[Item]], *, deadline: float | None = None
    ) -> list[Answer[Reading]]:
        """Answer all items, in order; see `Batcher.submit`."""
        by_kind: dict[bool, list[Submission[Item]]] = {}
        for one in submissions:
            by_kind.setdefault(isinstance(one.item, Text), []).append(one)
        answers = await all_or_first_failure(
            [
                (self.texts if is_text else self.images).submit(own, deadline=deadline)
                for is_text, own in by_kind.items()
            ]
        )
        next_of = dict(zip(by_kind, map(iter, answers), strict=True))
        return [next(next_of[isinstance(one.item, Text)]) for one in submissions]


ServedEmbed = Served[EmbedModel, EmbedBatchers]


@dataclass(frozen=True)
class CallLimits:
    """Limits of one call; a call that exceeds one is rejected with an error that names the limit and the value."""

    max_inputs: int = 4096
    max_conditions: int = 64
    images: ImageLimits = field(default_factory=ImageLimits)
    max_k: int = 1000
    max_json_values: int = 262_144

    @property
    def max_embeddings(self) -> int:
        return EMBEDDINGS_PER_INPUT * self.max_inputs


@dataclass(frozen=True)
class TextInput:
    text: str
    param: str


@dataclass(frozen=True)
class PairInput:
    """An image and a text beside it, which make one embedding."""

    image: ImageInput
    text: TextInput

    @property
    def param(self) -> str:
        return self.image.param


Input = ImageInput | TextInput | PairInput


def parts_of(one: Input) -> tuple[ImageInput | None, TextInput | None]:
    """Return an input's image and its text."""
    if isinstance(one, PairInput):
        return one.image, one.text
    return (one, None) if isinstance(one, ImageInput) else (None, one)


@dataclass(frozen=True)
class EmbedCall:
    """Inputs in the order of the request. Each image by itself is embedded under each of `conditions`, or without any.

    `is_tei` calls are answered in TEI's format. `dimensions_in` is the field that gave `dimensions`.
    """

    inputs: Sequence[Input] = ()
    conditions: Sequence[str] = ()
    model: str | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = None
    dimensions_in: str = "dimensions"
    truncate: bool = False
    is_tei: bool = False


@dataclass(frozen=True)
class Embedded:
    """`rows` (N, E) in the order of the inputs, an image's in the order of the conditions, and the condition of each.

    `model` is the `name@version` that computed them.
    """

    rows: Embeddings
    conditions: list[str | None]
    num_images: int
    prompt_tokens: int
    model: str
