"""Real questions over real documents through the service: what it tells of each document is told of that document.

An attention that a span of one token more or less would change is compared with transformers' own, over tokens that
are found by the places of their characters in the whole prompt.

Shapes: T prompt tokens, K documents.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import requests
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.generate.prompts.templates import Document
from services.nn.plain_texts import PlainTexts
from tests.contract.generate_processes import running_system
from tests.contract.served_system import System
from tests.generate.question_data import natural_questions, sampled, synthwiki
from tests.generate.small_tokenizers import fast
from tests.generate.tiny_models import tiny_model

MODEL = "reader"
NUM_PROMPTS, NUM_DOCUMENTS = 200, 10
# one layer is enough for an attention that depends on every token's text and place
SHAPE: dict[str, Any] = {
    "vocab_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16_384,
    "initializer_range": 0.28,  # tokens weigh unlike each other, and none weighs all
}
# float32's own rounding, in one order of summation or another
TOLERANCE = 2e-5
HEAD = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant).\n\n"
)


@dataclass(frozen=True)
class Reader:
    """A service over real texts, and its checkpoint's tokenizer and model by transformers.

    `model` tells what it attends to; `fast_model` is the same, and does not.
    """

    system: System
    tokenizer: Any
    model: Any
    fast_model: Any

    def last_row(self, input_ids: list[int]) -> np.ndarray:
        """Weights (T,) of the last token's attention, the mean over layers and heads."""
        with torch.inference_mode():
            before = self.fast_model.model(torch.tensor([input_ids[:-1]]), use_cache=True).past_key_values
            passed = self.model.model(torch.tensor([input_ids[-1:]]), past_key_values=before, output_attentions=True)
        weights: np.ndarray = torch.stack(passed.attentions)[:, 0, :, -1].double().mean(dim=(0, 1)).numpy()
        return weights


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    tokenizer = learnt([document.text for _, document in [*natural_questions(), *synthwiki()]])
    directory = folder / "checkpoint"
    fast_model = tiny_model(attention="sdpa", **SHAPE)
    fast_model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    store_url = (folder / "store").as_uri()
    Store.open(store_url).publish(MODEL, directory, CheckpointInfo(kind="causal-lm"))
    settings = {"FOVEA_STORE_URL": store_url, "FOVEA_GENERATE_MODELS": MODEL}
    with running_system(folder, **settings) as system:
        yield Reader(system, tokenizer, tiny_model(attention="eager", **SHAPE), fast_model)


def learnt(texts: list[str]) -> Any:
    """A byte-level tokenizer of these texts whose tokens end where a line does, so that prompts may be read whole."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\n"), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"],
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return fast(tokenizer, bos_token="<bos>", eos_token="<eos>")


def written(question: str, documents: list[Document]) -> tuple[str, list[tuple[int, int]]]:
    """lost-in-the-middle's prompt, and where in it each document's line begins and ends."""
    text, places = f"{HEAD}Question: {question}\n\n", []
    for number, document in enumerate(documents, start=1):
        title = f"(Title: {document.title})" if document.title else ""
        line = f"Document [{number}]{title} {document.text}\n"
        places.append((len(text), len(text) + len(line)))
        text += line
    return f"{text}\nQuestion: {question}\nAnswer:", places


def attention_to(spans: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean weight (K,) of the tokens in each span (K, 2), from the weights (T,) of the last row."""
    sums = np.concatenate([[0.0], weights.cumsum()])
    mean: np.ndarray = (sums[spans[:, 1]] - sums[spans[:, 0]]) / (spans[:, 1] - spans[:, 0])
    return mean


@pytest.mark.parametrize("read", [natural_questions, synthwiki])
def test_what_is_told_of_each_document_is_of_its_own_tokens(
    reader: Reader, read: Callable[[], list[tuple[str, Document]]]
) -> None:
    plain = PlainTexts.of(reader.tokenizer).characters
    is_seen = []  # whether a token more or less would change what is told of a document
    with requests.Session() as session:
        for question, documents in sampled(read(), NUM_PROMPTS, NUM_DOCUMENTS):
            shown = [Document(plain(one.text), plain(one.title)) for one in documents]
            text, places = written(plain(question), shown)
            encoded = reader.tokenizer(text, return_offsets_mapping=True)
            starts = [start for start, _ in encoded.offset_mapping]
            spans = np.searchsorted(starts, np.array(places))
            assert reader.tokenizer.decode(encoded.input_ids[slice(*spans[-1])]) == text[slice(*places[-1])]

            answer = asked(session, reader.system.gateway.url, question, documents)

            assert answer["usage"]["prompt_tokens"] == len(encoded.input_ids)
            told = np.array([one["attention"] for one in answer["documents"]])
            assert [one["id"] for one in answer["documents"]] == [str(k) for k in range(NUM_DOCUMENTS)]
            weights = reader.last_row(encoded.input_ids)
            assert told == pytest.approx(attention_to(spans, weights), rel=TOLERANCE)
            for shift in ([0, 1], [1, 0], [1, 1]):
                is_seen.append(np.abs(attention_to(spans + shift, weights) / told - 1) > TOLERANCE)
    assert np.mean(is_seen) > 0.98


def asked(session: requests.Session, url: str, question: str, documents: list[Document]) -> Any:
    body = {
        "query": question,
        "documents": [
            {"id": str(k), "title": document.title, "text": document.text} for k, document in enumerate(documents)
        ],
        "max_tokens": 1,
    }
    response = session.post(f"{url}/generate", json=body, timeout=30)
    assert response.status_code == 200, response.text
    return response.json()
