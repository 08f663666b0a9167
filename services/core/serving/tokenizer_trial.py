"""A trial of a version's tokenizers in a process that can be killed, before the service reads them.

The regular expressions and replacements of a `tokenizer.json` come with the version, and can take hours or all memory.
While the library reads the file, no other thread of its process runs, and none can be stopped in it.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from services.core.serving.served_checkpoint import Refused
from services.core.store.errors import StoreUnavailable

WORKER = Path(__file__).with_name("tokenizer_worker.py")
# Far more than a vocabulary of 250,000 tokens takes.
CPU_S = 30
MEMORY_BYTES, MEMORY_OF_FILES = 2**29, 32
LOOK_S = 0.01


def try_tokenizers(label: str, folder: Path, *, cpu_s: int = CPU_S) -> None:
    """Read the tokenizers of the version `label`, and with them the texts beside them, in another process.

    Raises Refused for one that needs more time or memory than that process has, or breaks its library, and
    StoreUnavailable if the process can't be started or was killed from outside. The process ends with an exception
    that is raised in this thread from outside.
    """
    files = sorted(folder.rglob("tokenizer.json"))
    if not files:
        return
    memory_bytes = MEMORY_BYTES + MEMORY_OF_FILES * sum(file.stat().st_size for file in files)
    # -P: files of the worker's folder must not shadow libraries of the same name
    command = [sys.executable, "-P", str(WORKER), str(cpu_s), str(memory_bytes), *map(str, files)]
    nothing = subprocess.DEVNULL
    try:
        worker = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    except OSError as error:
        raise StoreUnavailable(f"{label}: no process can be started to try its tokenizer") from error
    try:
        while worker.poll() is None:
            time.sleep(LOOK_S)  # in Python, where such an exception is noticed
    finally:
        worker.kill()
        worker.wait()
    if worker.returncode == -signal.SIGKILL:
        raise StoreUnavailable(f"{label}: the process that tried its tokenizer was killed")
    if worker.returncode:
        raise Refused(
            f"{label}: its tokenizer.json takes more than {cpu_s} s of processor time or {memory_bytes} bytes of "
            "memory, or breaks its library"
        )
