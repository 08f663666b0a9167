"""The choice of a request's upstream: by its service, by whether it asks for the canary, and by its model.

The model or the task that a request names is found without parsing its body. A body may hold millions of JSON values,
for each of which a parser would take a hundred bytes and more and let no other thread run meanwhile. Here text is only
searched, piece by piece.
"""

import asyncio
import functools
import re
from collections.abc import Callable, Iterator
from email.message import Message
from typing import TypeVar, TypeVarTuple
from urllib.parse import parse_qsl

import orjson
from starlette.types import Scope

from gateway.routes import Route
from gateway.upstream import Upstream
from gateway.upstreams import Branch, Upstreams
from services.core.admission.json_scan import PIECE_BYTES, OutsideOfStrings
from services.core.errors import InvalidRequest, NotFound
from services.core.exchange import announces_body, header_of

# A body up to this size is searched faster than a thread is woken for it.
MAX_INLINE_BYTES = 256 * 1024
# Bounds of the search: characters of a name, bytes of the head of a form's part, and positions in a body at which the
# name of the field stands, be it in nested objects. What is beyond names nothing.
MAX_NAME_LENGTH = 512
MAX_PART_HEAD_BYTES = 4096
MAX_POSITIONS = 1000
CANARY_HEADER = b"x-fovea-canary"
MAX_SHOWN_CHARACTERS = 256

Found = TypeVar("Found")
Wanted = TypeVarTuple("Wanted")


async def find_in_body(find: Callable[[bytes, *Wanted], Found], body: bytes, *wanted: *Wanted) -> Found:
    """Find what is wanted in a body, in a thread where the body is large."""
    if len(body) <= MAX_INLINE_BYTES:
        return find(body, *wanted)
    return await asyncio.to_thread(find, body, *wanted)


def find_in_query(query: bytes, field: str) -> str | None:
    """Return the last value of a parameter of the URL; None where it has none or an empty one."""
    values = [value for name, value in parse_qsl(str(query, "latin-1")) if name == field]
    return values[-1] if values else None


def find_in_json(body: bytes, field: str) -> str | None:
    """Return the string that a member of the outermost object is; the last one of equal names, as services read it.

    None where there is no such member or it is no string or an empty one, also in a body that is not JSON.
    """
    start = find_member(body, field)
    name = None if start is None else _NAME.match(body, start)
    return _string(name[0]) if name else None


def find_member(body: bytes, field: str) -> int | None:
    """Return where the value of the last member of the outermost object with this name begins."""
    nesting = _Nesting()
    num_read = 0
    start = None
    for position in _positions(body, orjson.dumps(field)):
        nesting.read(body, num_read, position)
        num_read = position
        member = _member(field).match(body, position) if nesting.is_at_member else None
        if member is not None:
            start = member.end()
    return start


def find_in_form(content_type: str, body: bytes, field: str) -> str | None:
    """Return the value of the last part of a multipart body with a name; None where it has none or an empty one."""
    head = Message()
    head["Content-Type"] = content_type
    boundary = head.get_boundary()
    if boundary is None:
        return None
    delimiter = b"--" + boundary.encode("latin-1", "replace")
    value = None
    for position in _positions(body, f'name="{field}"'.encode()):
        part = body.rfind(delimiter, max(0, position - MAX_PART_HEAD_BYTES), position)
        head_end = body.find(b"\r\n\r\n", position, position + MAX_PART_HEAD_BYTES)
        is_in_head = part >= 0 and head_end >= 0 and b"\r\n\r\n" not in body[part:position]
        if is_in_head and body[position - 1 : position] in b"; \t":  # and not `filename`
            value_start = head_end + 4
            end = body.find(b"\r\n" + delimiter, value_start, value_start + MAX_NAME_LENGTH + len(delimiter) + 2)
            value = body[value_start:end].decode("utf-8", "replace") if end >= 0 else None
    return value or None


def _positions(body: bytes, text: bytes) -> Iterator[int]:
    """Yield the first positions at which a text that begins or ends with a quotation mark stands, in order."""
    num_found = 0
    for start in range(0, len(body), PIECE_BYTES):
        end = start + PIECE_BYTES + len(text) - 1
        if body.find(b'"', start, end) < 0:  # many times as fast, and true of nearly all pieces of an image in base64
            continue
        position = body.find(text, start, end)
        while position >= 0:
            yield position
            num_found += 1
            if num_found == MAX_POSITIONS:
                return
            position = body.find(text, position + 1, end)


class _Nesting:
    """Depth of a position in a JSON text, and whether it is in a string."""

    def __init__(self) -> None:
        self._strings = OutsideOfStrings()
        self._depth = 0

    @property
    def is_at_member(self) -> bool:
        """Whether a quotation mark here begins a string of the outermost object."""
        return self._depth == 1 and not self._strings.is_in_string and not self._strings.has_odd_backslash

    def read(self, text: bytes, start: int, end: int) -> None:
        for position in range(start, end, PIECE_BYTES):
            outside = self._strings.pick(text[position : min(position + PIECE_BYTES, end)])
            self._depth += sum(map(outside.count, (b"{", b"["))) - sum(map(outside.count, (b"}", b"]")))


_NAME = re.compile(rb'"(?:[^"\\]|\\.){1,%d}"' % MAX_NAME_LENGTH)


@functools.cache
def _member(field: str) -> re.Pattern[bytes]:
    """Return the pattern of a member's name and of what stands between it and the value."""
    return re.compile(re.escape(orjson.dumps(field)) + rb"[ \t\n\r]*:[ \t\n\r]*")


def _string(text: bytes) -> str | None:
    try:
        return str(orjson.loads(text))
    except orjson.JSONDecodeError:
        return None


class UpstreamChoice:
    """Chooses among the upstreams of a service.

    No request is answered by another model than the one that it names: neither a pool nor a canary that the request
    asks for is replaced by another upstream.
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
        if (model := model_in_head(route, scope)) is not None:
            return _of_model(branch, model)
        return None if announces_body(scope) and _form_of_body(route, scope) is not None else branch.default

    async def by_body(self, route: Route, scope: Scope, body: bytes) -> Upstream:
        """Return the upstream of a request for which `by_head` returned None. Raises NotFound."""
        branch = self._upstreams.of(route.service)
        if (model := await model_in_body(route, scope, body)) is not None:
            return _of_model(branch, model)
        task = await find_in_body(find_in_json, body, "task") if branch.by_task else None
        return branch.default if task is None else branch.by_task.get(task, branch.default)

    def preferring_canary(self, upstream: Upstream, route: Route, scope: Scope) -> Upstream:
        """Return the canary beside a service's own processes while it is ready and does well, else the upstream itself.

        For keys that are marked for it, whose clients say nothing of it: a header, also one that says `false`, wins.
        """
        branch = self._upstreams.of(route.service)
        is_free = route.has_canary and header_of(scope, CANARY_HEADER) is None and upstream is branch.own
        return branch.canary if is_free and branch.canary and branch.canary.is_on_trial_beside(upstream) else upstream


def model_in_head(route: Route, scope: Scope) -> str | None:
    """Return the model that the URL of a request names."""
    return find_in_query(scope["query_string"], "model") if "query" in route.model_in else None


async def model_in_body(route: Route, scope: Scope, body: bytes) -> str | None:
    """Return the model that the body of a request names."""
    form = _form_of_body(route, scope)
    if form == "form":
        content_type = header_of(scope, b"content-type") or ""
        return await find_in_body(lambda given, field: find_in_form(content_type, given, field), body, "model")
    return None if form is None else await find_in_body(find_in_json, body, "model")


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
