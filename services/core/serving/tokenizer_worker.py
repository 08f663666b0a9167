"""The process in which the tokenizers of a version are tried; it is killed if one needs too much.

Other errors do not matter here: the engine that loads the tokenizer reports them.
"""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
# They hold no texts, or those of which a tokenizer consists.
NO_TEXTS = (TOKENIZER, "vocab.json", "tekken.json", ".index.json")
SAMPLE = "What is written on the second page? A red square, 2 blue circles."
# Exit codes, which Python has no other use for: it lacks memory or its library panicked; there are untried files.
BROKEN, NAMES_OTHERS = 3, 4


def main() -> int:
    """Run `tokenizer_worker.py CPU_S MEMORY_BYTES FOLDER`; returns the exit code."""
    cpu_s, memory_bytes = map(int, sys.argv[1:3])
    for kind, wanted in ((resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, memory_bytes)):
        hard = resource.getrlimit(kind)[1]
        with suppress(ValueError, OSError):  # macOS can't limit memory
            resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    with suppress(OSError):  # Linux: where memory lacks, this process is killed rather than the service
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        return 0  # nor can the service read one
    try:
        return _try(Path(sys.argv[3]), Tokenizer)
    except MemoryError:
        return BROKEN
    except Exception:
        raise
    except BaseException:  # noqa: BLE001 - a panic of the library
        return BROKEN


def _try(folder: Path, library: Any) -> int:
    """Read each tokenizer, and what may be tokenised while the version is loaded: labels, prompts, added tokens,
    reference inputs."""
    files, texts = sorted(folder.rglob("*.json")), {SAMPLE}
    for file in files:
        if not file.name.endswith(NO_TEXTS):
            with suppress(ValueError, TypeError, RecursionError):
                content = json.loads(file.read_bytes())
                if file.name.lower() == TOKENIZER_CONFIG and "fast_tokenizer_files" in content:
                    return NAMES_OTHERS  # by which transformers reads one of another name
                texts.update(_texts_in(content))
    for file in files:
        if file.name.lower() != TOKENIZER:
            continue
        try:
            tokenizer = library.from_file(str(file))
        except Exception:  # noqa: BLE001 - the library has no class of its own
            continue
        for text in texts:
            try:
                tokenizer.decode(tokenizer.encode(text).ids)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001
                continue
    return 0


def _texts_in(content: Any) -> Iterator[str]:
    values = [content]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            values.extend(value)
            values.extend(value.values() if isinstance(value, dict) else ())


if __name__ == "__main__":
    sys.exit(main())
