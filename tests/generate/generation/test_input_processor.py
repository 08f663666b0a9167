"""Requests before the queue: what fits is prepared, anything else is refused before it waits."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from services.core.errors import InvalidField, InvalidRequest, TooLarge
from services.generate.generation.generation import AnswerOptions
from services.generate.generation.input_processor import InputProcessor
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import CalibrationProfile
from services.generate.prompts.templates import Document
from services.nn.devices import DeviceOptions
from tests.generate.tiny_models import save_tiny

PROFILE = CalibrationProfile(enabled=True, bias="tree", temperature=0.001, layers=(1, 2), rel_layers=(0, 1, 2, 3))
QUERY = "who kept the lighthouse"
DOCUMENTS = (
    Document("The keeper of the lighthouse was called Ada.", title="The lighthouse"),
    Document("The harbour was built by the people of the island, who fished.", title="The harbour"),
    Document("Many traded with the mainland."),
)
SHORT = AnswerOptions(max_tokens=6, ignore_eos=True)


def processor_of(directory: Path) -> InputProcessor:
    model = LanguageModel.load(directory, DeviceOptions(device="cpu", dtype="float32"))
    return InputProcessor(model.tokenizer, model.config, PROFILE, model.config.max_model_len)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def processor(directory: Path) -> InputProcessor:
    return processor_of(directory)


def test_a_prompt_and_its_answer_fill_the_context_and_not_a_token_more(processor: InputProcessor) -> None:
    num_tokens = len(processor.prepare_question(QUERY, DOCUMENTS, SHORT).prompt.input_ids)
    left = processor.context_length - num_tokens
    for max_tokens in (left, None):
        fitting = processor.prepare_question(QUERY, DOCUMENTS, AnswerOptions(max_tokens=max_tokens))
        assert fitting.num_tokens == processor.context_length
    with pytest.raises(TooLarge, match=rf"{num_tokens} tokens .* {left + 1}; the limit is 4096") as caught:
        processor.prepare_question(QUERY, DOCUMENTS, AnswerOptions(max_tokens=left + 1))
    assert caught.value.param == "documents" and caught.value.code == "context_length_exceeded"


def test_prompts_are_refused_that_leave_no_room_for_an_answer(processor: InputProcessor) -> None:
    prompt = tuple([5] * 4095)
    assert processor.prepare_completion(prompt, AnswerOptions()).max_tokens == 1
    with pytest.raises(TooLarge, match="4096 tokens; the limit is 4096"):
        processor.prepare_completion((*prompt, 5), AnswerOptions())
    with pytest.raises(TooLarge, match="tokens; the limit is 4096") as caught:
        processor.prepare_chat([{"role": "user", "content": "the " * 4096}], (), AnswerOptions())
    assert caught.value.param == "messages"


def test_texts_that_cannot_fit_are_refused_before_they_are_tokenised(processor: InputProcessor) -> None:
    endless = "x" * 10**7
    for query, documents, param in ((QUERY, [Document("", endless)], "documents"), (endless, DOCUMENTS, "query")):
        with pytest.raises(TooLarge, match="at least") as caught:
            processor.prepare_question(query, documents, SHORT)
        assert caught.value.param == param
    for prepare in (
        lambda: processor.prepare_chat([{"role": "user", "content": endless}], (), SHORT),
        lambda: processor.prepare_completion(endless, SHORT),
        lambda: processor.prepare_ranking(endless, DOCUMENTS, "attention"),
    ):
        with pytest.raises(TooLarge, match="at least"):
            prepare()


class Counting:
    """A tokenizer that counts the characters that it is given, with a token of many spaces, as large ones have it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.num_characters = 0

    def __call__(self, texts: str | list[str], **options: Any) -> Any:
        self.num_characters += len(texts) if isinstance(texts, str) else sum(map(len, texts))
        return self._tokenizer(texts, **options)

    def get_vocab(self) -> dict[str, int]:
        return {**self._tokenizer.get_vocab(), " " * 128: 0}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_a_text_whose_beginning_is_too_long_is_refused_before_the_rest_is_tokenised(directory: Path) -> None:
    model = LanguageModel.load(directory, DeviceOptions(device="cpu", dtype="float32"))
    counting = Counting(model.tokenizer)
    processor = InputProcessor(counting, model.config, PROFILE, 1024)
    text = "the keeper " * 10_000
    attempts: tuple[Callable[[], object], ...] = (
        lambda: processor.prepare_completion(text, SHORT),
        lambda: processor.prepare_chat([{"role": "user", "content": text}], (), SHORT),
        lambda: processor.prepare_question(QUERY, [Document(text)], SHORT),
    )
    for prepare in attempts:
        counting.num_characters = 0
        with pytest.raises(TooLarge, match=r"at least \d+ tokens; the limit is 1024"):
            prepare()
        assert counting.num_characters <= 0.2 * len(text)


