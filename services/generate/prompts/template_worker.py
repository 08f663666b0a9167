"""The process in which chat templates are rendered: a template is a program that came with a checkpoint.

Reads requests from stdin and writes answers to stdout, each a JSON document after its length in eight bytes; ends when
stdin does. The system kills it if a template exceeds its CPU time, even if the parent no longer exists.
"""

import json
import os
import resource
import struct
import sys
import traceback
from pathlib import Path
from typing import IO, Any

LENGTH = struct.Struct("<Q")
# Maximum length of an error's text, which is the template's own.
MAX_MESSAGE_CHARACTERS = 500


def main() -> None:
    """`template_worker.py CPU_S MEMORY_BYTES MAX_CHARACTERS`: the bounds of one rendering."""
    cpu_s, memory_bytes, max_characters = map(int, sys.argv[1:])
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not be mistaken for an answer
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit_memory(memory_bytes)
    while (request := _read(requests)) is not None:
        used_s = sum(os.times()[:2])
        _limit(resource.RLIMIT_CPU, int(used_s) + 1 + cpu_s)
        _write(answers, _answer(render_jinja_template, request, max_characters))


def _answer(render: Any, request: dict[str, Any], max_characters: int) -> dict[str, str]:
    try:
        [text], _ = render([request.pop("messages")], add_generation_prompt=True, **request)
    except MemoryError:
        return {"exceeded": "memory"}
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return {"refused": _told(error)[:MAX_MESSAGE_CHARACTERS]}
    return {"text": text} if len(text) <= max_characters else {"exceeded": f"{max_characters} characters"}


def _told(error: Exception) -> str:
    """Say what a template raised and, where it is known, in which of its lines."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    line = getattr(error, "lineno", None) or next(reversed(lines), None)
    told = getattr(error, "message", None) or f"{error}" or type(error).__name__
    return f"{told} (line {line})" if line else told


def _limit_memory(more_bytes: int) -> None:
    """Limit memory to the current use plus this number, if the system reports its use (Linux)."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        in_use = int(statm.read_text().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, in_use + more_bytes)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _read(file: IO[bytes]) -> dict[str, Any] | None:
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    request: dict[str, Any] = json.loads(file.read(LENGTH.unpack(head)[0]))
    return request


def _write(file: IO[bytes], answer: dict[str, str]) -> None:
    body = json.dumps(answer).encode("ascii")
    file.write(LENGTH.pack(len(body)) + body)
    file.flush()


if __name__ == "__main__":
    main()
