"""Rerankers: models that score a query and a document together with one number, each read with transformers' own class.

A pair that is too long is cut as sentence-transformers cuts it: the longer of the two texts loses its last tokens, one
at a time. Qwen3-Reranker's and mxbai-rerank's are cut as their publishers cut them, at the document's end. A score
does not depend on the other pairs of a batch, beyond rounding.

Shapes: B pairs, T tokens, D width.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.core.errors import InvalidField
from services.generate.model.language_model import SELF_CHECK_TOLERANCE, check_config, read_onto_device
from services.generate.prompts.abandonment import check_wanted
from services.generate.prompts.templates import CHARACTERS_PER_TOKEN, Document, shorten
from services.nn.broken_model import BrokenModel
from services.nn.devices import DeviceOptions
from services.nn.plain_texts import PlainTexts, is_blank
from services.nn.reference_outputs import OutputRow, check_checkpoint

# The kinds of such checkpoints in manifests of the model store.
CROSS_ENCODER_KIND, QWEN3_RERANKER_KIND, MXBAI_RERANK_KIND = "cross-encoder", "qwen3-reranker", "mxbai-rerank-v2"
# Whose classifiers read a pair, by their `model_type`, each with the positions that it has no token for.
CROSS_ENCODERS = {"bert": 0, "modernbert": 0, "xlm-roberta": 2}
# A pair with its control tokens has more.
LEAST_TOKENS = 8
# Qwen3-Reranker's published prompt; what is between its ends is cut to its published length.
TASK = "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
BEFORE = f'<|im_start|>system\n{TASK} Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"
QWEN3_RERANKER_TOKENS = 8192
# The prompt of mxbai-rerank-v2, each piece of which is tokenised by itself, and the most tokens of query and document.
MXBAI_BEFORE = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n"
)
MXBAI_TASK = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each "
    "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
    "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
)
MXBAI_AFTER = ("\n", MXBAI_TASK, "<|im_end|>\n<|im_start|>assistant\n")
MXBAI_TOKENS = 8192
SAMPLE_DOCUMENTS = (Document("It was built on the island in the year 1931."), Document("No. " * 40))
# Where the query's picture stands among those of the documents, which have their places.
QUERY = -1
# Pairs that a thread tokenises before it looks whether they are still wanted.
PIECE = 16


@dataclass(frozen=True)
class Picture:
    """An image of a query or a document: its `pixels` (height, width, 3) are told apart by their digest."""

    digest: str
    num_tokens: int
    pixels: NDArray[np.uint8] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Pair:
    """The tokens of a query and a document; `type_ids` tell them apart for models that read such, else it is empty.

    `is_cut` tells whether they lost tokens; `pictures` are those of the query and the document.
    """

    input_ids: tuple[int, ...]
    type_ids: tuple[int, ...] = ()
    is_cut: bool = False
    pictures: tuple[Picture, ...] = ()

    @property
    def cost(self) -> int:
        """Count the tokens that language model and image tower process."""
        return len(self.input_ids) + sum(one.num_tokens for one in self.pictures)


@dataclass(frozen=True)
class Content:
    """The text and the picture of a query or a document."""

    text: str
    picture: Picture | None = None


class RerankerEngine(ABC):
    """Scores pairs with one checkpoint: `prepare` on any thread, all else on one at a time.

    Implements Engine of `services.core.batching.batcher`. A score is a logit: its sigmoid is the relevance.
    """

    kind: ClassVar[str]
    model_class: ClassVar[str]
    reads_instruct: ClassVar[bool] = False

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._directory: Path | None = None
        self.computes_in = str(model.dtype).removeprefix("torch.")
        self.tokenizer = tokenizer
        # A checkpoint's own truncation settings would cut texts, and would change while another thread reads them.
        self.tokenizer.backend_tokenizer.no_truncation()
        self.tokenizer.backend_tokenizer.no_padding()
        self._plain = PlainTexts.of(tokenizer)
        self.context_length = self._most_tokens()

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions) -> Self:
        """Read a Hugging Face directory onto the device. Raises what `read_onto_device` raises."""
        engine = cls(*read_onto_device(directory, options, cls.model_class, cls.check_config))
        engine._directory = directory
        return engine

    @staticmethod
    @abstractmethod
    def check_config(config: Any) -> None:
        """Raises ValueError for a configuration of transformers that is of no such model."""

    # On any thread

    def prepare(
        self,
        query: str,
        documents: Sequence[Document],
        instruct: str | None = None,
        pictures: Mapping[int, Picture] = MappingProxyType({}),
    ) -> list[Pair]:
        """Tokenise a query with each document, and with an instruction if the model `reads_instruct`.

        `pictures` are those of documents by their places, and of the query. Raises InvalidField for a query without any
        character to be seen, and without a picture.
        """
        if is_blank(query) and QUERY not in pictures:
            raise InvalidField("query: It has no character that can be seen.", param="query")
        asked, instruct = Content(self._readable(query), pictures.get(QUERY)), instruct and self._readable(instruct)
        pairs: list[Pair] = []
        for start in range(0, len(documents), PIECE):
            check_wanted()
            some = enumerate(documents[start : start + PIECE], start)
            contents = [Content(self._readable(one.titled), pictures.get(place)) for place, one in some]
            pairs += self._pairs(asked, contents, instruct)
        return pairs

    # On the compute thread

    @torch.inference_mode()
    def run_batch(self, items: Sequence[Pair]) -> list[float]:
        """Score pairs. Raises BrokenModel for a score that is not a number."""
        scores: list[float] = self._scores(self._inputs(items)).tolist()
        if not all(map(math.isfinite, scores)):
            raise BrokenModel("a score is not a number")
        return scores

    def warm_up(self) -> None:
        """Score pairs of two lengths, so that no request pays for first calls."""
        self.run_batch(self._sample())

    @torch.inference_mode()
    def self_check(self) -> None:
        """Raises BrokenModel as `check_checkpoint` does, and for a model that reads what pairs are padded with."""
        check_checkpoint(self, self._directory)
        pairs = self._sample()
        alone, beside = self._hidden(self._inputs(pairs[:1]))[0], self._hidden(self._inputs(pairs))[0]
        difference = float((alone - beside).norm() / alone.norm())
        # written so that NaN fails
        if not difference <= SELF_CHECK_TOLERANCE[self._model.dtype]:
            raise BrokenModel(f"a pair is read differently, by {difference:.3g}, beside a longer one")

    def reference_inputs(self) -> list[JsonValue]:
        """Return queries, each of which is scored with a document."""
        return ["When was it built?", "Who kept the lighthouse?"]

    @torch.inference_mode()
    def reference_outputs(self, inputs: Sequence[Any]) -> list[OutputRow]:
        """Return of each query what the model holds of it and a document, and its score."""
        read = [self._inputs(self._sample(query)[:1]) for query in inputs]
        rows = [(self._hidden(one)[0].cpu().double(), self._scores(one).cpu().double()) for one in read]
        return [torch.cat(row).tolist() for row in rows]

    def _sample(self, query: str = "When was it built?") -> list[Pair]:
        return self.prepare(query, SAMPLE_DOCUMENTS)

    @abstractmethod
    def _most_tokens(self) -> int:
        """Return the most tokens of a pair."""

    @abstractmethod
    def _pairs(self, query: Content, documents: Sequence[Content], instruct: str | None) -> list[Pair]: ...

    @abstractmethod
    def _inputs(self, pairs: Sequence[Pair]) -> Mapping[str, Tensor]:
        """Return the model's inputs of pairs, padded on the right, (B, T) each."""

    @abstractmethod
    def _hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return what the model holds of each pair at one of its tokens, (B, D)."""

    @abstractmethod
    def _scores(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of pairs, (B,) float32."""

    def _readable(self, text: str) -> str:
        """Break up control tokens that a text spells, and cut a text far beyond all that is read of it."""
        most = 2 * self.context_length
        is_long = len(text) > CHARACTERS_PER_TOKEN * most
        beginning = shorten(self.tokenizer, text, most) if is_long else None
        return self._plain.break_up(text if beginning is None else beginning)

    def _cutting(self, most: int) -> Any:
        """Copy the tokenizer, with its truncation set to `most` tokens."""
        backend = copy.deepcopy(self.tokenizer.backend_tokenizer)
        backend.enable_truncation(most, strategy="longest_first")
        return backend

    def _padded(self, rows: Sequence[Sequence[int]], value: int) -> Tensor:
        tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=value).to(self._model.device)


