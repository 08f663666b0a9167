import asyncio
import threading

import pytest

from services.core.exchange import Caller, set_caller
from services.generate.prompts.abandonment import check_wanted
from services.generate.prompts.templates import Piece, tokenise
from services.generate.prompts.turns import PreparationTurns
from tests.generate.tiny_models import tiny_tokenizer


async def test_tokenising_stops_with_its_request_before_the_next_prompt() -> None:
    tokenizer = tiny_tokenizer()
    is_running, may_go_on, has_ended = threading.Event(), threading.Event(), threading.Event()
    tokenised = []

    def work() -> None:
        try:
            for number in range(100):
                tokenised.append(tokenise(tokenizer, [Piece(f"the lighthouse {number}")]))
                is_running.set()
                assert may_go_on.wait(60)
        finally:
            has_ended.set()

    task = asyncio.create_task(PreparationTurns().run(work))
    assert await asyncio.to_thread(is_running.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_go_on.set()
    assert await asyncio.to_thread(has_ended.wait, 60)
    assert len(tokenised) == 1


async def test_what_is_waited_for_comes() -> None:
    assert await PreparationTurns().run(lambda: tokenise(tiny_tokenizer(), [Piece("the keeper")]).input_ids)


class Work:
    """Work in a thread of several steps, each of which waits to be let on."""

    def __init__(self, name: str, begun: list[str], num_steps: int = 1) -> None:
        self.name = name
        self.may_go_on = threading.Semaphore(0)
        self.has_begun = threading.Event()
        self._begun = begun
        self._num_steps = num_steps

    def __call__(self) -> None:
        for _ in range(self._num_steps):
            check_wanted()
            self._begun.append(self.name)
            self.has_begun.set()
            assert self.may_go_on.acquire(timeout=60)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.has_begun.wait, 60)


async def run(turns: PreparationTurns, client: str, work: Work) -> None:
    set_caller(Caller(client))
    await turns.run(work)


async def test_a_client_with_much_to_prepare_leaves_room_for_another_s_request() -> None:
    turns, begun = PreparationTurns(2), list[str]()
    many = [Work("one", begun) for _ in range(16)]
    other = Work("two", begun)
    running = [asyncio.create_task(run(turns, "one", work)) for work in many]
    running.append(asyncio.create_task(run(turns, "two", other)))
    await other.begun()
    assert begun.count("one") <= 2
    for work in (*many, other):
        work.may_go_on.release()
    await asyncio.gather(*running)
    assert len(begun) == 17


async def test_long_work_lets_other_clients_go_first_at_its_next_step() -> None:
    turns, begun = PreparationTurns(1), list[str]()
    long, longer, short = Work("one", begun, 3), Work("two", begun), Work("three", begun)
    running = [asyncio.create_task(run(turns, work.name, work)) for work in (long, longer)]
    await long.begun()
    await longer.begun()
    running.append(asyncio.create_task(run(turns, "three", short)))
    await asyncio.sleep(0)
    long.may_go_on.release()
    await short.begun()
    assert sorted(begun) == ["one", "three", "two"]
    for work in (short, longer, long, long):
        work.may_go_on.release()
    await asyncio.gather(*running)
    assert sorted(begun) == ["one", "one", "one", "three", "two"]
