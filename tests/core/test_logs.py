"""Read from the stdout of a real process: one JSON object a line, whoever logs."""

import asyncio
from collections.abc import Callable

import aiohttp
import pytest

from services.core.logs import redact
from tests.core.served_app import SECRET
from tests.core.served_process import ServedProcess

Serve = Callable[..., ServedProcess]


async def log_after(served: ServedProcess, path: str, **headers: str) -> list[dict[str, object]]:
    await served.started()
    async with aiohttp.ClientSession() as session, session.get(f"{served.url}{path}", headers=headers) as response:
        await response.read()
    served.terminate()
    assert await served.exit_status() == 0
    return served.log()


async def test_a_request_is_one_line_with_its_id_and_no_query(serve: Serve) -> None:
    log = await log_after(serve(), "/slow?seconds=0.001&private=1", **{"x-request-id": "mine"})
    (line,) = [line for line in log if line["message"] == "request"]
    assert line["request_id"] == "mine"
    assert (line["method"], line["path"], line["status"], line["level"]) == ("GET", "/slow", 200, "info")
    assert isinstance(line["duration_ms"], float)
    assert "private" not in str(log)


async def test_probes_and_scrapes_are_not_logged(serve: Serve) -> None:
    log = await log_after(serve(), "/metrics")
    assert not [line for line in log if line["message"] == "request"]


async def test_what_a_library_logs_is_of_the_same_kind(serve: Serve) -> None:
    served = serve()
    await served.started()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"this is no HTTP\r\n\r\n")
    await reader.read()
    writer.close()
    served.terminate()
    assert await served.exit_status() == 0
    (warning,) = [line for line in served.log() if line.get("logger") == "uvicorn.error"]
    assert (warning["level"], warning["message"]) == ("warning", "Invalid HTTP request received.")
    assert all({"level", "timestamp", "message"} <= set(line) for line in served.log())


async def test_a_process_says_when_it_listens_drains_and_has_stopped(serve: Serve) -> None:
    log = await log_after(serve(), "/livez")
    assert [line["message"] for line in log] == ["listening", "draining", "stopped"]


async def test_a_defect_is_logged_once_with_its_traceback_and_request(serve: Serve) -> None:
    log = await log_after(serve(), "/fail/defect", **{"x-request-id": "mine"})
    (error,) = [line for line in log if line["level"] == "error"]
    assert error["request_id"] == "mine"
    assert f"RuntimeError: {SECRET}" in str(error["exception"])
    assert "served_app.py" in str(error["exception"])


async def test_lines_below_the_level_are_left_out(serve: Serve) -> None:
    served = serve(log_level="error", fail_to_warm_up=True)
    assert await served.exit_status() == 1
    (line,) = served.log()
    assert (line["level"], line["message"]) == ("error", "warm-up failed")


async def test_the_console_format_is_text_for_a_person(serve: Serve) -> None:
    served = serve(log_format="console", fail_to_warm_up=True)
    assert await served.exit_status() == 1
    assert "[info     ] listening" in served.text()
    assert "FoveaError: no checkpoint" in served.text()


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
