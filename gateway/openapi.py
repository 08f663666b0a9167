"""One OpenAPI document merged from the gateway's own and those of the available services."""

import json
from collections.abc import Callable, Mapping
from typing import Any

Document = dict[str, Any]

SCHEMA_REF = "#/components/schemas/"


def merge_documents(own: Document, documents: Mapping[str, Document], belongs: Callable[[str, str], bool]) -> Document:
    """Merge into `own` the paths of each service for which `belongs(service, path)` is true.

    Where two schemas of one name differ, the later one is renamed after its service; operation ids likewise.
    """
    merged = {**own, "paths": dict(own.get("paths", {}))}
    schemas: dict[str, Any] = dict(own.get("components", {}).get("schemas", {}))
    operation_ids = _operation_ids(own)
    for service, document in documents.items():
        theirs = document.get("components", {}).get("schemas", {})
        document = _rename(document, {name: f"{service.title()}{name}" for name in _clashes(schemas, theirs)})
        schemas |= document.get("components", {}).get("schemas", {})
        for path, operations in document.get("paths", {}).items():
            if belongs(service, path):
                merged["paths"][path] = _with_own_ids(operations, service, operation_ids)
    merged["components"] = {**own.get("components", {}), "schemas": dict(sorted(schemas.items()))}
    return merged


def require_key(document: Document, public_paths: frozenset[str]) -> Document:
    """Return the document with a key required on every path that is not public."""
    paths = {
        path: {method: {**operation, "security": []} for method, operation in operations.items()}
        if path in public_paths
        else operations
        for path, operations in document["paths"].items()
    }
    scheme = {"key": {"type": "http", "scheme": "bearer"}}
    components = {**document.get("components", {}), "securitySchemes": scheme}
    return {**document, "paths": paths, "components": components, "security": [{"key": []}]}


def _clashes(schemas: Mapping[str, Any], theirs: Mapping[str, Any]) -> set[str]:
    """Return names of different schemas in both, including schemas that differ only through one they refer to."""
    shared = schemas.keys() & theirs.keys()
    clashing = {name for name in shared if schemas[name] != theirs[name]}
    while True:
        references = [f'"{SCHEMA_REF}{name}"' for name in clashing]
        through = {
            name for name in shared - clashing if any(reference in json.dumps(theirs[name]) for reference in references)
        }
        if not through:
            return clashing
        clashing |= through


def _rename(document: Document, names: Mapping[str, str]) -> Document:
    if not names:
        return document
    schemas = document["components"]["schemas"]
    renamed = {names.get(name, name): schema for name, schema in schemas.items()}
    document = {**document, "components": {**document["components"], "schemas": renamed}}
    references = {SCHEMA_REF + old: SCHEMA_REF + new for old, new in names.items()}

    def rewrite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rewrite(item) for key, item in value.items()}
        if isinstance(value, list):
            return [rewrite(item) for item in value]
        return references.get(value, value) if isinstance(value, str) else value

    rewritten: Document = rewrite(document)
    return rewritten


def _operation_ids(document: Document) -> set[str]:
    return {
        operation["operationId"]
        for operations in document.get("paths", {}).values()
        for operation in operations.values()
        if isinstance(operation, dict) and "operationId" in operation
    }


def _with_own_ids(operations: dict[str, Any], service: str, taken: set[str]) -> dict[str, Any]:
    changed = {}
    for method, operation in operations.items():
        if isinstance(operation, dict) and "operationId" in operation:
            operation_id = operation["operationId"]
            if operation_id in taken:
                operation_id = f"{service}_{operation_id}"
            taken.add(operation_id)
            operation = {**operation, "operationId": operation_id}
        changed[method] = operation
    return changed
