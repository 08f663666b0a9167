"""A ranking in the forms of Jina, Cohere (both versions) and text-embeddings-inference."""

from collections.abc import Sequence
from typing import Any, Literal

from services.generate.generation.ranking import Ranking
from services.generate.http.rerank_schemas import RerankDocument, RerankRequest, TeiRerankRequest

# Cohere bills a search for each so many documents.
DOCUMENTS_PER_SEARCH_UNIT = 100


def render_answer(
    body: RerankRequest, ranking: Ranking, *, id: str, model: str, cut: Sequence[int] = ()
) -> dict[str, Any]:
    """A RerankAnswer."""
    results: list[dict[str, Any]] = []
    for k in _best(body, ranking):
        document = {} if body.return_documents is False else {"document": _as_sent(body.documents[k])}
        results.append({"index": k, "relevance_score": ranking.relevance_scores[k], **document})
    usage = {"prompt_tokens": ranking.prompt_tokens, "total_tokens": ranking.prompt_tokens}
    return {"id": id, "model": model, "results": results, "usage": usage, "meta": _meta("1", body, cut)}


def render_answer_v2(body: RerankRequest, ranking: Ranking, *, id: str, cut: Sequence[int] = ()) -> dict[str, Any]:
    """A RerankAnswerV2."""
    results = [{"index": k, "relevance_score": ranking.relevance_scores[k]} for k in _best(body, ranking)]
    return {"id": id, "results": results, "meta": _meta("2", body, cut)}


def render_tei(body: TeiRerankRequest, ranking: Ranking) -> list[dict[str, Any]]:
    """TeiRanks, best first."""
    scores = ranking.scores if body.raw_scores else ranking.relevance_scores
    return [
        {"index": k, "score": scores[k], **({"text": body.texts[k]} if body.return_text else {})} for k in ranking.order
    ]


def _best(body: RerankRequest, ranking: Ranking) -> Sequence[int]:
    return ranking.order[: body.top_n or None]


def _as_sent(document: str | RerankDocument) -> dict[str, Any]:
    return {"text": document} if isinstance(document, str) else document.model_dump(exclude_unset=True)


def _meta(version: Literal["1", "2"], body: RerankRequest, cut: Sequence[int]) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "api_version": {"version": version},
        "billed_units": {"search_units": -(-len(body.documents) // DOCUMENTS_PER_SEARCH_UNIT)},
    }
    if cut:
        named = ", ".join(map(str, cut))
        meta["warnings"] = [f"Cut to {body.max_tokens_per_doc} tokens, as max_tokens_per_doc asks: document {named}."]
    return meta
