"""Logs read from the stdout of a real process: one JSON object per line, whichever library logs."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import structlog

from services.core.logs import console_line, redact
from tests.core.served_app import SECRET
from tests.core.served_process import ServedProcess, until

Serve = Callable[..., ServedProcess]
Log = list[dict[str, Any]]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Return the whole log of one process, from its start to its end, with a few requests of each kind."""
    served = ServedProcess(tmp_path_factory.mktemp("logs") / "log")
    try:
        assert asyncio.run(lifetime(served)) == 0
    finally:
        served.kill()
    return served.log()


async def lifetime(served: ServedProcess) -> int:
    await served.started()
    async with aiohttp.ClientSession() as session:
        for path, request_id in (
            ("/slow?seconds=0.001&private=1", "well"),
            ("/metrics", "scrape"),
            ("/readyz", "probe"),
            ("/fail/defect", "defect"),
        ):
            async with session.get(f"{served.url}{path}", headers={"x-request-id": request_id}) as response:
                await response.read()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"this is no HTTP\r\n\r\n")
    await reader.read()
    writer.close()
    served.terminate()
    return await served.exit_status()


@pytest.mark.slow
def test_a_request_is_one_line_with_its_id_and_no_query(log: Log) -> None:
    (line,) = [line for line in log if line["message"] == "request" and line["request_id"] == "well"]
    assert (line["method"], line["path"], line["status"], line["level"]) == ("GET", "/slow", 200, "info")
    assert isinstance(line["duration_ms"], float)
    assert "private" not in str(log)


def test_probes_and_scrapes_are_not_logged(log: Log) -> None:
    assert not [line for line in log if line.get("request_id") in ("scrape", "probe")]


def test_what_a_library_logs_is_of_the_same_kind(log: Log) -> None:
    (warning,) = [line for line in log if line.get("logger") == "uvicorn.error"]
    assert (warning["level"], warning["message"]) == ("warning", "Invalid HTTP request received.")
    assert all({"level", "timestamp", "message"} <= set(line) for line in log)


def test_a_process_says_when_it_listens_drains_and_has_stopped(log: Log) -> None:
    own = [line["message"] for line in log if "request_id" not in line and "logger" not in line]
    assert own == ["listening", "draining", "stopped"]


def test_a_defect_is_logged_once_with_its_traceback_and_request(log: Log) -> None:
    (error,) = [line for line in log if line["level"] == "error"]
    assert error["request_id"] == "defect"
    assert f"RuntimeError: {SECRET}" in error["exception"]
    assert "served_app.py" in error["exception"]


@pytest.mark.slow
async def test_lines_below_the_level_are_left_out(serve: Serve) -> None:
    served = serve(log_level="error", warm_up="fails")
    assert await served.exit_status() == 1
    (line,) = served.log()
    assert (line["level"], line["message"]) == ("error", "warm-up failed")


@pytest.mark.slow
async def test_the_console_format_is_text_for_a_person(serve: Serve) -> None:
    served = serve(log_format="console", warm_up="fails")
    assert await served.exit_status() == 1
    listening, *_ = served.text().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d listening host=127.0.0.1 port=\d+", listening)
    assert re.search(r"\d ERROR warm-up failed\n  Traceback .*:\n(  .*\n)+  .*FoveaError: no checkpoint", served.text())


