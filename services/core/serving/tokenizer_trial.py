"""A trial of a version's tokenizers in a process that can be killed, before the service reads them.

The regular expressions and replacements of a `tokenizer.json` come with the version, and can take hours or all memory.
While the library reads the file, no other thread of its process runs, and none can be stopped in it.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from services.core.serving import tokenizer_worker
from services.core.serving.served_checkpoint import VersionRefused
from services.core.store.errors import StoreUnavailable

WORKER = Path(tokenizer_worker.__file__)
# A vocabulary of 260,000 tokens takes some 2 s; many long texts and a machine that is busy take more.
CPU_S = 30
MEMORY_BYTES, MEMORY_OF_FILES = 2**30, 64
LOOK_S = 0.01
SIGNALS_OF_EXCESS = (signal.SIGXCPU, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


def try_tokenizers(label: str, folder: Path, *, cpu_s: int = CPU_S) -> None:
    """Read the tokenizers of the version `label`, and with them the texts of its JSON files, in another process.

    Raises VersionRefused for one that needs more time or memory than that process has, breaks its library, or has other
    files than `tokenizer.json`, and StoreUnavailable if the process can't be started or ends in another way. The
    process ends with an exception that is raised in this thread from outside.
    """
    names = (tokenizer_worker.TOKENIZER, tokenizer_worker.TOKENIZER_CONFIG)
    files = [file for file in folder.rglob("*.json") if file.name.lower() in names]
    if not files:
        return
    # of the largest: they are read one after the other
    memory_bytes = MEMORY_BYTES + MEMORY_OF_FILES * max(file.stat().st_size for file in files)
    # -P: files of the worker's folder must not shadow libraries of the same name
    command = [sys.executable, "-P", str(WORKER), str(cpu_s), str(memory_bytes), str(folder)]
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
    code = worker.returncode
    if code == tokenizer_worker.NAMES_OTHERS:
        raise VersionRefused(
            f"{label}: its tokenizer_config.json has fast_tokenizer_files, which may name untried files"
        )
    if code == tokenizer_worker.BROKEN or -code in SIGNALS_OF_EXCESS:
        raise VersionRefused(
            f"{label}: its tokenizer.json takes more than {cpu_s} s of processor time or {memory_bytes} bytes of "
            "memory, or breaks its library"
        )
    if code:
        raise StoreUnavailable(f"{label}: the process that tried its tokenizer ended with {code}")
