"""The API reference as Markdown, from the OpenAPI document that the gateway gives out."""

import functools
import json
from collections.abc import Iterator
from typing import Any

from gateway.app import create_gateway
from gateway.directory import SCHEMA_REF, Document, merge_documents
from gateway.routes import RouteTable
from gateway.settings import GatewaySettings
from services.embed.app import create_embed
from services.embed.settings import EmbedSettings
from services.generate.app import create_generate
from services.generate.settings import GenerateSettings
from services.predict.app import create_predict
from services.predict.settings import PredictSettings
from services.score.app import create_score
from services.score.settings import ScoreSettings
from tests.documentation.blocks import table

STORE = "memory://"
Schema = dict[str, Any]


@functools.cache
def document() -> Document:
    """The gateway's answer to `/openapi.json` when every service runs."""
    services = {
        "predict": create_predict(PredictSettings(store_url=STORE)),
        "generate": create_generate(GenerateSettings(store_url=STORE)),
        "embed": create_embed(EmbedSettings(store_url=STORE)),
        "score": create_score(ScoreSettings(store_url=STORE)),
    }
    routes = RouteTable()

    def belongs(service: str, path: str) -> bool:
        route = routes.find(path)
        return route is not None and service in route.services

    own = create_gateway(GatewaySettings()).openapi()
    return merge_documents(own, {name: app.openapi() for name, app in services.items()}, belongs)


def operations(tags: tuple[str, ...]) -> Iterator[tuple[str, str, Any]]:
    """Method, path and description of the routes with one of these tags."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            if set(operation.get("tags", ())) & set(tags):
                yield method.upper(), path, operation


def routes_of(*tags: str) -> str:
    """Every route with one of these tags, and behind them the schemas that they name."""
    parts: list[str] = []
    named: list[str] = []
    for method, path, operation in operations(tags):
        parts += [f"## `{method} {path}`", operation.get("description", "")]
        parts += _parameters(operation.get("parameters", []))
        for content_type, content in operation.get("requestBody", {}).get("content", {}).items():
            parts += _body(f"Body `{content_type}`", content["schema"])
        for status, response in operation["responses"].items():
            if status < "400":
                parts += [_answer(status, response)]
        named += _names(operation, successes_only=True)
    parts += ["## Schemas"] if named else []
    for name in _reachable(named):
        parts += [f"### {name}", *_fields(document()["components"]["schemas"][name])]
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _parameters(parameters: list[Schema]) -> list[str]:
    rows = [
        (f"`{one['name']}`", one["in"], _type(one["schema"]), _presence(one["schema"], one.get("required", False)),
         _line(one.get("description", "")))
        for one in parameters
    ]  # fmt: skip
    return [table(("parameter", "in", "type", "default", "meaning"), rows)] if rows else []


def _body(title: str, schema: Schema) -> list[str]:
    forms = schema.get("anyOf") or schema.get("oneOf") or [schema]
    if len(forms) > 1:
        title += f", one of {len(forms)} forms"
    if all("properties" not in form for form in forms):
        return [f"{title}: {_type(schema)}"]
    parts = [title]
    for form in forms:
        parts += _fields(form) if "properties" in form else [_type(form)]
    return parts


def _fields(schema: Schema) -> list[str]:
    description = schema.get("description", "")
    if "properties" not in schema:
        return [description, _type({key: value for key, value in schema.items() if key != "description"})]
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", _type(one), _presence(one, name in required), _line(one.get("description", "")))
        for name, one in schema["properties"].items()
    ]
    return [description, table(("field", "type", "default", "meaning"), rows)]


def _answer(status: str, response: Schema) -> str:
    contents = response.get("content", {})
    shown = [f"`{kind}`: {_type(content['schema'])}" for kind, content in contents.items() if content.get("schema")]
    return f"Response {status}{': ' if shown else ''}{'; '.join(shown)}"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMA_REF)
        return f"[{name}](#{name.lower()})"
    if forms := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(form) for form in forms))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        items = _type(schema.get("items") or {"type": "any"})
        return f"list of ({items})" if " or " in items else f"list of {items}"
    if schema.get("type") == "object" and "properties" in schema:
        return f"object of {', '.join(f'`{name}`' for name in schema['properties'])}"
    if schema.get("type") == "string" and (schema.get("format") == "binary" or "contentMediaType" in schema):
        return str(schema.get("contentMediaType", "binary"))
    return str(schema.get("type", "any"))


def _presence(schema: Schema, required: object) -> str:
    if required:
        return "required"
    return f"`{json.dumps(schema['default'], ensure_ascii=False)}`" if "default" in schema else ""


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _names(part: Any, *, successes_only: bool = False) -> list[str]:
    """The schemas that a part of the document refers to, in their order."""
    if isinstance(part, list):
        return [name for one in part for name in _names(one)]
    if not isinstance(part, dict):
        return []
    found = [part["$ref"].removeprefix(SCHEMA_REF)] if isinstance(part.get("$ref"), str) else []
    for key, value in part.items():
        if successes_only and key == "responses":
            value = {status: response for status, response in value.items() if status < "400"}
        found += _names(value)
    return found


def _reachable(names: list[str]) -> list[str]:
    """These schemas and those that they refer to, each once."""
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found[name] = None
            waiting += _names(document()["components"]["schemas"][name])
    return sorted(found)
