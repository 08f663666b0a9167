"""Requests of the clients' methods: each a route with its fields, by the names that they have there.

What is None is left out of a request, so that the service's default holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NotRequired, TypedDict, TypeVar
from urllib.parse import quote

import httpx2

from fovea.errors import unreadable
from fovea.images import Image, encoded, listed
from fovea.schemas import (
    Access,
    AddedImages,
    CalibrationOptions,
    ChoiceQuestion,
    Collection,
    CollectionList,
    Decision,
    DocumentInput,
    EmbeddingList,
    EncodingFormat,
    GenerateAnswer,
    ImageEntry,
    ImageList,
    ModelList,
    NegativeKind,
    NegativesList,
    NegativesMethod,
    PredicateQuestion,
    PredictAnswer,
    Reorder,
    RerankAnswer,
    RerankDocument,
    RerankMethod,
    ScoreAnswer,
    ScoreQuestion,
    SearchResults,
    TaskList,
)

T = TypeVar("T")
Filter = Mapping[str, Any]


class NewImage(TypedDict):
    """An image to add to a collection; its id is by default the SHA-256 of its bytes."""

    image: Image
    id: NotRequired[str]
    metadata: NotRequired[Mapping[str, Any]]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request whose answer is a `T`: JSON, unless it `returns` a file's bytes or nothing."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, Any] | None = None
    returns: str = "json"

    def answer(self, response: httpx2.Response) -> Any:
        """Return the answer that a successful response holds. Raises FoveaError if it holds none."""
        if self.returns != "json":
            return response.content if self.returns == "bytes" else None
        try:
            return response.json()
        except ValueError:
            raise unreadable(response) from None


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _collection(name: str) -> str:
    return f"/collections/{quote(name, safe='')}"


def _image(collection: str, id: str) -> str:
    return f"{_collection(collection)}/images/{quote(id)}"


def _with_image(image: NewImage) -> Any:
    # what else is wrong with an entry is told by the service, with its place and field
    return {**image, "image": encoded(image["image"])} if isinstance(image, Mapping) and "image" in image else image


def embed(
    *,
    texts: Sequence[str] | None = None,
    images: Sequence[Image] | None = None,
    condition: str | Sequence[str] | None = None,
    model: str | None = None,
    encoding_format: EncodingFormat | None = None,
    dimensions: int | None = None,
) -> Call[EmbeddingList]:
    """Embed images, each under every condition, and texts."""
    body = _given(
        texts=texts,
        images=None if images is None else [encoded(image) for image in listed("images", images)],
        condition=condition,
        model=model,
        encoding_format=encoding_format,
        dimensions=dimensions,
    )
    return Call("POST", "/embed", body)


def search(
    collection: str,
    *,
    text: str | None = None,
    image: Image | None = None,
    id: str | None = None,
    condition: str | None = None,
    k: int | None = None,
    filter: Filter | None = None,
    model: str | None = None,
) -> Call[SearchResults]:
    """Find the images of a collection nearest to a text, an image or one of its own, under a condition."""
    body = _given(
        text=text,
        image=None if image is None else encoded(image),
        id=id,
        condition=condition,
        k=k,
        filter=filter,
        model=model,
    )
    return Call("POST", f"{_collection(collection)}/search", body)


def collections() -> Call[CollectionList]:
    """List all collections, by name."""
    return Call("GET", "/collections")


def collection(name: str) -> Call[Collection]:
    """Return a collection's size and the progress of its indexes."""
    return Call("GET", _collection(name))


def create_collection(
    name: str, *, model: str | None = None, conditions: Sequence[str] | None = None, access: Access | None = None
) -> Call[Collection]:
    """Create a collection, or confirm that it exists, index more conditions and change what it takes."""
    return Call("PUT", _collection(name), _given(model=model, conditions=conditions, access=access))


def delete_collection(name: str) -> Call[None]:
    """Remove a collection with all its images."""
    return Call("DELETE", _collection(name), returns="nothing")


def add_images(collection: str, images: Sequence[NewImage], *, wait: bool = False) -> Call[AddedImages]:
    """Add all of the images or none; with `wait` they are indexed when it returns, or its time is nearly over."""
    body = {"images": [_with_image(image) for image in listed("images", images)]}
    return Call("POST", f"{_collection(collection)}/images", body, {"wait": wait})


def images(collection: str, *, after: str | None = None, limit: int | None = None) -> Call[ImageList]:
    """List a collection's images with their metadata, one page at a time: the last id is the next page's `after`."""
    return Call("GET", f"{_collection(collection)}/images", params=_given(after=after, limit=limit))


