"""Engines whose answers say what was asked, and which a test can hold, break and look into."""

import threading
from collections.abc import Callable, Sequence

from services.core.batching.batcher import Submission


class RecordingEngine:
    """Answers `text` with `text` in capitals and remembers every batch, in the order in which they ran.

    A batch that finds `gate` closed sets `entered` and waits. `fault` is called with each batch first.
    """

    def __init__(self, fault: Callable[[Sequence[str]], None] | None = None) -> None:
        self.batches: list[list[str]] = []
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.fault = fault

    def run_batch(self, items: Sequence[str]) -> list[str]:
        self.batches.append(list(items))
        if not self.gate.is_set():  # a gate that closes after this holds the next call
            self.entered.set()
            assert self.gate.wait(60), "the test left the gate closed"
        if self.fault is not None:
            self.fault(items)
        return [item.upper() for item in items]

    @property
    def computed(self) -> list[str]:
        return [item for batch in self.batches for item in batch]


class CollatingRecordingEngine(RecordingEngine):
    """Joins the items of a batch beforehand; remembers on which thread, and which batches came ready."""

    def __init__(self) -> None:
        super().__init__()
        self.collated: list[list[str]] = []
        self.has_collated = threading.Event()
        self.collating_threads: set[str] = set()
        self.ready_batches: list[list[str]] = []
        self.collate_error: Exception | None = None

    def collate(self, items: Sequence[str]) -> str:
        self.collated.append(list(items))
        self.collating_threads.add(threading.current_thread().name)
        self.has_collated.set()
        if self.collate_error is not None:
            raise self.collate_error
        return ",".join(items)

    def run_collated(self, batch: str) -> list[str]:
        items = batch.split(",")
        self.ready_batches.append(items)
        return self.run_batch(items)


def submission(item: str, cost: int = 1) -> Submission[str]:
    return Submission(item, cost=cost, length=cost)
