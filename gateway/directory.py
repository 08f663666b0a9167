"""The gateway's answers combined from those of every service and pool: models, tasks, one document of all routes."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Generic, TypeVar, get_args
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import BaseModel, Field, OnErrorOmit

from gateway.routes import PUBLIC_PATHS, RouteTable
from gateway.routing.upstream_choice import MAX_SHOWN_CHARACTERS
from gateway.settings import Backend, Service
from gateway.upstream import NOT_RUNNING_RETRY_S, SLOW_TIMEOUT, Upstream
from gateway.upstreams import Branch, Upstreams
from services.core.errors import InvalidField, NotFound, Overloaded
from services.core.refusals import near_names, shown_names
from services.core.serving.model_versions import ModelVersionList

SCHEMA_REF = "#/components/schemas/"
# Seconds after which at most a newly started service is in the document, and its models are listed.
DOCUMENT_AGE_S = 5.0
MODELS_AGE_S = 1.0

Document = dict[str, Any]
AnswerT = TypeVar("AnswerT")
EntryT = TypeVar("EntryT", bound=BaseModel)


class Model(BaseModel, extra="allow"):
    """A model as its service describes it, including any fields beyond OpenAI's."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "fovea"
    decides: bool | None = Field(None, description="Whether it can answer `/v1/decisions`; null if that is not known.")


class Task(BaseModel, extra="allow"):
    model: str


class Listed(BaseModel, Generic[EntryT]):
    """A service's list without what is not understood of it."""

    data: list[OnErrorOmit[EntryT]]


class ModelList(Listed[Model]):
    object: str = "list"


class OpenApi(BaseModel, extra="allow"):
    """A service's OpenAPI document, with as much of a shape as merging it takes."""

    paths: dict[str, dict[str, Any]] = {}
    components: dict[str, dict[str, Any]] = {}


def merge_documents(own: Document, documents: Mapping[str, Document], belongs: Callable[[str, str], bool]) -> Document:
    """Merge into `own` the paths of each service for which `belongs(service, path)` is true.

    A path of several services is the first one's. Where two schemas of one name differ, the later one is renamed after
    its service; operation ids likewise.
    """
    merged = {**own, "paths": dict(own.get("paths", {}))}
    schemas: dict[str, Any] = dict(own.get("components", {}).get("schemas", {}))
    operation_ids = _operation_ids(own)
    for service, document in documents.items():
        theirs = document.get("components", {}).get("schemas", {})
        document = _rename(document, {name: f"{service.title()}{name}" for name in _clashes(schemas, theirs)})
        schemas |= document.get("components", {}).get("schemas", {})
        for path, operations in document.get("paths", {}).items():
            if belongs(service, path) and path not in merged["paths"]:
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
        if isinstance(operation, dict) and isinstance(operation.get("operationId"), str)
    }


def _with_own_ids(operations: dict[str, Any], service: str, taken: set[str]) -> dict[str, Any]:
    changed = {}
    for method, operation in operations.items():
        if isinstance(operation, dict) and isinstance(operation.get("operationId"), str):
            operation_id = operation["operationId"]
            if operation_id in taken:
                operation_id = f"{service}_{operation_id}"
            taken.add(operation_id)
            operation = {**operation, "operationId": operation_id}
        changed[method] = operation
    return changed


