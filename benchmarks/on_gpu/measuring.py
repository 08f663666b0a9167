"""What is measured on a GPU and without one, and how ways to do the same thing are compared."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

import torch

from benchmarks import score
from benchmarks.calibration import timed
from services.embed.collections.index.vector_index import IndexOptions
from services.nn.captured import Graphs
from services.nn.clip_model import open_clip
from services.nn.devices import DeviceOptions

T = TypeVar("T")
Way = Callable[[], object]
Figures = dict[str, Any]

IS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if IS_GPU else "cpu")
DTYPE = DeviceOptions().choose_dtype(DEVICE)
NUM_ROUNDS = 7 if IS_GPU else 2


@dataclass(frozen=True)
class Sizes:
    """`clip` is open_clip's name of a model, None for a small one; `llama` a shape, `prompts` their tokens, `sequences`
    those that decode together, `documents` numbers of them; `students` are shapes of T5s, `inputs` batches of theirs;
    `photographs` those of a round; of `vectors` the CPU searches up to `max_exact` exactly."""

    clip: str | None
    batches: tuple[int, ...]
    llama: dict[str, int]
    prompts: tuple[int, ...]
    sequences: tuple[int, ...]
    documents: tuple[int, ...]
    students: tuple[str, ...]
    inputs: tuple[int, ...]
    photographs: int
    vectors: tuple[int, ...]
    max_exact: int

    def clip_config(self) -> dict[str, Any]:
        """Return the CLIP in open_clip's form."""
        found: dict[str, Any] = score.SMALL_CONFIG if self.clip is None else open_clip().get_model_config(self.clip)
        return found


PUBLISHED = Sizes(
    clip="ViT-L-14-quickgelu",
    batches=(1, 8, 128),
    llama={"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    prompts=(1040, 2048, 4096),
    sequences=(1, 32),
    documents=(10, 20),
    students=("base", "large"),
    inputs=(1, 64),
    photographs=1024,
    vectors=(100_000, 1_000_000),
    max_exact=IndexOptions().max_exact,
)
TINY = Sizes(
    clip=None,
    batches=(1, 2),
    llama={"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    prompts=(64,),
    sequences=(1, 2),
    documents=(2,),
    students=("tiny",),
    inputs=(1, 2),
    photographs=8,
    vectors=(4000,),
    max_exact=1000,
)


def compared(
    ways: Mapping[str, Way], *, num_steps: int = 1, num_items: int = 1, num_rounds: int = NUM_ROUNDS
) -> Figures:
    """Measure ways by turns, after a round that warms up. Each makes `num_steps` steps with `num_items` in each."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(num_rounds + 1):
        for name, way in ways.items():
            seconds[name].append(timed(way) / num_steps)
    medians = {name: median(some[1:]) for name, some in seconds.items()}
    first, least = next(iter(medians.items()))
    return {
        name: rounded({"ms": 1e3 * own, "per_s": num_items / own, f"time_over_{first}": own / least})
        for name, own in medians.items()
    }


def without_graphs(way: Callable[[], T]) -> Callable[[], T]:
    """Let a way start its operations one by one."""

    def eager() -> T:
        with patch.object(Graphs, "get", return_value=None):
            return way()

    return eager


def rounded(figures: Mapping[str, float]) -> Figures:
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def free() -> None:
    """Give memory that nothing refers to any more back to the GPU."""
    gc.collect()
    torch.cuda.empty_cache()