def image(collection: str, id: str) -> Call[bytes]:
    """Return an image as it was uploaded."""
    return Call("GET", _image(collection, id), returns="bytes")


def update_image(collection: str, id: str, metadata: Mapping[str, Any]) -> Call[ImageEntry]:
    """Change an image's metadata by a merge patch: null removes a field, and fields that are not named stay."""
    return Call("PATCH", _image(collection, id), {"metadata": metadata})


def delete_image(collection: str, id: str) -> Call[None]:
    """Remove an image."""
    return Call("DELETE", _image(collection, id), returns="nothing")


def generate(
    query: str,
    documents: Sequence[str | DocumentInput] | None = None,
    *,
    model: str | None = None,
    calibration: CalibrationOptions | None = None,
    reorder: Reorder | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    stop: Sequence[str] | None = None,
    seed: int | None = None,
    explain: bool | None = None,
    citations: bool | None = None,
) -> Call[GenerateAnswer]:
    """Answer a question over documents, with `citations` also which of them support each sentence."""
    body = _given(
        query=query,
        documents=documents,
        model=model,
        calibration=calibration,
        reorder=reorder,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        stop=stop,
        seed=seed,
        explain=explain,
        citations=citations,
    )
    return Call("POST", "/generate", body)


def rerank(
    query: str,
    documents: Sequence[str | RerankDocument],
    *,
    top_n: int | None = None,
    return_documents: bool | None = None,
    max_tokens_per_doc: int | None = None,
    method: RerankMethod | None = None,
    instruct: str | None = None,
    model: str | None = None,
) -> Call[RerankAnswer]:
    """Rank documents by their relevance to a query, best first."""
    body = _given(
        query=query,
        documents=documents,
        top_n=top_n,
        return_documents=return_documents,
        max_tokens_per_doc=max_tokens_per_doc,
        method=method,
        instruct=instruct,
        model=model,
    )
    return Call("POST", "/v1/rerank", body)


def tasks() -> Call[TaskList]:
    """List the tasks of `predict`, with the fields of their inputs."""
    return Call("GET", "/tasks")


def predict(
    inputs: Sequence[Mapping[str, Any]],
    *,
    task: str | None = None,
    model: str | None = None,
    rationale: bool | None = None,
    probabilities: bool | None = None,
) -> Call[PredictAnswer]:
    """Predict the labels of inputs of a task, on request with all probabilities and rationales."""
    body = _given(inputs=inputs, task=task, model=model, rationale=rationale, probabilities=probabilities)
    return Call("POST", "/predict", body)


def score(
    image: Image,
    captions: Sequence[str],
    *,
    explain: bool | None = None,
    truncate: bool | None = None,
    vqa_top_k: int | None = None,
    model: str | None = None,
) -> Call[ScoreAnswer]:
    """Score captions of an image, on request with a heatmap of each word."""
    fields = _given(explain=explain, truncate=truncate, vqa_top_k=vqa_top_k, model=model)
    return Call("POST", "/score", {"image": encoded(image), "captions": captions, **fields})


def hard_negatives(
    captions: Sequence[str],
    *,
    method: NegativesMethod | None = None,
    kinds: Sequence[NegativeKind] | None = None,
    seed: int | None = None,
) -> Call[NegativesList]:
    """Make similar captions that are not true of their images, at most one of each kind."""
    return Call("POST", "/hard-negatives", _given(captions=captions, method=method, kinds=kinds, seed=seed))


def decide(
    model: str,
    input: str | Sequence[Mapping[str, Any]],
    questions: Sequence[PredicateQuestion | ChoiceQuestion | ScoreQuestion],
    *,
    documents: Sequence[str | DocumentInput] | None = None,
    teacher: str | None = None,
) -> Call[Decision]:
    """Answer questions about a text or messages, or over documents, by the probability of every option.

    The `image_url` of a part of a message takes an image in any form. `teacher` is the model that decides what its
    student is not certain of.
    """
    items = input if isinstance(input, str) else [_with_images(item) for item in input]
    body = _given(model=model, input=items, questions=questions, documents=documents, teacher=teacher)
    return Call("POST", "/v1/decisions", body)


def models() -> Call[ModelList]:
    """List the models of all services, each as its service describes it."""
    return Call("GET", "/v1/models")


def _with_images(item: Mapping[str, Any]) -> Mapping[str, Any]:
    content = item.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return item
    parts = [{**part, "image_url": encoded(part["image_url"])} if "image_url" in part else part for part in content]
    return {**item, "content": parts}
