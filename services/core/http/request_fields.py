"""Fields of a request that no route reads: refused where they may be misspelt, or where an answer would be wrong."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from services.core.errors import InvalidField, InvalidRequest

# Of a name that no field has; comparing takes the longer the longer it is.
MAX_COMPARED_CHARACTERS = 64
# Similarity from which an unknown name of another server's form is taken to be one of ours.
NEARLY = 0.8


class StrictRequest(BaseModel):
    """A body of Fovea's own, or a part of one: a field that it has not is refused with the nearest name that it has."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def has_known_fields(cls, given: Any) -> Any:
        known = cls.model_fields
        if isinstance(given, dict) and not known.keys() >= given.keys():
            name = next(name for name in given if name not in known)
            error = PydanticCustomError("unknown_field", "{reason}", {"reason": _reason(name, known)})
            details = InitErrorDetails(type=error, loc=(name[:MAX_COMPARED_CHARACTERS],), input=None)
            raise ValidationError.from_exception_data(cls.__name__, [details])
        return given


class OpenRequest(BaseModel):
    """A body of another server's form: fields that it has not are kept, for `refuse_unsupported`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]


def check_known(given: Collection[str], known: Collection[str], place: str = "") -> None:
    """Raises InvalidField for a name that is not among those known, with the nearest that is.

    `place` is the path of the names in the request, if they are not at its top, with a dot at its end.
    """
    for name in given:
        if name not in known:
            name = name[:MAX_COMPARED_CHARACTERS]
            raise InvalidField(f"{place}{name}: {_reason(name, known)}.", param=f"{place}{name}")


async def check_query(request: Request) -> None:
    """Refuse parameters of the URL that the route does not have: a dependency of Fovea's own routes."""
    dependant = request.scope["route"].dependant
    check_known(request.query_params.keys(), [parameter.alias for parameter in dependant.query_params])


def refuse_unsupported(given: Mapping[str, Any] | None, harmless: Mapping[str, Collection[Any]]) -> None:
    """Raises InvalidRequest for a field of another server's that would change the answer there and has no effect here.

    `harmless` has the values of each such field that change nothing; null is one of every field.
    """
    for name, value in (given or {}).items():
        if name in harmless and value is not None and value not in harmless[name]:
            raise InvalidRequest(f"{name}: Not supported here; leave the field out.", param=name)


def refuse_misspelt(given: Mapping[str, Any] | None, own: Collection[str]) -> None:
    """Raises InvalidField for an unknown field of another server's form that is nearly one of our own additions.

    Other unknown fields are left alone: clients of that server send some that it ignores.
    """
    for name in given or {}:
        near = get_close_matches(name[:MAX_COMPARED_CHARACTERS].lower(), own, n=1, cutoff=NEARLY)
        if near:
            param = name[:MAX_COMPARED_CHARACTERS]
            raise InvalidField(f"{param}: Unknown field; the nearest that is known is {near[0]}.", param=param)


def _reason(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name[:MAX_COMPARED_CHARACTERS].lower(), known, n=1)
    if near:
        return f"Unknown field; the nearest that is known is {near[0]}"
    return f"Unknown field; known are {', '.join(known)}" if known else "Unknown field; none is known here"
