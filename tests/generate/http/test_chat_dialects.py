"""Chat in other APIs' forms, without a model: what a stream holds is what the whole answer holds."""

import itertools
import random
from typing import Any

import pytest

from services.generate.generation.answer_text import TokenOut
from services.generate.generation.generation import Generation, Progress, PromptFacts
from services.generate.http.anthropic_messages import MessagesAnswer, Passage
from services.generate.prompts.templates import Prompt

GENERATION = Generation(Prompt((5,), (), 0), 9)
PASSAGES = [Passage(0, "Ada", None, "Ada kept it."), Passage(1, None, None, "It was red.", 0)]
FACTS = PromptFacts(9, 4, (0.0, 0.0), None, 0, (0, 1))
TEXTS = (
    "Ada kept it. It was red.",
    'She said "no." Then Dr. Bell left.\n\n- one\n- two',
    "彼は来た。「はい。」そして去った。",
    "Wait...  and so on. e.g. this.  End",
    "One",
    "",
)


def steps(text: str, draw: random.Random) -> list[Progress]:
    """The text in pieces of any length; what is before its middle rests on the first passage, the rest on the other."""
    cuts = sorted({0, len(text), *(draw.randrange(len(text) + 1) for _ in range(len(text) // 2))})
    pieces = [text[start:end] for start, end in itertools.pairwise(cuts)] or [""]
    found = []
    for number, piece in enumerate(pieces):
        is_last, is_early = number == len(pieces) - 1, cuts[number] < len(text) // 2
        rest: Any = {"finish_reason": "stop" if is_last else None, "facts": None if number else FACTS}
        attention = ((1.0, 0.0) if is_early else (0.0, 1.0),)
        found.append(Progress(GENERATION, piece, (TokenOut(7),), number + 1, **rest, attention=attention))
    return found


def put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream, as a client makes them."""
    blocks: list[dict[str, Any]] = []
    for one in events:
        if one["type"] == "content_block_start":
            assert one["index"] == len(blocks)
            blocks.append(dict(one["content_block"]))
        elif one["type"] == "content_block_delta" and one["delta"]["type"] == "text_delta":
            blocks[one["index"]]["text"] += one["delta"]["text"]
        elif one["type"] == "content_block_delta":
            block = blocks[one["index"]]
            block["citations"] = [*(block["citations"] or ()), one["delta"]["citation"]]
    assert [one["index"] for one in events if one["type"] == "content_block_stop"] == list(range(len(blocks)))
    return blocks


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("passages", [PASSAGES, []])
def test_the_blocks_of_a_stream_are_those_of_the_whole_answer_wherever_its_pieces_end(
    text: str, passages: list[Passage]
) -> None:
    for seed in range(30):
        pieces = steps(text, random.Random(seed))
        whole, streamed = MessagesAnswer(passages), MessagesAnswer(passages)
        events: list[dict[str, Any]] = []
        for number, progress in enumerate(pieces):
            whole.choice.add(progress)
            given = streamed.choice.add(progress)
            events += [] if number else streamed.opening()
            events += streamed.delta(given.text) if given.text else []
        events += streamed.closing()
        content = whole.whole()["content"]
        assert put_together(events) == content
        assert "".join(block["text"] for block in content) == text
        assert all(block["text"] for block in content) or not text


def test_each_sentence_is_a_block_with_the_passage_that_supports_it() -> None:
    answer = MessagesAnswer(PASSAGES)
    for progress in steps(TEXTS[0], random.Random(0)):
        answer.choice.add(progress)
    first, second = answer.whole()["content"]
    assert (first["text"], second["text"]) == ("Ada kept it. ", "It was red.")
    assert [one["type"] for one in first["citations"]] == ["char_location"]
    assert [(one["start_block_index"], one["end_block_index"]) for one in second["citations"]] == [(0, 1)]
    assert answer.whole()["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": answer.choice.num_tokens,
    }