class CrossEncoderEngine(RerankerEngine):
    """Runs an encoder that was trained to classify pairs, with one label."""

    kind = CROSS_ENCODER_KIND
    model_class = "AutoModelForSequenceClassification"

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(model, tokenizer)
        self._pair_tokenizer = self._cutting(self.context_length)
        has_types = getattr(model.config, "type_vocab_size", 0) > 1
        self._reads_types = has_types and "token_type_ids" in tokenizer.model_input_names

    @staticmethod
    def check_config(config: Any) -> None:
        check_cross_encoder(config)

    def _most_tokens(self) -> int:
        return cross_encoder_tokens(self._model.config, int(self.tokenizer.model_max_length))

    def _pairs(self, query: Content, documents: Sequence[Content], instruct: str | None) -> list[Pair]:
        encoded = self._pair_tokenizer.encode_batch([(query.text, document.text) for document in documents])
        return [
            Pair(tuple(one.ids), tuple(one.type_ids) if self._reads_types else (), is_cut=bool(one.overflowing))
            for one in encoded
        ]

    def _inputs(self, pairs: Sequence[Pair]) -> Mapping[str, Tensor]:
        inputs = {
            "input_ids": self._padded([one.input_ids for one in pairs], self._model.config.pad_token_id or 0),
            "attention_mask": self._padded([[1] * len(one.input_ids) for one in pairs], 0),
        }
        if self._reads_types:
            inputs["token_type_ids"] = self._padded([one.type_ids for one in pairs], 0)
        return inputs

    def _hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        hidden: Tensor = self._model.base_model(**inputs).last_hidden_state
        return hidden[:, 0]

    def _scores(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = self._model(**inputs).logits
        return logits[:, 0].float()


class Qwen3RerankerEngine(RerankerEngine):
    """Runs Qwen3-Reranker: a language model whose score is the logit of yes, minus that of no, after its own prompt.

    `before` and `after` are the pieces of that prompt around a pair, and `answers` its words for yes and no.
    """

    kind = QWEN3_RERANKER_KIND
    reads_instruct = True
    model_class = "AutoModelForCausalLM"
    before: ClassVar[tuple[str, ...]] = (BEFORE,)
    after: ClassVar[tuple[str, ...]] = (AFTER,)
    answers: ClassVar[tuple[str, str]] = ("yes", "no")

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Raises ValueError for a tokenizer without a token for each answer, and for too few positions."""
        super().__init__(model, tokenizer)
        self._before, self._after = (
            [token for piece in pieces for token in self._ids(piece)] for pieces in (self.before, self.after)
        )
        answers = [tokenizer.backend_tokenizer.token_to_id(answer) for answer in self.answers]
        if None in answers:
            told = " or for ".join(self.answers)
            raise ValueError(f"the tokenizer has no token for {told}, its answers as {self.kind}")
        if self._room() < 1:
            raise ValueError(f"{self.context_length} positions leave no room for a pair in the prompt of {self.kind}")
        self._answers = model.get_output_embeddings().weight[answers]

    @staticmethod
    def check_config(config: Any) -> None:
        check_config(config)

    def _most_tokens(self) -> int:
        return min(QWEN3_RERANKER_TOKENS, int(self._model.config.max_position_embeddings))

    @cached_property
    def _pair_tokenizer(self) -> Any:
        return self._cutting(self._room())  # a copy of the vocabulary, which engines with other pairs do without

    def _room(self) -> int:
        """Return the most tokens of a query and a document."""
        return self.context_length - len(self._before) - len(self._after)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _pairs(self, query: Content, documents: Sequence[Content], instruct: str | None) -> list[Pair]:
        asked = f"<Instruct>: {instruct or INSTRUCT}\n<Query>: {query.text}\n<Document>: "
        encoded = self._pair_tokenizer.encode_batch([asked + document.text for document in documents])
        return [Pair((*self._before, *one.ids, *self._after), is_cut=bool(one.overflowing)) for one in encoded]

    def _inputs(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        # no row sees what follows it, so the padding needs no mask
        last = torch.tensor([len(one.input_ids) - 1 for one in pairs], device=self._model.device)
        return {"input_ids": self._padded([one.input_ids for one in pairs], 0), "last": last}

    def _hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        read = {name: tensor for name, tensor in inputs.items() if name != "last"}
        hidden: Tensor = self._model.base_model(**read, use_cache=False).last_hidden_state
        return hidden[torch.arange(len(hidden), device=hidden.device), inputs["last"]]

    def _scores(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = (self._hidden(inputs) @ self._answers.T).float()
        return logits[:, 0] - logits[:, 1]


class MxbaiRerankEngine(Qwen3RerankerEngine):
    """Runs mxbai-rerank-v2: the logit of 1, minus that of 0, after a prompt of its own.

    As in its publisher's code, query and document are tokenised apart, and three quarters of a pair are the query's.
    """

    kind = MXBAI_RERANK_KIND
    before = (MXBAI_BEFORE,)
    after = MXBAI_AFTER
    answers = ("1", "0")

    def _room(self) -> int:
        ends = len(self._before) + len(self._after)
        return min(MXBAI_TOKENS, int(self._model.config.max_position_embeddings) - ends)

    def _pairs(self, query: Content, documents: Sequence[Content], instruct: str | None) -> list[Pair]:
        room = self._room()
        asked = self._ids(f"instruction: {instruct}\nquery: {query.text}" if instruct else f"query: {query.text}")
        kept = asked[: room * 3 // 4]
        begun = [*kept, *self._ids("\n")]
        texts = [f"document: {document.text}" for document in documents]
        encoded = self.tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        return [
            Pair(
                (*self._before, *[*begun, *one.ids][:room], *self._after),
                is_cut=len(kept) < len(asked) or len(begun) + len(one.ids) > room,
            )
            for one in encoded
        ]


def check_cross_encoder(config: Any) -> None:
    """Raises ValueError for a configuration of transformers that is of no cross-encoder with one label."""
    if config.model_type not in CROSS_ENCODERS:
        raise ValueError(
            f"a classifier of the architecture {config.model_type!r} is none of {', '.join(CROSS_ENCODERS)}"
        )
    if config.num_labels != 1:
        raise ValueError(f"id2label has {config.num_labels} labels: a reranker has one, which is its score")


def cross_encoder_tokens(config: Any, of_tokenizer: int) -> int:
    """Return the most tokens of a pair: those of the tokenizer, if the model has as many positions.

    Raises ValueError for fewer than a pair needs.
    """
    most = min(of_tokenizer, int(config.max_position_embeddings) - CROSS_ENCODERS[config.model_type])
    if most < LEAST_TOKENS:
        raise ValueError(f"model_max_length and max_position_embeddings leave {most} tokens for a query and a document")
    return most
