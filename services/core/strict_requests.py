"""Parts of request bodies, whoever reads them: fields that are refused where they are unknown, and lists."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from services.core.refusals import MAX_COMPARED_CHARACTERS, near_names

ItemT = TypeVar("ItemT")

# A list in a request. Only its first invalid item is reported: several errors for each of a million items would take
# seconds of the event loop and a gigabyte.
JsonList = Annotated[list[ItemT], Field(fail_fast=True)]


class StrictRequest(BaseModel):
    """A body of Fovea's own, or a part of one: another field is refused with the nearest name, or with its synonym."""

    model_config = ConfigDict(extra="forbid")
    synonyms: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def has_known_fields(cls, given: Any) -> Any:
        known = cls.model_fields
        if isinstance(given, dict) and not known.keys() >= given.keys():
            name = next(name for name in given if name not in known)
            reason = unknown_field(cls.synonyms.get(name, name), known)
            error = PydanticCustomError("unknown_field", "{reason}", {"reason": reason})
            details = InitErrorDetails(type=error, loc=(name[:MAX_COMPARED_CHARACTERS],), input=None)
            raise ValidationError.from_exception_data(cls.__name__, [details])
        return given


def unknown_field(name: str, known: Collection[str]) -> str:
    """Say that a field is unknown, and which one is nearest."""
    if near := near_names(name, known):
        return f"Unknown field; the nearest that is known is {near[0]}"
    return f"Unknown field; known are {', '.join(known)}" if known else "Unknown field; none is known here"
