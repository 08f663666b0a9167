"""Haystack: a retriever over a collection's images, and a generator that answers from retrieved documents."""

from typing import Any

from fovea.client import Client
from fovea.documents import QueryKind, document, text_of

try:
    from haystack import Document, component
    from haystack.dataclasses import GeneratedAnswer
    from haystack.utils import Secret
except ModuleNotFoundError as missing:
    raise ImportError("fovea.haystack needs Haystack: pip install haystack-ai") from missing

API_KEY = Secret.from_env_var("FOVEA_API_KEY", strict=False)


@component
class FoveaRetriever:
    """Finds the images of a collection that are nearest to a query, under a condition.

    A document has the image's id and metadata, and as its content the metadata's `text_field` or the id. `run` takes
    `condition`, `k` and `filter` for one query. `by="image"` reads the file that a query names, so it is for queries
    that you trust.
    """

    def __init__(
        self,
        collection: str,
        *,
        condition: str | None = None,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
        model: str | None = None,
        by: QueryKind = "text",
        text_field: str | None = None,
        base_url: str | None = None,
        api_key: Secret = API_KEY,
        timeout: float = 60.0,
    ) -> None:
        self.collection = collection
        self.condition = condition
        self.k = k
        self.filter = filter
        self.model = model
        self.by = by
        self.text_field = text_field
        self.base_url = base_url
        self.api_key = api_key
        self.timeout = timeout
        self._client = Client(base_url, api_key=api_key.resolve_value(), timeout=timeout)

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        condition: str | None = None,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
    ) -> dict[str, list[Document]]:
        """Return the images as documents, the nearest first."""
        fields: dict[str, Any] = {self.by: query, "condition": condition or self.condition, "k": k or self.k}
        found = self._client.search(self.collection, **fields, filter=filter or self.filter, model=self.model)
        return {
            "documents": [
                Document(id=one["id"], content=text_of(one, self.text_field), meta=one["metadata"], score=one["score"])
                for one in found["results"]
            ]
        }

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@component
class FoveaGenerator:
    """Answers by `/generate`, from documents of any retriever.

    An answer has these documents, and as `meta` the rest of the route's answer: `documents` with the attention of
    each, `citations` and so on. `options` are fields of `Client.generate`.
    """

    def __init__(
        self,
        *,
        options: dict[str, Any] | None = None,
        base_url: str | None = None,
        api_key: Secret = API_KEY,
        timeout: float = 60.0,
    ) -> None:
        self.options = options
        self.base_url = base_url
        self.api_key = api_key
        self.timeout = timeout
        self._client = Client(base_url, api_key=api_key.resolve_value(), timeout=timeout)

    @component.output_types(answers=list[GeneratedAnswer])
    def run(self, query: str, documents: list[Document]) -> dict[str, list[GeneratedAnswer]]:
        """Return one answer from the documents that have text."""
        texts = [one for one in documents if one.content is not None]
        given = [document(one.content or "", one.id, one.meta) for one in texts]
        fields: dict[str, Any] = {"citations": True, **(self.options or {})}
        answer = self._client.generate(query, given, **fields)
        meta = {name: value for name, value in answer.items() if name != "answer"}
        return {"answers": [GeneratedAnswer(answer["answer"], query, texts, meta)]}

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