def test_rankings_are_held_to_the_context(processor: InputProcessor) -> None:
    with pytest.raises(TooLarge, match="the model takes 4096") as caught:
        processor.prepare_ranking(QUERY, [Document("the " * 3000), Document("the " * 3000)], "calibrated")
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("method", ["query_likelihood", "query_generation", "relevance_prompt"])
@pytest.mark.slow
def test_documents_that_are_ranked_one_by_one_are_held_to_the_context_one_by_one(
    processor: InputProcessor, method: Any
) -> None:
    together = [Document("x " * 1500, title=f"{number}") for number in range(30)]
    longest = max(map(len, processor.tokenizer.get_vocab()))
    assert sum(len(document.text) for document in together) > processor.context_length * longest
    assert processor.prepare_ranking(QUERY, together, method).num_documents == 30
    endless = Document("x" * (processor.context_length * longest + 1))
    with pytest.raises(TooLarge, match="at least") as caught:
        processor.prepare_ranking(QUERY, [*DOCUMENTS, endless], method)
    assert caught.value.param == "documents.3"


def test_nothing_cannot_be_continued(processor: InputProcessor) -> None:
    with pytest.raises(InvalidField) as caught:
        processor.prepare_completion((), SHORT)
    assert caught.value.param == "prompt"


def test_a_conversation_that_asks_nothing_of_its_documents_is_refused(processor: InputProcessor) -> None:
    with pytest.raises(InvalidRequest):
        processor.prepare_chat([{"role": "system", "content": "be brief"}], DOCUMENTS, SHORT)


def test_a_tokenizers_own_limits_cut_nothing(directory: Path, tmp_path: Path) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer.json").read_text())
    settings["truncation"] = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    settings["padding"] = {
        "strategy": {"Fixed": 900},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "<eos>",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    cutting, plain = (
        processor_of(folder).prepare_question(QUERY, DOCUMENTS, SHORT) for folder in (tmp_path, directory)
    )
    assert cutting.prompt == plain.prompt


@pytest.mark.slow
def test_prompts_may_be_prepared_on_many_threads_at_once(processor: InputProcessor) -> None:
    def prepare(number: int) -> Any:
        return processor.prepare_question(f"{QUERY} {number % 7}", DOCUMENTS * 3, SHORT).prompt

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(prepare, range(70))) == [prepare(number) for number in range(7)] * 10


def test_a_calibration_costs_more_than_none_and_the_papers_most(processor: InputProcessor) -> None:
    def cost(bias: str, *, enabled: bool = True) -> int:
        profile = PROFILE.model_copy(update={"bias": bias, "enabled": enabled})
        documents = [Document("The harbour.") for _ in range(10)]
        return processor.cost(processor.prepare_question(QUERY, documents, AnswerOptions(calibration=profile)))

    assert cost("tree", enabled=False) == cost("cached") < cost("single") < cost("tree") < cost("exact")
    ranking = processor.prepare_ranking(QUERY, DOCUMENTS, "query_likelihood")
    assert processor.cost(ranking) == ranking.prompt_tokens
    assert processor.cost(processor.prepare_ranking(QUERY, (), "attention")) == 1
