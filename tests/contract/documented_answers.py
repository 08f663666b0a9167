"""Requests that an OpenAPI document allows, or nearly, and whether their answers are as it says."""

from collections.abc import Iterator
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS: Any = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)


def operations(url: str, mode: GenerationMode) -> Iterator[Any]:
    """Yield the operations of the service at `url` of which such requests can be drawn."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        # schemathesis does not always manage to draw what the schema of decisions does not allow
        is_deniable = (operation.body or operation.query) and operation.path != "/v1/decisions"
        if mode == GenerationMode.POSITIVE or is_deniable:
            yield operation


def statuses_of(cases: st.SearchStrategy[Any]) -> set[int]:
    """Send what is generated, hold every answer against the document, and return the statuses seen."""
    seen: set[int] = set()

    @given(case=cases)
    # a request that fails is shown as it was: making it smaller would take minutes
    @settings(
        max_examples=60,
        phases=[Phase.generate],
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def answered_as_documented(case: Any) -> None:
        response = case.call()
        seen.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    answered_as_documented()
    return seen
