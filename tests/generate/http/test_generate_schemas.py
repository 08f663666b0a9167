"""The cost of refusing a body is bounded: a list's first invalid item is reported, very long lists are not read."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from services.core.documents import MAX_LISTED
from services.core.errors import TooLarge
from services.core.refusals import complaint_about
from services.generate.http.generate_routes import GenerateRequest
from services.generate.http.openai_schemas import MAX_PROMPTS, ChatRequest, CompletionRequest
from services.generate.http.rerank_routes import RerankRequest, TeiRerankRequest

MANY = 2000
MESSAGE = {"role": "user", "content": "q"}
CHAT = {"messages": [MESSAGE]}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (GenerateRequest, {"query": "q", "documents": [5] * MANY}),
        (GenerateRequest, {"query": "q", "documents": [{"text": 5}] * MANY}),
        (GenerateRequest, {"query": "q", "stop": [5] * MANY}),
        (GenerateRequest, {"query": "q", "calibration": {"layers": ["a"] * MANY}}),
        (ChatRequest, {"messages": [5] * MANY}),
        (ChatRequest, {"messages": [{**MESSAGE, "content": [5] * MANY}]}),
        (ChatRequest, {**CHAT, "documents": [5] * MANY}),
        (ChatRequest, {**CHAT, "stop": [5] * MANY}),
        (CompletionRequest, {"prompt": [5] * MANY + ["a"]}),
        (CompletionRequest, {"prompt": [-5] * MANY}),
        (CompletionRequest, {"prompt": [{}] * MAX_PROMPTS}),
        (CompletionRequest, {"prompt": [[-5] * MANY] * MAX_PROMPTS}),
        (RerankRequest, {"query": "q", "documents": [5] * MANY}),
        (RerankRequest, {"query": "q", "documents": ["a"], "rank_fields": [5] * MANY}),
        (TeiRerankRequest, {"query": "q", "texts": [5] * MANY}),
    ],
)
def test_of_the_bad_items_of_a_list_only_the_first_is_complained_of(
    model: type[BaseModel], body: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)

    # a union complains once for each of its members
    assert refused.value.error_count() <= 5


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        (GenerateRequest, {"query": "q", "documents": [None] * (MAX_LISTED + 1)}, "documents"),
        (ChatRequest, {**CHAT, "documents": [None] * (MAX_LISTED + 1)}, "documents"),
        (RerankRequest, {"query": "q", "documents": [None] * (MAX_LISTED + 1)}, "documents"),
        (ChatRequest, {"messages": [None] * (MAX_LISTED + 1)}, "messages"),
        (ChatRequest, {"messages": [{"content": [None] * (MAX_LISTED // 2)}] * 2}, "messages"),
        (CompletionRequest, {"prompt": [None] * (MAX_PROMPTS + 1)}, "prompt"),
    ],
)
def test_very_long_lists_are_refused_ahead_of_their_items(
    model: type[BaseModel], body: dict[str, Any], param: str
) -> None:
    with pytest.raises(TooLarge, match=rf"{param}: The request asks for \d+ .+; the limit is \d+") as refused:
        model.model_validate(body)

    assert refused.value.param == param


def test_a_prompt_may_have_more_tokens_than_there_may_be_prompts() -> None:
    ids = [5] * 10 * MAX_PROMPTS

    assert CompletionRequest.model_validate({"prompt": ids}).prompt == ids


@pytest.mark.parametrize("model", [GenerateRequest, ChatRequest])
def test_the_schema_says_where_a_reordering_puts_the_best_document(model: type[BaseModel]) -> None:
    """As `services.generate.generation.ranking.reorder` does it, and as the guide says."""
    described = model.model_json_schema()["properties"]["reorder"]["description"]
    assert "the most relevant comes first" in described
    assert "with `attention` (attention sorting), the most attended comes last" in described


@pytest.mark.parametrize(
    ("model", "body"), [(GenerateRequest, {"query": "q"}), (ChatRequest, CHAT), (RerankRequest, {"query": "q"})]
)
def test_a_document_of_another_type_is_told_which_types_there_are(model: type[BaseModel], body: dict[str, Any]) -> None:
    given = {**body, "documents": [None]}
    with pytest.raises(ValidationError) as refused:
        model.model_validate(given)
    told = complaint_about(refused.value, given, "the body")
    assert told == "documents.0: Input should be a text or an object"
