"""Questions to the services, and how their responses are read and judged."""

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Service = Literal["embed", "score", "generate", "predict"]
Form = Literal["gallery", "nearest", "caption", "answer", "chat", "rank", "label", "number"]

SERVICES: tuple[Service, ...] = ("embed", "score", "generate", "predict")
PATHS: Mapping[Form, str] = {
    "gallery": "/embed",
    "nearest": "/embed",
    "caption": "/score",
    "answer": "/generate",
    "chat": "/v1/chat/completions",
    "rank": "/v1/rerank",
    "label": "/predict",
    "number": "/predict",
}
# A response without `relevance` is read by its words alone.
RELEVANCE_THRESHOLD = 0.5
_REFUSAL = re.compile(
    r"\b(?:do not|don't|does not|doesn't|did not|didn't|cannot|can't|could not|couldn't|unable to)\b.{0,12}"
    r"\b(?:say|know|tell|mention|state|contain|answer|find|provide|include)"
    r"|\b(?:not|isn't|aren't|wasn't)"
    r" (?:said|known|told|mentioned|stated|given|specified|provided|found|available|enough)"
    r"|\bnot in the (?:documents?|text|passages?)|\bunknown\b|\bunanswerable\b"
    r"|\bno (?:relevant |such )?(?:answer|information|mention|documents?|passages?)\b"
    r"|\b(?:none of|nothing in) the (?:documents|passages)\b",
    re.IGNORECASE,
)


class BadResponse(Exception):
    """A response without the fields of its route; the message can be shown to users."""


@dataclass(frozen=True)
class Question:
    """A request and what is right, by its form.

    | form | `right` | `choices` |
    | --- | --- | --- |
    | gallery | for each condition, the class of each image | |
    | nearest | the index of the image that is nearest to the first | all other indices |
    | caption, rank | the index of the caption or document; None if no document answers | all indices |
    | answer, chat | texts of which the answer holds one; empty if it has to be a refusal | each document's answer |
    | label | the label | all labels |
    | number | the number | |

    `document` is the index of the document that answers.
    """

    form: Form
    body: Mapping[str, Any]
    right: Any
    choices: tuple[Any, ...] = ()
    document: int | None = None

    @property
    def is_answerable(self) -> bool:
        return self.right is not None and self.right != ()


@dataclass(frozen=True)
class Reply:
    """A response, read by the question's form. Of a request that was rejected, every field has its default.

    `given` is the index of an image, a caption or a document, a label, a number, a text, or for each condition the
    images' embeddings.
    """

    given: Any = None
    probability: float | None = None
    document: int | None = None
    relevance: float | None = None
    scores: tuple[float, ...] = ()
    model: str | None = None


@dataclass(frozen=True)
class Asked:
    """A question, its reply, and the relevance below which an answer counts as a refusal."""

    question: Question
    reply: Reply = field(default_factory=Reply)
    threshold: float = RELEVANCE_THRESHOLD

    @property
    def is_right(self) -> bool:
        given, right = self.reply.given, self.question.right
        match self.question.form:
            case "number":
                return given is not None and math.isclose(given, right, rel_tol=1e-6)
            case "answer" | "chat":
                return self._holds(right) if right else self.is_refusal
            case _:
                return given is not None and bool(given == right)

    @property
    def is_refusal(self) -> bool:
        """Whether a text answers that it does not know, or its relevance says so."""
        reply = self.reply
        if reply.given is None:
            return False
        return bool(_REFUSAL.search(reply.given)) or (reply.relevance is not None and reply.relevance < self.threshold)

    def _holds(self, right: tuple[str, ...]) -> bool:
        """Whether the text holds a right answer and none of the wrong ones."""
        if self.reply.given is None:
            return False
        text = _plain(self.reply.given)
        wrong = [choice for choice in self.question.choices if choice not in right]
        return any(_plain(one) in text for one in right) and not any(_plain(one) in text for one in wrong)


def _plain(text: str) -> str:
    """Keep the words in lower case, without articles, possessive endings and punctuation, between spaces."""
    words = [word.removesuffix("'s") for word in re.findall(r"[\w'-]+", text.casefold().replace("’", "'"))]
    return f" {' '.join(word for word in words if word not in ('a', 'an', 'the'))} "


def read_response(question: Question, response: Any) -> Reply:
    """Read a response of the question's route. Raises BadResponse."""
    try:
        return _READERS[question.form](question, response)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise BadResponse(f"the response of {PATHS[question.form]} does not have its fields") from None


def _gallery(question: Question, response: Any) -> Reply:
    embeddings: list[NDArray[np.float64]] = []
    num_conditions = len(question.right)
    rows = sorted(response["data"], key=lambda row: row["index"])
    for number in range(num_conditions):
        vectors = [_vector(row["embedding"]) for row in rows[number::num_conditions]]
        embeddings.append(np.stack(vectors))
    if len(rows) != num_conditions * len(question.right[0]):
        raise ValueError
    return Reply(embeddings, model=response.get("model"))


def _nearest(_question: Question, response: Any) -> Reply:
    """Find the image whose cosine with the first is greatest."""
    first, *others = (_vector(row["embedding"]) for row in sorted(response["data"], key=lambda row: row["index"]))
    cosines = [float(first @ other / np.linalg.norm(other)) for other in others]
    return Reply(1 + int(np.argmax(cosines)), model=response.get("model"))


def _vector(embedding: Any) -> NDArray[np.float64]:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), "<f4").astype(np.float64)
    return np.asarray(embedding, dtype=np.float64)


def _caption(_question: Question, response: Any) -> Reply:
    probabilities = [one["probability"] for one in response["scores"]]
    scores = [one["score"] for one in response["scores"]]
    best = max(range(len(scores)), key=scores.__getitem__)
    is_tie = scores.count(scores[best]) > 1
    return Reply(None if is_tie else best, probabilities[best], model=response.get("model"))


def _answer(_question: Question, response: Any) -> Reply:
    documents = response["documents"]
    scores = [one["attention"] if one["relevance"] is None else one["relevance"] for one in documents]
    document = max(range(len(scores)), key=scores.__getitem__) if scores else None
    return Reply(
        response["answer"], document=document, relevance=response.get("relevance"), model=response.get("model")
    )


def _chat(_question: Question, response: Any) -> Reply:
    text = response["choices"][0]["message"]["content"]
    return Reply(text, relevance=response.get("relevance"), model=response.get("model"))


def _rank(question: Question, response: Any) -> Reply:
    results = response["results"]
    by_index = {one["index"]: float(one["relevance_score"]) for one in results}
    scores = tuple(by_index[index] for index in range(len(question.body["documents"])))
    return Reply(results[0]["index"], by_index[results[0]["index"]], scores=scores, model=response.get("model"))


def _prediction(question: Question, response: Any) -> Reply:
    (prediction,) = response["predictions"]
    given = prediction["value"] if question.form == "number" else prediction["label"]
    confidence = prediction.get("confidence")
    probability = prediction["probability"] if confidence is None else confidence
    return Reply(given, probability, model=response.get("model"))


_READERS = {
    "gallery": _gallery,
    "nearest": _nearest,
    "caption": _caption,
    "answer": _answer,
    "chat": _chat,
    "rank": _rank,
    "label": _prediction,
    "number": _prediction,
}
