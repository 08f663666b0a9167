"""The types of the client in `fovea/`, from the OpenAPI document that the gateway gives out."""

import keyword
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from gateway.directory import SCHEMA_REF
from tests.documentation.api import Schema, document
from tests.documentation.blocks import ROOT

CLIENT_SCHEMAS = ROOT / "fovea" / "schemas.py"
# What requests hold and what routes answer; what these refer to is written too.
REQUESTS = (
    "DocumentInput", "RerankDocument", "CalibrationOptions", "PredicateQuestion", "ChoiceQuestion", "ScoreQuestion",
)  # fmt: skip
ANSWERS = (
    "EmbeddingList", "SearchResults", "Collection", "CollectionList", "AddedImages", "ImageList", "ImageEntry",
    "GenerateDelta", "GenerateEnd", "GenerateAnswer", "RerankAnswer", "TaskList", "PredictAnswer", "ScoreAnswer",
    "NegativesList", "Decision", "ModelList",
)  # fmt: skip
# Fields whose values get a name of their own.
VALUES = {
    "EncodingFormat": ("EmbedRequest", "encoding_format"),
    "Access": ("CreateRequest", "access"),
    "Reorder": ("GenerateRequest", "reorder"),
    "RerankMethod": ("RerankRequest", "method"),
    "NegativesMethod": ("NegativesRequest", "method"),
    "NegativeKind": ("Negative", "kind"),
}
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
HEAD = '''"""Bodies of the routes: `python -m tests.documentation` writes this file from the OpenAPI document."""

from typing import Any, Literal, NotRequired, TypedDict, final

'''


def titled_objects() -> dict[str, Schema]:
    """Every object of the document by its name as a component, or else by its title."""
    components: dict[str, Schema] = document()["components"]["schemas"]
    return _titled(document()["paths"]) | components


def _titled(part: Any) -> dict[str, Schema]:
    if isinstance(part, list):
        return {name: schema for one in part for name, schema in _titled(one).items()}
    if not isinstance(part, dict):
        return {}
    found = {name: schema for one in part.values() for name, schema in _titled(one).items()}
    return found | ({part["title"]: part} if "title" in part and "properties" in part else {})


class _Classes:
    """Classes that refer to each other, each once, after those that it refers to."""

    def __init__(self) -> None:
        self.objects = titled_objects()
        self.written: dict[str, str] = {}

    def type_of(self, schema: Schema, *, is_answer: bool) -> str:
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(SCHEMA_REF)
            return self.type_of({**self.objects[name], "title": name}, is_answer=is_answer)
        if forms := schema.get("anyOf") or schema.get("oneOf"):
            return " | ".join(dict.fromkeys(self.type_of(form, is_answer=is_answer) for form in forms))
        if "const" in schema or "enum" in schema:
            return f"Literal{schema.get('enum') or [schema['const']]}"
        if schema.get("type") == "array":
            return f"list[{self.type_of(schema.get('items', {}), is_answer=is_answer)}]"
        values = schema.get("additionalProperties")
        if "properties" in schema and not values:
            self.write(schema["title"], is_answer=is_answer)
            return str(schema["title"])
        if schema.get("type") == "object":
            return f"dict[str, {self.type_of(values if isinstance(values, dict) else {}, is_answer=is_answer)}]"
        return SCALARS.get(schema.get("type", ""), "Any")

    def write(self, name: str, *, is_answer: bool) -> None:
        if name in self.written:
            return
        schema = self.objects[name]
        fields = {}
        for field, one in schema["properties"].items():
            kind = self.type_of(one, is_answer=is_answer)
            # an answer holds its defaults; a null that is the default may be left out
            is_there = field in schema.get("required", ()) or (is_answer and one.get("default") is not None)
            fields[field] = kind if is_there else f"NotRequired[{kind}]"
        self.written[name] = "\n".join(_class(name, fields, schema.get("description", "")))


def _class(name: str, fields: dict[str, str], description: str) -> Iterator[str]:
    if any(keyword.iskeyword(field) for field in fields):
        yield f"{name} = TypedDict({name!r}, {{{', '.join(f'{field!r}: {kind}' for field, kind in fields.items())}}})"
        return
    yield f"@final\nclass {name}(TypedDict):"
    told = textwrap.fill(f'"""{" ".join(description.split())}', 110, subsequent_indent="    ")
    yield f'    {told}{chr(10) + "    " if chr(10) in told else ""}"""\n' if description else ""
    yield from (f"    {field}: {kind}" for field, kind in fields.items())


def client_schemas() -> str:
    """Return the module's text, formatted as the rest of the code."""
    classes = _Classes()
    values = [
        f"{name} = {classes.type_of(classes.objects[holder]['properties'][field], is_answer=True)}"
        for name, (holder, field) in VALUES.items()
    ]
    values = [value.replace(" | None", "") for value in values]
    for names, is_answer in ((REQUESTS, False), (ANSWERS, True)):
        for name in names:
            classes.write(name, is_answer=is_answer)
    text = HEAD + "\n".join(values) + "\n\n\n" + "\n\n\n".join(classes.written.values()) + "\n"
    command = (sys.executable, "-m", "ruff", "format", "--stdin-filename", str(CLIENT_SCHEMAS), "-")
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