HAZARDS = set("\x1b\x07\r\u202e\x9b\u2028\x7f")
# Clears the screen and sets the title; a second line; turned around; CSI in one byte; a line end of Unicode.
HOSTILE = "\x1b[2J\x1b]0;t\x07\n2026-01-01 [info ] forged\r\u202egnp.exe\x9b2J\u2028\x7f[bold]"
ESCAPED = r"\x1b[2J\x1b]0;t\x07\n2026-01-01 [info ] forged\r\u202egnp.exe\x9b2J\u2028\x7f[bold]"


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.slow
async def test_what_a_client_writes_stays_in_its_line_and_moves_no_cursor(serve: Serve, log_format: str) -> None:
    served = serve(log_format=log_format)
    await until(lambda: "listening" in served.text())
    served.port = int(re.findall(r"port\W+(\d+)", served.text())[0])
    async with aiohttp.ClientSession() as session:
        for path in ("\x1b[2J\u202e", HOSTILE):  # a text without spaces is not quoted
            async with session.get(f"{served.url}/{quote(path)}") as response:
                assert response.status == 404
    await until(lambda: "gnp.exe" in served.text())
    text = served.text()
    assert not set(text) & HAZARDS
    assert not [line for line in text.splitlines() if line.startswith("2026-01-01")]
    if log_format == "console":
        assert ESCAPED in text
    else:
        assert any(line.get("path") == f"/{HOSTILE}" for line in served.log())


REQUEST: dict[str, object] = {"event": "request", "timestamp": "09:25:06", "level": "info", "request_id": "a1"}
REQUEST |= {"method": "POST", "path": "/embed", "status": 200, "duration_ms": 57.567, "infer_ms": 43.3}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "09:25:06 POST /embed 200 58 ms"),
        ({"model": "shapes@2fc0"}, "09:25:06 POST /embed 200 58 ms shapes@2fc0"),
        ({"status": 422, "error": "invalid_request"}, "09:25:06 POST /embed 422 58 ms error=invalid_request"),
        ({"status": 500, "error": "internal"}, "09:25:06 POST /embed 500 58 ms request_id=a1 error=internal"),
        ({"key": "laptop"}, "09:25:06 POST /embed 200 58 ms key=laptop"),
    ],
)
def test_on_a_console_a_request_is_one_short_line_with_its_id_only_where_it_failed(
    fields: dict[str, object], line: str
) -> None:
    assert console_line(None, "info", {**REQUEST, **fields}) == line


def test_on_a_console_an_answered_request_through_the_gateway_is_shown_by_the_gateway_only() -> None:
    with pytest.raises(structlog.DropEvent):
        console_line(None, "info", {**REQUEST, "via": "gateway"})


def test_on_a_console_a_service_shows_why_it_refused_a_request_of_the_gateway() -> None:
    refused = {**REQUEST, "via": "gateway", "status": 422, "error": "invalid_request_error"}
    assert console_line(None, "info", refused) == "09:25:06 POST /embed 422 58 ms error=invalid_request_error"


def test_on_a_console_names_values_and_tracebacks_are_spelt_out_and_a_traceback_keeps_its_lines() -> None:
    event = {"event": HOSTILE, HOSTILE: 1, "value": Path(HOSTILE), "exception": f"Traceback\n\tFoo: {HOSTILE}"}
    text = console_line(None, "error", {"timestamp": "09:25:06", "level": "error", **event})
    first, *traceback = text.split("\n")
    assert first.startswith(f"09:25:06 ERROR {ESCAPED} {ESCAPED}=1 value=")
    assert not set(text) & HAZARDS
    assert traceback[:2] == ["  Traceback", r"  	Foo: \x1b[2J\x1b]0;t\x07"]
    assert traceback[2].startswith("  2026-01-01 ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "redis://:hunter2@redis:6379/0"),
        ("url", "https://user:hunter2@host/path"),
        ("message", "sent Authorization: Bearer hunter2"),
        ("exception", "Traceback\n  ConnectionError: redis://u:hunter2@h refused"),
        ("authorization", "hunter2"),
        ("x_api_key", "hunter2"),
        ("redis_password", "hunter2"),
        ("auth_token", "hunter2"),
    ],
)
def test_secrets_are_taken_out_of_a_line(name: str, value: str) -> None:
    assert "hunter2" not in str(redact(None, "info", {name: value}))


def test_what_is_no_secret_is_left_alone() -> None:
    line = {"event": "loaded s3://bucket/models/a@3 from https://host:9000/x", "prompt_tokens": 12, "key": "k1"}
    assert redact(None, "info", dict(line)) == line
