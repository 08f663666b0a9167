"""Where indexes on a GPU are searched: on the first one, or where there is none by a stand-in of the same interface."""

import threading
from typing import Any

import faiss

from services.embed.collections.index.gpu import MAX_ANSWERS, Gpu, first_gpu


class Limited:
    """A FAISS index that, as on a GPU, returns few results and knows no filters."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def search(self, queries: Any, k: int, params: Any = None) -> Any:
        assert k <= MAX_ANSWERS
        assert params is None or (params.nprobe <= MAX_ANSWERS and params.sel is None)
        return self._index.search(queries, k, params=params)


class Processor(Gpu):
    """Searches with FAISS's indexes for processors."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def flat(self, width: int) -> Any:
        return faiss.IndexFlatIP(width)

    def copy(self, lists: Any) -> Any:
        return Limited(faiss.clone_index(lists))


def device() -> Gpu:
    return first_gpu() or Processor()
