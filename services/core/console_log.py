"""Log lines for people: one short line an event, without its request's ID unless it failed."""

import structlog
from structlog.typing import EventDict, WrappedLogger

from services.core.printable import printable

# A request that the gateway has passed on is shown by the gateway; a refused one also by the service, which knows why.
PASSED_ON = "via"
_REQUEST = ("method", "path", "status", "duration_ms")
_BLOCKS = ("exception", "stack")


def console_line(_: WrappedLogger, __: str, event: EventDict) -> str:
    """Render `time [LEVEL] text name=value …`, and a traceback indented, so that none of its lines begins with a time.

    Text from clients and stores is escaped, so that it can't move the terminal's cursor or pass for a line of ours.
    Raises DropEvent for a request that came through the gateway and was not refused.
    """
    words = [str(event.pop("timestamp"))]
    if (level := str(event.pop("level"))) not in ("debug", "info"):
        words.append(level.upper())
    blocks = [str(event.pop(name)) for name in _BLOCKS if event.get(name)]
    text = str(event.pop("event"))
    words.append(_request(event) if text == "request" and all(name in event for name in _REQUEST) else printable(text))
    words += [f"{printable(name)}={_value(value)}" for name, value in event.items() if value is not None]
    lines = [printable(line, keep="\t") for block in blocks for line in block.split("\n")]
    return "\n  ".join([" ".join(words), *lines])


def _request(event: EventDict) -> str:
    """Take a request's fields out of the event and render them: `POST /embed 200 12 ms`, and the model."""
    if event.pop(PASSED_ON, None) is not None and "error" not in event:
        raise structlog.DropEvent
    method, path, status, duration_ms = (event.pop(name) for name in _REQUEST)
    for name in [name for name in event if name.endswith("_ms")]:
        del event[name]
    if status < 500:
        event.pop("request_id", None)
    model = event.pop("model", None)
    return " ".join(printable(str(word)) for word in (method, path, status, f"{duration_ms:.0f} ms", model) if word)


def _value(value: object) -> str:
    text = printable(value if isinstance(value, str) else repr(value))
    quoted = text.replace('"', "'")
    return f'"{quoted}"' if " " in text or not text else text
