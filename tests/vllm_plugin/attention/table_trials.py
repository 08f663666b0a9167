"""Attend random steps by tables, with the kernel interpreted, and hold every layer to the torch path.

    TRITON_INTERPRET=1 python -m tests.vllm_plugin.attention.table_trials FIRST COUNT

The last line is a JSON object: `operations` on tensors and `launches` for a step of one row and for one of six.
"""

import json
import random
import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fovea_vllm.tables as tables_module
from fovea_vllm.attention import kernels
from fovea_vllm.request import DocumentRequest
from fovea_vllm.step import Measurements, Row, Step, rows_of
from fovea_vllm.tables import StepTables

LAYERS, WIDTH, BLOCK = 3, 32, 16
UNTOUCHED = 7.0


class RandomStep:
    """Requests of a batch, calibrated, measured or plain, some decoding and some with their whole prompt."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.num_groups, per_group = draw.choice([1, 2]), draw.choice([1, 3])
        self.num_heads = self.num_groups * per_group
        self.window = draw.choice([None, None, 30])
        self.requests: dict[int, DocumentRequest] = {}
        self.starts, self.lengths = [0], list[int]()
        for place in range(draw.randint(1, 5)):
            num_prompt = draw.randint(4, 120)
            num_new = draw.choice([1, 1, num_prompt])
            if request := self._request(draw, num_prompt, place):
                self.requests[place] = request
            is_prompt = num_new > 1 or (request is not None and request.measure_key is not None)
            self.starts.append(self.starts[-1] + num_new)
            self.lengths.append(num_prompt if is_prompt else num_prompt + draw.randint(0, 20))
        num_blocks = [-(-length // BLOCK) for length in self.lengths]
        places = torch.split(torch.randperm(sum(num_blocks), generator=generator), num_blocks)
        self.block_table = torch.zeros(len(places), max(num_blocks), dtype=torch.int32)
        for place, blocks in enumerate(places):
            self.block_table[place, : len(blocks)] = blocks
        cache = torch.randn(sum(num_blocks), self.num_groups, BLOCK, 2 * WIDTH, generator=generator).transpose(1, 2)
        self.caches = cache[..., :WIDTH], cache[..., WIDTH:]
        self.query = torch.randn(self.starts[-1], self.num_heads, WIDTH, generator=generator)
        self.seq_lens = torch.tensor(self.lengths, dtype=torch.int32)

    def _request(self, draw: random.Random, num_prompt: int, place: int) -> DocumentRequest | None:
        places = sorted(draw.randint(0, num_prompt) for _ in range(2 * draw.randint(1, 5)))
        spans = tuple(zip(places[::2], places[1::2], strict=True))
        layers = tuple(sorted(draw.sample(range(LAYERS), draw.randint(1, LAYERS))))
        kind = draw.choice(["calibrated", "per head", "from a row on", "measured", "plain"])
        if kind == "plain":
            return None
        if kind == "measured":
            return DocumentRequest(spans, measure_key=str(place), num_prompt_tokens=num_prompt)
        count = len(spans) * (self.num_heads * len(layers) if kind == "per head" else 1)
        log_alpha = tuple(draw.gauss(0, 1) for _ in range(count))
        first = draw.randint(0, num_prompt - 1) if kind == "from a row on" else None
        return DocumentRequest(spans, log_alpha, layers, first, num_prompt_tokens=num_prompt)

    @property
    def rows(self) -> list[Row]:
        return rows_of(self.requests, range(len(self.lengths)), self.starts, self.lengths)

    def tables(self) -> StepTables:
        heads = (self.num_heads, self.num_groups, WIDTH)
        return StepTables(
            num_layers=LAYERS,
            heads=heads,
            first_head=0,
            windows=[self.window],
            max_rows=8,
            max_tokens=512,
            device=torch.device("cpu"),
        )

    def attend(self, attend: Any, layer: int, *arguments: Any) -> Tensor:
        output = torch.full(self.query.shape, UNTOUCHED)
        attend(layer, self.query, *self.caches, *arguments[:1], output, *arguments[1:], scale=0.2, window=self.window)
        return output


def hold(seed: int) -> None:
    """Compare a step, written at once and as a graph sees it that was captured before."""
    step = RandomStep(seed)
    if not step.rows:
        return
    tables_module.MAX_PIECES = (8192, 12)[seed % 2]  # one launch, and several
    tables, expected, found = step.tables(), Measurements(LAYERS), Measurements(LAYERS)
    captured = tables.captured(step.seq_lens)
    written = tables.step(step.rows, step.seq_lens, found)
    assert written is not None and written.seq_lens is not None
    reference = Step(tuple(step.rows), step.block_table)
    for layer in range(LAYERS):
        wanted = torch.full(step.query.shape, UNTOUCHED)
        reference.attend(layer, step.query, *step.caches, wanted, expected, scale=0.2, window=step.window)
        torch.testing.assert_close(step.attend(written.attend, layer, step.block_table), wanted, rtol=1e-5, atol=1e-5)
        if tables.fits([row.request for row in step.rows]):
            replayed = step.attend(captured.attend, layer, step.block_table)
            torch.testing.assert_close(replayed, wanted, rtol=1e-5, atol=1e-5)
        overwritten = {
            row.place for row in step.rows if row.is_alone and not row.is_measured and layer in row.request.layers
        }
        lengths = [1 if place in overwritten else length for place, length in enumerate(step.lengths)]
        assert written.seq_lens[layer].tolist() == lengths
    for key in [request.measure_key for request in step.requests.values() if request.measure_key is not None]:
        wanted_numbers, numbers = expected.take(key), found.take(key)
        torch.testing.assert_close(torch.tensor(numbers), torch.tensor(wanted_numbers), rtol=1e-4, atol=1e-6)
    assert tables.step([], step.seq_lens, found) is None
    assert bool((step.attend(captured.attend, 0, step.block_table) == UNTOUCHED).all())


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations on tensors."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def counts() -> dict[str, list[int]]:
    """Count what a step of one row and of six costs."""
    tables_module.MAX_PIECES = 8192
    step = RandomStep(0)
    request = DocumentRequest(((0, 10), (10, 30)), (0.0, 1.0), (0, 2), num_prompt_tokens=40)
    tables, measurements = step.tables(), Measurements(LAYERS)
    operations, launches = [], []
    for num_rows in (1, 6):
        rows = [Row(place, place, 41, request, False, True) for place in range(num_rows)]
        with Operations() as counted:  # type: ignore[no-untyped-call]
            written = tables.step(rows, torch.full((num_rows,), 41, dtype=torch.int32), measurements)
        assert written is not None
        operations.append(counted.count)
        launches.append(len(written.scratches[step.window]))
    return {"operations": operations, "launches": launches}


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    kernels.num_programs.cache_clear()
    for seed in range(first, first + count):
        try:
            hold(seed)
        except AssertionError as error:
            raise SystemExit(f"trial {seed}: {error}") from error
    print(json.dumps(counts()))


if __name__ == "__main__":
    main()
