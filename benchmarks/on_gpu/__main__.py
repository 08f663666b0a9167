"""Fovea's engines on one GPU at published shapes, with random weights; without a GPU, tiny ones on the CPU.

    python -m benchmarks.on_gpu [--only towers generate predict photographs index]

Prints a line of JSON for each section. Ways to do the same thing are measured by turns in this process: `ms` is the
median, `per_s` what it makes of images, tokens, inputs or queries, and `time_over_…` the ratio of the median to that of
the first way. If a section fails, its line has the error and what was measured before, the others run, and the exit
status is 1. Results of a GPU are kept in `results.jsonl`. `generate` takes about 40 GB of its memory.

towers: score's and embed's engines, from transformed images and tokenised captions, beside open_clip's own encode.
generate: prefills, further tokens and calibrated first tokens of Fovea's own engine, beside transformers.
predict: labels scored and free text, beside transformers' encoder once and decoder for each label, and its `generate`.
photographs: images a second of decoding on all cores, of embed's engine, and of the service over HTTP with its default
of decoding threads and with one for each core. Client and service share the cores, and engine and services the GPU.
index: searches by FAISS on the GPU beside those on the CPU.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

import orjson
import torch

from benchmarks.on_gpu.generate import generate
from benchmarks.on_gpu.index import index
from benchmarks.on_gpu.measuring import IS_GPU, PUBLISHED, TINY, Sizes, free
from benchmarks.on_gpu.photographs import photographs
from benchmarks.on_gpu.predict import predict
from benchmarks.on_gpu.towers import towers
from benchmarks.record import record

SECTIONS: dict[str, Callable[[Sizes], Iterator[tuple[str, Any]]]] = {
    "towers": towers,
    "generate": generate,
    "predict": predict,
    "photographs": photographs,
    "index": index,
}


def run(name: str) -> bool:
    """Print the figures of a section, and record those of a GPU; returns whether all were measured."""
    result: dict[str, Any] = {
        "section": name,
        "device": torch.cuda.get_device_name() if IS_GPU else "cpu",
        "torch": torch.__version__,
        "figures": {},
    }
    began = time.perf_counter()
    try:
        with redirect_stdout(sys.stderr):  # the store logs what is published
            for work, figures in SECTIONS[name](PUBLISHED if IS_GPU else TINY):
                result["figures"][work] = figures
    except Exception as error:  # noqa: BLE001 the next section is to run
        traceback.print_exc()
        result["error"] = repr(error)
    free()
    result["seconds"] = round(time.perf_counter() - began, 1)
    if IS_GPU and "error" not in result:
        record("on_gpu", result)
    else:
        print(orjson.dumps(result).decode(), flush=True)
    return "error" not in result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    options = parser.parse_args()
    if not IS_GPU:
        torch.set_num_threads(1)  # threads only slow such small products down
    succeeded = [run(name) for name in options.only]
    sys.exit(not all(succeeded))


if __name__ == "__main__":
    main()
