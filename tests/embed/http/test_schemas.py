"""The cost of refusing a body is bounded: only the first invalid item of a list is reported."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from services.embed.collections.answers import CreateRequest
from services.embed.collections.http.schemas import AddRequest, FormMetadata, SearchRequest
from services.embed.http.schemas import EmbeddingsRequest, EmbedRequest, TeiRequest

MANY = 2000


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (EmbedRequest, {"images": [5] * MANY}),
        (EmbedRequest, {"texts": [5] * MANY}),
        (EmbedRequest, {"texts": ["a"], "condition": [5] * MANY}),
        (EmbeddingsRequest, {"input": [5] * MANY}),
        (EmbeddingsRequest, {"input": [{"image": 5}] * MANY}),
        (EmbeddingsRequest, {"input": "a", "condition": [5] * MANY}),
        (TeiRequest, {"inputs": [5] * MANY}),
        (AddRequest, {"images": [5] * MANY}),
        (CreateRequest, {"conditions": [5] * MANY}),
        (FormMetadata, {"metadata": {str(name): 5 for name in range(MANY)}}),
        (SearchRequest, {"text": "a", "condition": [5] * MANY}),
    ],
)
def test_of_the_bad_items_of_a_list_only_the_first_is_complained_of(
    model: type[BaseModel], body: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)

    # a union complains once for each of its members
    assert refused.value.error_count() <= 5
