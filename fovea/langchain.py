"""LangChain: a retriever over a collection's images, and a runnable that answers from retrieved documents."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from pydantic import Field

from fovea.client import Client, Event
from fovea.documents import AnyClient, QueryKind, asked, document, events, sync, text_of
from fovea.schemas import DocumentInput, SearchResults

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableGenerator
    from langchain_core.runnables.utils import AddableDict, aadd, add
except ModuleNotFoundError as missing:
    raise ImportError("fovea.langchain needs LangChain: pip install langchain-core") from missing


class FoveaRetriever(BaseRetriever):
    """Finds the images of a collection that are nearest to a query, under a condition.

    A document's `id` is the image's, its text the metadata's `text_field` or the id, and its metadata the image's with
    `score`. `invoke` takes `condition`, `k`, `filter` and `model` for one query. `by="image"` reads the file that a
    query names, so it is for queries that you trust.
    """

    collection: str
    condition: str | None = None
    k: int | None = None
    filter: dict[str, Any] | None = None
    model: str | None = None
    by: QueryKind = "text"
    text_field: str | None = None
    client: AnyClient = Field(default_factory=Client)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **changes: Any
    ) -> list[Document]:
        return self._documents(sync(self.client).search(self.collection, **self._fields(query, changes)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **changes: Any
    ) -> list[Document]:
        return self._documents(await asked(self.client, "search", self.collection, **self._fields(query, changes)))

    def _fields(self, query: str, changes: dict[str, Any]) -> dict[str, Any]:
        own = {"condition": self.condition, "k": self.k, "filter": self.filter, "model": self.model}
        return {self.by: query, **own, **changes}

    def _documents(self, found: SearchResults) -> list[Document]:
        return [
            Document(text_of(one, self.text_field), id=one["id"], metadata={**one["metadata"], "score": one["score"]})
            for one in found["results"]
        ]


class FoveaGenerator(RunnableGenerator[dict[str, Any], AddableDict]):
    """Answers `{"question": …, "documents": […]}` by `/generate`, from documents of any retriever.

    The result is the route's answer: `answer`, `documents` with the attention of each, `citations` and so on; `stream`
    gives the answer's text as it is written. `options` are fields of `Client.generate`.
    """

    def __init__(self, client: AnyClient | None = None, **options: Any) -> None:
        super().__init__(self._answer, self._aanswer, name=type(self).__name__)
        self.client = client or Client()
        self.options = {"citations": True, **options}

    def _answer(self, inputs: Iterator[dict[str, Any]]) -> Iterator[AddableDict]:
        question, documents = _request(add(inputs))
        for event in sync(self.client).generate_stream(question, documents, **self.options):
            yield _chunk(event)

    async def _aanswer(self, inputs: AsyncIterator[dict[str, Any]]) -> AsyncIterator[AddableDict]:
        question, documents = _request(await aadd(inputs))
        async for event in events(self.client, question, documents, **self.options):
            yield _chunk(event)


def _request(given: Any) -> tuple[str, list[DocumentInput]]:
    if not isinstance(given, dict) or not {"question", "documents"} <= given.keys():
        raise ValueError('FoveaGenerator takes {"question": a text, "documents": a list of LangChain documents}')
    documents = [Document(one) if isinstance(one, str) else one for one in given["documents"]]
    return given["question"], [document(one.page_content, one.id, one.metadata) for one in documents]


def _chunk(event: Event) -> AddableDict:
    return AddableDict(answer=event["delta"]) if "delta" in event else AddableDict({"answer": "", **event})