class Kept(Generic[AnswerT]):
    """A cached answer that is fetched again once it is older than `age_s`, by one of the requests that need it then."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._lock = asyncio.Lock()
        self._answer: AnswerT | None = None
        self._until_s = 0.0

    async def get(self, ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        async with self._lock:
            if self._answer is None or time.monotonic() >= self._until_s:
                self._answer = await ask()
                self._until_s = time.monotonic() + self._age_s
            return self._answer


class Directory:
    """Asks all services and pools at the same time; those that do not answer in time are omitted.

    Answers are cached briefly, so that frequent requests do not reach the services.
    """

    def __init__(self, upstreams: Upstreams, routes: RouteTable, *, needs_key: bool) -> None:
        self.upstreams = upstreams
        self._needs_key = needs_key
        self.routes = routes
        self._document = Kept[bytes](DOCUMENT_AGE_S)
        self._models = Kept[list[tuple[Upstream, Model]]](MODELS_AGE_S)
        self._tasks = Kept[list[tuple[Upstream, Task]]](MODELS_AGE_S)
        self._listed_before: dict[Backend, dict[str, Model]] = {}

    async def models(self) -> list[tuple[Upstream, Model]]:
        """Return the models, each with the upstream that lists it."""
        services = [self.upstreams.of(service) for service in get_args(Service)]
        return await self._models.get(lambda: _listed("/v1/models", services, Listed[Model], lambda model: model.id))

    async def served_models(self) -> set[str] | None:
        """Return the names of all models, those that pools claim too; None while a service's own process lists none."""
        listed = await self.models()
        branches = [self.upstreams.of(service) for service in get_args(Service)]
        own = {branch.own for branch in branches if branch.own is not None and branch.own.addresses.is_configured}
        if own - {upstream for upstream, _ in listed}:
            return None
        return {model.id for _, model in listed}.union(*(branch.by_model for branch in branches))

    async def find(self, model_id: str) -> tuple[Upstream, Model]:
        """Return a model and the upstream that lists it. Raises NotFound, or Overloaded where its pool is down."""
        if found := next((one for one in await self.models() if one[1].id == model_id), None):
            return found
        claimed = (branch.by_model.get(model_id.partition("@")[0]) for branch in self.upstreams.branches)
        down = next((pool for pool in claimed if pool is not None and not pool.addresses.has_ready), None)
        if down is None:
            raise NotFound(f"No available service has a model {model_id!r}.", code="model_not_found")
        message = f"{down.destination.title}, which has the model {model_id!r}, is not available."
        raise Overloaded(message, code="service_unavailable", retry_after_s=NOT_RUNNING_RETRY_S)

    async def service_of(
        self, model: str, services: Sequence[Backend], client: str, deadline: float, field: str
    ) -> Backend:
        """Return the first of these services that has the deciding model of `field`, as `name` or `name@version`.

        Where one of them has listed none, which may have it, it is told of the demand, and waited for as a request for
        it would wait. Raises NotFound, InvalidField for a model that can't decide, and Overloaded after the wait.
        """
        name = model.partition("@")[0]
        found, down = await self._owner(name, services)
        give_up_at = time.monotonic() + max((upstream.wait_s for upstream in down), default=0.0)
        with ExitStack() as demand:
            for upstream in down:
                demand.enter_context(upstream.recent.counted())
            while found is None and down and time.monotonic() < give_up_at:
                await down[0].hold_back(client, deadline)
                found, down = await self._owner(name, services)
        shown = repr(name[:MAX_SHOWN_CHARACTERS])
        if found is not None:
            listed = self._listed_before.get(found, {}).get(name)
            if found in services and (listed is None or listed.decides is not False):
                return found
            told = f"{field}: {shown}, a model of {found}, decides nothing. {self._deciding(name, services)}"
            raise InvalidField(told, param=field)
        if not down:
            told = f"{field}: No service lists the model {shown}. {self._deciding(name, services)}"
            raise NotFound(told, param=field, code="model_not_found")
        listing_none = ", ".join(upstream.destination.service for upstream in down)
        message = f"No service lists the model {shown}, and these list none now: {listing_none}."
        raise Overloaded(message, code="service_unavailable", retry_after_s=NOT_RUNNING_RETRY_S)

    async def _owner(self, name: str, services: Sequence[Backend]) -> tuple[Backend | None, list[Upstream]]:
        """Return who has a model, first of these services, then of all, and what of these lists no models now.

        One that does not list its models now, since it is busy or restarts, has those that it listed before.
        """
        now: dict[Backend, dict[str, Model]] = {}
        for upstream, one in await self.models():
            now.setdefault(upstream.destination.service, {})[one.id] = one
        self._listed_before |= now
        branches = [self.upstreams.of(service) for service in services]
        down = [one.default for one in branches if one.service not in now and one.default.addresses.is_configured]
        for branch in (*branches, *self.upstreams.branches):
            if name in branch.by_model or name in self._listed_before.get(branch.service, ()):
                return branch.service, down
        return None, down

    def _deciding(self, name: str, services: Sequence[Backend]) -> str:
        """Tell which listed models of these services can decide, the nearest to a name first."""
        every = [one for service in services for one in self._listed_before.get(service, {}).values()]
        names = [one.id for one in every if one.decides is not False]
        nearest = near_names(name, names, count=max(1, len(names)), similarity=0)
        return f"Models that can decide: {shown_names([repr(one) for one in nearest]) or 'none is listed'}."

    async def versions(self, model_id: str) -> ModelVersionList:
        """Return the versions of a listed model as its service finds them in the store. Raises NotFound, Overloaded."""
        owner, _ = await self.find(model_id)
        path = f"/v1/models/{quote(model_id, safe='')}/versions"
        found = await owner.fetch(path, ModelVersionList, SLOW_TIMEOUT)
        if found is None:
            message = f"The versions of {model_id!r} can't be listed now."
            raise Overloaded(message, code="service_unavailable", retry_after_s=NOT_RUNNING_RETRY_S)
        return found

    async def tasks(self) -> list[Task]:
        """Return the tasks of predict as its processes describe them."""
        predict = [self.upstreams.of("predict")]
        listed = await self._tasks.get(lambda: _listed("/tasks", predict, Listed[Task], lambda task: task.model))
        return [task for _, task in listed]

    async def document(self, own: Document) -> bytes:
        """Return the merged OpenAPI document as JSON, written once in a while since anybody may ask for it."""

        async def ask() -> bytes:
            branches = self.upstreams.branches
            found = zip(branches, await asyncio.gather(*(_first_document(branch) for branch in branches)), strict=True)
            documents: dict[str, Document] = {branch.service: one for branch, one in found if one is not None}
            merged = merge_documents(own, documents, self._belongs)
            return json.dumps(require_key(merged, PUBLIC_PATHS) if self._needs_key else merged).encode()

        return await self._document.get(ask)

    def _belongs(self, service: str, path: str) -> bool:
        route = self.routes.find(path)
        return route is not None and service in route.services


