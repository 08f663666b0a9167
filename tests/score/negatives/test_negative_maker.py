"""Hard negatives on threads of their own: bounded, and never in the way of the event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from services.core.errors import Overloaded
from services.core.exchange import Timing
from services.core.metrics import Metrics
from services.score.negatives.annotation import Annotation, Annotator, best_annotator
from services.score.negatives.hard_negatives import HardNegatives
from services.score.negatives.lexicon import Vocabulary
from services.score.negatives.negative_maker import NegativeMaker

CAPTION = "a red circle left of a blue square"


class HeldBack:
    """Reads a caption when it may."""

    def __init__(self, annotator: Annotator) -> None:
        self._annotator = annotator
        self.threads: set[str] = set()
        self.may_read = threading.Event()
        self.may_read.set()

    @property
    def name(self) -> str:
        return self._annotator.name

    def annotate(self, caption: str) -> Annotation:
        assert self.may_read.wait(30)
        self.threads.add(threading.current_thread().name)
        return self._annotator.annotate(caption)


@pytest.fixture
def annotator() -> HeldBack:
    return HeldBack(best_annotator())


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("score")


@pytest.fixture
async def maker(annotator: HeldBack, metrics: Metrics) -> AsyncIterator[NegativeMaker]:
    sources = {"tagger": annotator.name, "wordnet": "/usr/share/somewhere/wordnet.zip"}
    made = NegativeMaker(lambda: HardNegatives(annotator, Vocabulary(), sources), max_waiting=2, metrics=metrics)
    async with made.opened():
        yield made


def num_refused(metrics: Metrics, reason: str) -> float:
    return metrics.registry.get_sample_value("fovea_rejected_total", {"reason": reason}) or 0.0


async def test_negatives_are_those_of_the_caption_and_the_seed(maker: NegativeMaker, annotator: HeldBack) -> None:
    await maker.start()
    expected = HardNegatives(best_annotator(), Vocabulary())
    for seed in range(3):
        made = await maker.make(CAPTION, ["negclip", "relation"], seed, Timing())
        assert made == expected.make(CAPTION, ["negclip", "relation"], seed)
    assert all(name.startswith("negatives") for name in annotator.threads)


async def test_before_it_is_loaded_requests_are_told_to_wait(maker: NegativeMaker, metrics: Metrics) -> None:
    unloaded = maker.sources
    assert unloaded is None
    with pytest.raises(Overloaded) as refused:
        await maker.make(CAPTION, ["negclip"], 0, Timing())
    assert refused.value.code == "loading"
    assert num_refused(metrics, "loading") == 1
    await maker.start()
    assert (maker.sources or {})["wordnet"] == "wordnet.zip"
    await maker.make(CAPTION, ["negclip"], 0, Timing())


async def test_more_captions_than_may_wait_are_refused_at_once(
    maker: NegativeMaker, annotator: HeldBack, metrics: Metrics
) -> None:
    await maker.start()
    annotator.may_read.clear()
    waiting = [asyncio.create_task(maker.make(f"a red circle {n}", ["negclip"], 0, Timing())) for n in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await maker.make(CAPTION, ["negclip"], 0, Timing())
    assert refused.value.code == "queue_full"
    assert num_refused(metrics, "queue_full") == 1
    annotator.may_read.set()
    assert len(await asyncio.gather(*waiting)) == 3
    await maker.make(CAPTION, ["negclip"], 0, Timing())


async def test_who_gives_up_leaves_room_for_others(maker: NegativeMaker, annotator: HeldBack) -> None:
    await maker.start()
    annotator.may_read.clear()
    for number in range(8):
        call = asyncio.create_task(maker.make(f"a red circle {number}", ["negclip"], 0, Timing()))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    annotator.may_read.set()
    timing = Timing()
    await maker.make(CAPTION, ["negclip"], 0, timing)
    assert "negatives" in timing.stages
