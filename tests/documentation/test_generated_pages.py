"""The README and the pages say what the code and the recorded results say."""

import inspect

import pytest

from fovea import calls
from tests.documentation.api import document
from tests.documentation.blocks import PAGES, ROOT, names, render
from tests.documentation.client_schemas import CLIENT_SCHEMAS, client_schemas, titled_objects
from tests.documentation.pages import WRITERS

# Every service's application is made and every command's help is asked for.
pytestmark = pytest.mark.slow


def test_every_generated_block_equals_what_the_code_and_the_recorded_results_give() -> None:
    differing = [
        path.relative_to(ROOT).as_posix() for path in PAGES if render(path.read_text(), WRITERS) != path.read_text()
    ]
    assert differing == [], "write them anew: python -m tests.documentation"


def test_each_usage_has_a_title_of_its_own() -> None:
    titles = [schema.get("title", "") for schema in document()["components"]["schemas"].values()]
    usages = [title for title in titles if title.endswith("Usage")]
    assert "PredictUsage" in usages
    assert len(usages) == len(set(usages))


def test_the_clients_types_are_those_of_the_openapi_document() -> None:
    assert CLIENT_SCHEMAS.read_text() == client_schemas(), "write them anew: python -m tests.documentation"


@pytest.mark.parametrize(
    ("method", "request_of_the_route", "left_out"),
    [
        ("embed", "EmbedRequest", set()),
        ("search", "SearchRequest", set()),
        ("create_collection", "CreateRequest", {"created"}),
        ("add_images", "AddRequest", set()),
        ("update_image", "PatchRequest", set()),
        ("generate", "GenerateRequest", {"stream"}),
        ("rerank", "RerankRequest", {"rank_fields", "instruction"}),
        ("predict", "PredictRequest", set()),
        ("score", "ScoreRequest", set()),
        ("hard_negatives", "NegativesRequest", {"caption"}),
        ("decide", "DecisionRequest", {"prompt_cache_key", "prompt_cache_options", "safety_identifier"}),
    ],
)
def test_a_clients_method_takes_the_fields_of_its_route(
    method: str, request_of_the_route: str, left_out: set[str]
) -> None:
    fields = set(titled_objects()[request_of_the_route]["properties"])
    # the path and the query name the collection, the image, and whether to wait
    parameters = set(inspect.signature(getattr(calls, method)).parameters) - (
        {"collection", "name", "id", "wait"} - fields
    )
    assert parameters == fields - left_out


def test_every_block_stands_on_one_page() -> None:
    assert sorted(name for path in PAGES for name in names(path.read_text())) == sorted(WRITERS)


def test_a_changed_figure_is_noticed() -> None:
    page = "Text.\n\n<!-- generated: figure -->\n\n| 1.0 |\n\n<!-- end -->\n\nMore text.\n"
    assert render(page, {"figure": lambda: "| 1.0 |\n"}) == page
    assert render(page, {"figure": lambda: "| 2.0 |\n"}) == page.replace("1.0", "2.0")


def test_a_block_without_a_writer_is_an_error() -> None:
    with pytest.raises(KeyError, match="unknown"):
        render("<!-- generated: unknown -->\n<!-- end -->\n", WRITERS)
