import asyncio
import threading

import pytest

from services.generate.prompts.abandonment import in_thread
from services.generate.prompts.templates import Piece, tokenise
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

    task = asyncio.create_task(in_thread(work))
    assert await asyncio.to_thread(is_running.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_go_on.set()
    assert await asyncio.to_thread(has_ended.wait, 60)
    assert len(tokenised) == 1


async def test_what_is_waited_for_comes() -> None:
    assert await in_thread(lambda: tokenise(tiny_tokenizer(), [Piece("the keeper")]).input_ids)
