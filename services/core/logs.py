"""Structured logs on stdout: one pipeline for our lines and for those of libraries. Commands log warnings only.

For people an event is one short line, without its request's ID unless it failed.
"""

import logging
import re
import sys
from typing import Any, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from services.core.printable import printable
from services.core.settings import ProcessSettings

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


_SECRET_NAMES = re.compile(r"authorization|api_?key|password|secret|token$", re.IGNORECASE)
# user:password@ in an address, and what follows an authentication scheme.
_SECRET_IN_TEXT = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)|(?<=Bearer )\S+", re.IGNORECASE)
REDACTED = "[redacted]"
# C1 controls, line separators and direction marks, none of which JSON escapes.
_JSON_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def configure_logging(settings: ProcessSettings) -> None:
    """Send this process's structlog and standard library logs to stdout; called once, before the first line."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    is_for_people = settings.log_format == "console" or (settings.log_format == "auto" and sys.stdout.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_for_people else "iso", utc=not is_for_people),
    ]
    if settings.telemetry:
        shared.append(_trace_adder())
    rendering = _rendering(is_for_people=is_for_people)
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _LineLogger(sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # `services.core.serving.server` logs starting and stopping itself; faiss logs each build of it that is missing.
    for library in ("uvicorn.error", "faiss.loader"):
        logging.getLogger(library).setLevel(max(level, logging.WARNING))


def _trace_adder() -> Processor:
    # Imported only where traces are on: a command that only logs warnings has no use for it.
    from opentelemetry import trace

    def add_trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """Add `trace_id` and `span_id` to every line that is logged while a request is answered."""
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            event["trace_id"] = trace.format_trace_id(context.trace_id)
            event["span_id"] = trace.format_span_id(context.span_id)
        return event

    return add_trace


def log_warnings_to_stderr() -> None:
    """Log warnings to stderr, for commands, whose standard output is their answer."""
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer(key_order=["event"])],
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=lambda *_: _LineLogger(sys.stderr),
    )


class _LineLogger:
    """Writes one line per call and flushes it, so that a killed process's last lines are not lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        # One write, since two threads may log at the same time.
        self._stream.write(line + "\n")
        self._stream.flush()

    debug = info = warning = error = critical = exception = msg


def _rendering(*, is_for_people: bool) -> list[Processor]:
    if is_for_people:
        return [structlog.processors.format_exc_info, redact, console_line]
    return [
        structlog.processors.format_exc_info,
        redact,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(serializer=_json),
    ]


def _json(event: Any, **_: Any) -> str:
    line = orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    # ASCII's controls are escaped in JSON strings already; terminals and some line readers act on others too.
    return line if line.isascii() else _JSON_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def redact(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Remove secrets: fields by their name, and what looks like one inside any text, tracebacks included."""
    for name, value in event.items():
        if _SECRET_NAMES.search(name):
            event[name] = REDACTED
        elif isinstance(value, str) and ("://" in value or "earer " in value):
            event[name] = _SECRET_IN_TEXT.sub(REDACTED, value)
    return event
