"""vLLM's engine with the plug-in, in runs that a server cannot be made to repeat."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.vllm_plugin.engine import BLOCK_SIZE, Offline, running_offline
from tests.vllm_plugin.own_answers import MAX_TOKENS, Question, assert_equal, load, own_answers, question, save

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

QUESTIONS = [question(seed) for seed in range(100, 140)]
LATER = [question(seed) for seed in range(140, 180)]
# Too few for 8 requests. Behind Mistral's window blocks are free again, so it needs fewer.
NUM_BLOCKS = {"llama": 18, "mistral": 7}

Rounds = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Offline]:
    with running_offline(tmp_path_factory.mktemp("engine") / "log") as offline:
        yield offline


@pytest.fixture(scope="module", params=NUM_BLOCKS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("offline"), request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("offline"), "llama")


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "qwen3"])
def test_every_architecture_answers_as_in_the_own_engine(architecture: str, offline: Offline, tmp_path: Path) -> None:
    """Llama is served in `test_served`."""
    checkpoint = save(tmp_path, architecture)
    questions = [question(seed, is_per_head=seed % 5 == 0) for seed in range(30)]
    calibrated, plain = ([getattr(one, kind) for one in questions] for kind in ("request", "plain_request"))
    measuring = [
        one.plain_request | {"max_tokens": 1, "fields": one.documents | {"fovea_measure": str(number)}}
        for number, one in enumerate(questions[:10])
    ]
    first, again, without, measured = offline.run(checkpoint, [calibrated, calibrated, plain, measuring])["answers"]
    own = own_answers(load(checkpoint), questions)
    assert_equal(first, own)
    assert_equal(again, own)
    assert sum(answer["cached"] for answer in again) > 0
    assert sum(one["tokens"] != of.tokens for one, of in zip(without, own, strict=True)) > len(questions) / 4
    for answer, of in zip(measured, own, strict=False):
        torch.testing.assert_close(torch.tensor(answer["attention"]), of.attention, rtol=0, atol=2e-5)


def test_prompts_in_small_chunks_and_preempted_answers_are_those_of_the_own_engine(
    checkpoint: Path, offline: Offline
) -> None:
    """Let a running answer that needs another block preempt the last, which is then computed again."""
    asked, max_tokens = QUESTIONS[:16], 60
    own = own_answers(load(checkpoint), asked, max_tokens)
    found = offline.run(
        checkpoint,
        [[one.request | {"max_tokens": max_tokens} for one in asked]],
        engine={"max_num_batched_tokens": 24, "num_gpu_blocks_override": NUM_BLOCKS[checkpoint.name]},
    )
    assert found["num_preemptions"] > 0
    assert_equal(found["answers"][0], own)


def test_processes_that_share_the_heads_calibrate_each_its_own(llama: Path, offline: Offline) -> None:
    asked = [question(seed, is_per_head=seed % 2 == 0) for seed in range(200, 220)]
    found = offline.run(llama, [[one.request for one in asked]], engine={"tensor_parallel_size": 2})
    assert_equal(found["answers"][0], own_answers(load(llama), asked))


def poisoned_rounds(asked: Question) -> Rounds:
    """A calibrated answer, then the same tokens without calibration, one token longer each time."""
    length = len(asked.input_ids) // BLOCK_SIZE * BLOCK_SIZE
    spans = tuple((start, min(end, length)) for start, end in asked.spans if start < length)
    first = [place for span in spans for place in span]
    fields = {
        "fovea_documents": first,
        "fovea_log_alpha": [-5.0 * number for number in range(len(spans))],
        "fovea_layers": [0, 1, 2, 3],
    }
    # its last prompt row, which is calibrated, fills a block
    prompt = list(asked.input_ids[:length])
    calibrated = {"input_ids": prompt, "max_tokens": MAX_TOKENS, "fields": fields}
    plain = {"input_ids": [*prompt, 7, 8, 9], "max_tokens": MAX_TOKENS}
    return [[calibrated], [plain]]


POISONED = poisoned_rounds(next(asked for asked in LATER if len(asked.input_ids) > 2 * BLOCK_SIZE))
OF_SEVERAL_ROWS = [asked for asked in LATER if asked.first_row < len(asked.input_ids) - 1]


@pytest.fixture(scope="module")
def rounds(llama: Path, offline: Offline) -> Rounds:
    """Answers with the plug-in: of a mixed batch, of both rounds of a poisoned prompt, and of prompts that are answered
    without calibration before they are calibrated."""
    mixed = [asked.request if number % 2 else asked.plain_request for number, asked in enumerate(QUESTIONS)]
    plain, calibrated = ([getattr(asked, kind) for asked in OF_SEVERAL_ROWS] for kind in ("plain_request", "request"))
    answers: Rounds = offline.run(llama, [mixed, *POISONED, plain, calibrated])["answers"]
    return answers


@pytest.fixture(scope="module")
def stock(llama: Path, offline: Offline) -> Rounds:
    """Answers of vLLM without the plug-in: of a batch, and of the poisoned prompt's tokens twice."""
    batch = [asked.plain_request for asked in QUESTIONS]
    found = offline.run(llama, [batch, POISONED[1], POISONED[1]], is_stock=True)
    answers: Rounds = found["answers"]
    return answers


def test_other_requests_of_the_batch_are_those_of_vllm_without_the_plug_in_to_the_last_bit(
    rounds: Rounds, stock: Rounds
) -> None:
    assert rounds[0][::2] == stock[0][::2]
    assert rounds[0][1::2] != stock[0][1::2]


def test_keys_of_calibrated_rows_are_never_found_by_others(rounds: Rounds, stock: Rounds) -> None:
    after, (_, again, repeated) = rounds[2], stock
    assert after[0]["tokens"] == repeated[0]["tokens"]
    assert after[0]["logprobs"] == pytest.approx(again[0]["logprobs"], abs=1e-5, rel=0)
    assert after[0]["cached"] == repeated[0]["cached"] - BLOCK_SIZE  # all blocks but the calibrated one are shared


def test_calibrated_requests_never_find_the_keys_of_plain_rows_that_they_calibrate(llama: Path, rounds: Rounds) -> None:
    calibrated = rounds[4]
    assert_equal(calibrated, own_answers(load(llama), OF_SEVERAL_ROWS))
    assert sum(answer["cached"] for answer in calibrated) > 0


def test_without_their_own_block_hashes_they_would_be(llama: Path, offline: Offline, stock: Rounds) -> None:
    _, after = offline.run(llama, POISONED, has_block_hashes=False)["answers"]
    assert after[0]["logprobs"] != pytest.approx(stock[1][0]["logprobs"], abs=1e-5, rel=0)