async def _listed(
    path: str, branches: Sequence[Branch], shape: type[Listed[EntryT]], model_of: Callable[[EntryT], str]
) -> list[tuple[Upstream, EntryT]]:
    """Return the entries of the lists at a path, each with the upstream that a request for its model reaches.

    What no request reaches, such as a model that a pool serves and does not claim, is left out.
    """
    asked = [(branch, upstream) for branch in branches for upstream in branch]
    answers = await asyncio.gather(*(upstream.fetch(path, shape) for _, upstream in asked))
    return [
        (upstream, entry)
        for (branch, upstream), answer in zip(asked, answers, strict=True)
        for entry in (answer.data if answer else ())
        if branch.of_model(model_of(entry)) is upstream
    ]


async def _first_document(branch: Branch) -> Document | None:
    """Return the document of the first of a service's upstreams that answers, those first that are ready."""
    for upstream in sorted(branch, key=lambda one: not one.addresses.has_ready):
        limit = SLOW_TIMEOUT if upstream.addresses.has_ready else None
        if answer := await upstream.fetch("/openapi.json", OpenApi, limit):
            return answer.model_dump()
    return None


def directory_router(directory: Directory) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models", tags=["models"])
    async def list_models() -> ModelList:
        """The models of all services that answer."""
        return ModelList(data=[model for _, model in await directory.models()])

    @router.get("/v1/models/{model_id:path}/versions", tags=["models"])
    async def list_versions(model_id: str) -> ModelVersionList:
        """The versions of a model in the store, newest first, with their aliases."""
        return await directory.versions(model_id)

    @router.get("/v1/models/{model_id:path}", tags=["models"])
    async def show_model(model_id: str) -> Model:
        """One model, whichever service has it."""
        return (await directory.find(model_id))[1]

    # Asked for here only where predict has pools; predict's own document describes it. Both paths are declared, so that
    # neither is rewritten on its way to a predict without pools.
    @router.get("/tasks", include_in_schema=False)
    @router.get("/v1/tasks", include_in_schema=False)
    async def list_tasks() -> dict[str, Any]:
        return {"object": "list", "data": await directory.tasks()}

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        app: FastAPI = request.app
        return Response(await directory.document(app.openapi()), media_type="application/json")

    return router
