"""The choice of a request's upstream: by its service, by whether it asks for the canary, and by its model."""

from starlette.types import Scope

from gateway.routes import Route
from gateway.routing.requested_model import find_in_body, find_in_form, find_in_json, find_in_query
from gateway.upstream import Upstream
from gateway.upstreams import Branch, Upstreams
from services.core.errors import InvalidRequest, NotFound
from services.core.exchange import announces_body, header_of

CANARY_HEADER = b"x-fovea-canary"
MAX_SHOWN_CHARACTERS = 256


class UpstreamChoice:
    """Chooses among the upstreams of a service.

    No request is answered by another model than the one that it names: neither a canary nor a pool is replaced by
    another upstream.
    """

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams

    def is_merged(self, route: Route, scope: Scope) -> bool:
        """Whether the gateway itself answers, from the answers of all of the service's upstreams."""
        return route.is_merged and bool(self._upstreams.of(route.service).pools) and not _asks_for_canary(scope)

    def by_head(self, route: Route, scope: Scope) -> Upstream | None:
        """Return the upstream of a request; None where that depends on its body.

        Raises InvalidRequest for a canary that does not exist, NotFound for a model that nobody has.
        """
        branch = self._upstreams.of(route.service)
        if _asks_for_canary(scope):
            return _canary(branch, route)
        if route.path.startswith("/collections") and self._upstreams.collections is not None:
            return self._upstreams.collections
        if not branch.pools or not route.model_in:
            return branch.default
        if "query" in route.model_in and (model := find_in_query(scope["query_string"], "model")) is not None:
            return _of_model(branch, model)
        return None if announces_body(scope) and _form_of_body(route, scope) is not None else branch.default

    async def by_body(self, route: Route, scope: Scope, body: bytes) -> Upstream:
        """Return the upstream of a request for which `by_head` returned None. Raises NotFound."""
        branch = self._upstreams.of(route.service)
        if _form_of_body(route, scope) == "form":
            content_type = header_of(scope, b"content-type") or ""
            model = await find_in_body(lambda given, field: find_in_form(content_type, given, field), body, "model")
        else:
            model = await find_in_body(find_in_json, body, "model")
        if model is not None:
            return _of_model(branch, model)
        task = await find_in_body(find_in_json, body, "task") if branch.by_task else None
        return branch.default if task is None else branch.by_task.get(task, branch.default)


def _asks_for_canary(scope: Scope) -> bool:
    asked = (header_of(scope, CANARY_HEADER) or "false").strip().lower()
    if asked not in ("true", "false"):
        raise InvalidRequest("X-Fovea-Canary must be `true` or `false`.", param="X-Fovea-Canary")
    return asked == "true"


def _canary(branch: Branch, route: Route) -> Upstream:
    if not route.has_canary or branch.canary is None:
        what = f"The {route.service} service has"
        if not route.has_canary:
            what = "Collections have" if route.service == "embed" else "A review has"
        raise InvalidRequest(f"{what} no canary.", code="no_canary", param="X-Fovea-Canary")
    return branch.canary


def _form_of_body(route: Route, scope: Scope) -> str | None:
    """Return the form in which the body may name a model, None where it can't."""
    content_type = (header_of(scope, b"content-type") or "application/json").lower()
    form = "form" if content_type.startswith("multipart/form-data") else "json" if "json" in content_type else None
    return form if form in route.model_in else None


def _of_model(branch: Branch, model: str) -> Upstream:
    upstream = branch.of_model(model)
    if upstream is None:
        claimed = ", ".join(repr(name) for pool in branch.pools for name in sorted(pool.destination.models))
        raise NotFound(
            f"There is no model {model[:MAX_SHOWN_CHARACTERS]!r}: the pools of {branch.service} serve {claimed}.",
            param="model",
            code="model_not_found",
        )
    return upstream
