"""Extraction by workers on Ray, each of which asks the endpoint by itself; this process alone writes the records.

`http://127.0.0.1:…` is then the machine of the worker, such as a teacher beside each of them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.core.openai_client import EndpointClient, EndpointError, Patience
from services.jobs.inquiry.record_file import RecordFile
from services.jobs.ray.cluster import Pool
from services.jobs.ray.pool import Work, mapped
from services.predict.data.inputs import Input
from services.predict.data.rationale_file import Record
from services.predict.extraction.extraction import Extraction, Plan

# Inputs of one item of work, per concurrent request: the answers that a killed job loses, and how seldom a worker waits
# for the last of them.
INPUTS_PER_REQUEST = 4


@dataclass(frozen=True)
class _Batch:
    inputs: Sequence[Input]

    def __str__(self) -> str:
        return f"the inputs {self.inputs[0].id} to {self.inputs[-1].id}"


@dataclass
class _Asked:
    """The outcome of a batch: records, failures, and the message of an error that would befall all other inputs."""

    records: list[Record] = field(default_factory=list)
    failures: list[tuple[Input, str, int | None]] = field(default_factory=list)
    ended_by: str | None = None

    async def append(self, record: Record) -> None:
        self.records.append(record)


def extract_on_ray(
    plan: Plan,
    todo: Sequence[Input],
    file: RecordFile[Record],
    workers: tuple[Pool, int, Patience],
    on_record: Callable[[Record], None],
    on_failure: Callable[[Input, EndpointError], None],
) -> None:
    """Ask about the inputs, and write each answer once; `workers` are the pool and each one's requests and patience.

    Raises EndpointError, OutputError, RayError and what `on_record` raises, each after the answers that came before.
    """
    pool, concurrency, patience = workers
    size = concurrency * INPUTS_PER_REQUEST
    batches = [_Batch(todo[start : start + size]) for start in range(0, len(todo), size)]
    for asked in mapped(batches, Work(_worker, (plan, concurrency, patience)), pool):
        asyncio.run(_append(file, asked.records))
        for one, message, status in asked.failures:
            on_failure(one, EndpointError(message, status=status))
        for record in asked.records:
            on_record(record)
        if asked.ended_by is not None:
            raise EndpointError(asked.ended_by)


async def _append(file: RecordFile[Record], records: Sequence[Record]) -> None:
    async with asyncio.TaskGroup() as group:
        for record in records:
            group.create_task(file.append(record))


def _worker(plan: Plan, concurrency: int, patience: Patience) -> Callable[[_Batch], _Asked]:
    async def ask(batch: _Batch) -> _Asked:
        asked = _Asked()

        def on_failure(one: Input, error: EndpointError) -> None:
            asked.failures.append((one, str(error), error.status))

        async with EndpointClient(plan.endpoint, patience) as teacher:
            inquiry = Extraction(plan, teacher, asked, lambda record: None).inquiry(on_failure)
            try:
                await inquiry.run(batch.inputs, concurrency)
            except EndpointError as error:
                asked.ended_by = str(error)
        return asked

    return lambda batch: asyncio.run(ask(batch))
