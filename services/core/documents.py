"""The documents of a request, as generate's routes and decisions take them."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo

from services.core.errors import check_count
from services.core.strict_requests import JsonList, StrictRequest

# Far above any reasonable setting of a service: it bounds the time to parse a request body.
MAX_LISTED = 65_536


class DocumentInput(StrictRequest):
    """A retrieved passage; `id` is the caller's own and is returned in the document's report."""

    # LangChain, Haystack and Cohere have other names for it
    synonyms = dict.fromkeys(("page_content", "content", "data"), "text")
    id: str | None = None
    title: str = ""
    text: str


def check_length(given: Any, info: ValidationInfo) -> Any:
    """Check the length of a list before its items are read. Raises TooLarge for more than MAX_LISTED of them."""
    if isinstance(given, list):
        check_count(str(info.field_name), len(given), MAX_LISTED, "entries")
    return given


# A plain text is a document without a title and id.
AnyDocument = str | DocumentInput
DocumentList = Annotated[JsonList[AnyDocument], BeforeValidator(check_length)]
