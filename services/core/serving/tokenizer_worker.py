"""The process in which the tokenizers of a version are tried; it is killed if one needs too much.

Errors do not matter here: the engine that loads the tokenizer reports them.
"""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

SAMPLE = "What is written on the second page? A red square, 2 blue circles."


def main() -> None:
    """`tokenizer_worker.py CPU_S MEMORY_BYTES FILE …`."""
    cpu_s, memory_bytes = map(int, sys.argv[1:3])
    for kind, wanted in ((resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, memory_bytes)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    with suppress(OSError):  # Linux: where memory lacks, this process is killed, not the service
        Path("/proc/self/oom_score_adj").write_text("1000")
    for path in map(Path, sys.argv[3:]):
        try:
            _try(path)
        except MemoryError:
            sys.exit(1)
        except Exception:  # noqa: BLE001 - a panic of the library is none, and ends the process
            continue


def _try(path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    for text in {SAMPLE, *_texts_beside(path)}:
        with suppress(Exception):
            tokenizer.decode(tokenizer.encode(text).ids)


def _texts_beside(path: Path) -> Iterator[str]:
    """Yield what may be tokenised while the version is loaded: labels, prompts, added tokens, reference inputs."""
    for file in path.parent.glob("*.json"):
        if file != path:
            with suppress(ValueError, RecursionError):
                yield from list(_texts_in(json.loads(file.read_bytes())))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(inner)


if __name__ == "__main__":
    main()
