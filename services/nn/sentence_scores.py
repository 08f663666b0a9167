"""Scores of sentences by models that read nothing else: plausibility, acceptability, likelihood.

Shapes: S sentences, T tokens, D width, V vocabulary.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from services.core.refusals import Refused
from services.nn.loading import quiet_loading, transformers
from services.nn.model_configs import StoredWeights, read_config

ScorerKind = Literal["vera", "classifier", "likelihood"]

# Vera keeps the weights of its score in rows of the embedding table that no token uses.
VERA_WEIGHT, VERA_BIAS, VERA_TEMPERATURE = 32099, 32098, 32097
VERA_MAX_TOKENS = 128
ACCEPTABLE = "LABEL_1"
# A causal model's logits of this many tokens are in memory at once, or another model's hidden states.
MAX_BATCH_TOKENS = 2_048
MAX_LIKELIHOOD_TOKENS = 512


@dataclass(frozen=True)
class SentenceScorer:
    """A model of sentences: `tokenize` gives a sentence's ids, `score_ids` scores those of a length, (S, T) → (S,).

    `width` is the numbers per token, D, from which `DeviceOptions` chooses the number of threads.
    """

    kind: ScorerKind
    width: int
    tokenize: Callable[[str], Sequence[int]]
    score_ids: Callable[[Tensor], Tensor]

    @torch.inference_mode()
    def scores(self, texts: Sequence[str]) -> list[float]:
        """Score texts of equal length together, so that nothing is padded and no text affects another's score."""
        input_ids = [self.tokenize(text) for text in texts]
        by_length: dict[int, list[int]] = {}
        for place, row in enumerate(input_ids):
            by_length.setdefault(len(row), []).append(place)
        scores = [0.0] * len(texts)
        for length, places in by_length.items():
            size = max(1, MAX_BATCH_TOKENS // max(1, length))
            for start in range(0, len(places), size):
                own = places[start : start + size]
                found = self.score_ids(torch.tensor([list(input_ids[place]) for place in own])).tolist()
                for place, value in zip(own, found, strict=True):
                    scores[place] = value
        return scores


def scorer_kind(directory: Path) -> ScorerKind:
    """Tell by the architecture of a Hugging Face folder what it is loaded as: a T5 as Vera, a classifier of sequences,
    or a causal model. Raises Refused for a folder of another kind.
    """
    path = directory / "config.json"
    try:
        (architecture,) = json.loads(path.read_text())["architectures"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"{path} names no architecture of transformers: {error}") from error
    if architecture.startswith(("T5", "MT5", "UMT5")):
        return "vera"
    if architecture.endswith("ForSequenceClassification"):
        return "classifier"
    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return "likelihood"
    raise Refused(
        f"{path}: a {architecture} scores no sentences; it takes a T5 encoder, a classifier or a causal model"
    )


def load_scorer(directory: Path, device: torch.device | str = "cpu") -> SentenceScorer:
    """Load a Hugging Face folder as its `scorer_kind`. Raises Refused for a folder of another kind."""
    load = {"vera": load_vera, "classifier": load_classifier, "likelihood": load_likelihood}
    return load[scorer_kind(directory)](directory, device)


def load_vera(directory: Path, device: torch.device | str = "cpu") -> SentenceScorer:
    """Load Vera, which scores the plausibility of a statement, from a Hugging Face folder of its T5 encoder.

    σ((h · E₃₂₀₉₉ + E₃₂₀₉₈,₀) / E₃₂₀₉₇,₀) with h, (D,), the hidden state of the last token, the end of sequence, and E
    the embedding table; in the dtype of the weights. Raises Refused for a folder of another form.
    """
    model, tokenizer = _loaded("T5EncoderModel", directory, device=device, dtype="auto")
    table = model.shared.weight
    if len(table) <= VERA_WEIGHT:
        raise Refused(f"{directory} is not a Vera model: its vocabulary ends at {len(table)}, before {VERA_WEIGHT}")
    temperature = table[VERA_TEMPERATURE, 0].item()

    def score_ids(input_ids: Tensor) -> Tensor:
        last = model(input_ids.to(device)).last_hidden_state[:, -1]
        logits = F.linear(last, table[VERA_WEIGHT, None], table[VERA_BIAS, :1])[:, 0]
        return torch.sigmoid(logits / temperature)

    return SentenceScorer("vera", model.config.hidden_size, _tokenize(tokenizer, VERA_MAX_TOKENS), score_ids)


def load_classifier(directory: Path, device: torch.device | str = "cpu") -> SentenceScorer:
    """Load a classifier of sentences, such as one of CoLA, from a Hugging Face folder: P(LABEL_1), in float32.

    Raises Refused for a folder of another form.
    """
    model, tokenizer = _loaded("AutoModelForSequenceClassification", directory, device=device, dtype=torch.float32)
    if ACCEPTABLE not in model.config.label2id:
        labels = ", ".join(model.config.id2label.values())
        raise Refused(f"{directory / 'config.json'} has no label {ACCEPTABLE}, only {labels}")
    acceptable = model.config.label2id[ACCEPTABLE]
    max_tokens = min(model.config.max_position_embeddings, tokenizer.model_max_length)

    def score_ids(input_ids: Tensor) -> Tensor:
        return torch.softmax(model(input_ids.to(device)).logits, dim=-1)[:, acceptable]

    return SentenceScorer("classifier", model.config.hidden_size, _tokenize(tokenizer, max_tokens), score_ids)


def load_likelihood(directory: Path, device: torch.device | str = "cpu") -> SentenceScorer:
    """Load a causal language model from a Hugging Face folder: the mean log-probability of a sentence's tokens.

    The sum runs over all tokens but the first, in float32; the first is the model's token for a beginning, also where
    its tokenizer does not set it, or else the sentence's own first. Raises Refused for a folder of another form, and on
    scoring for a sentence of a single token.
    """
    model, tokenizer = _loaded("AutoModelForCausalLM", directory, device=device, dtype="auto")
    longest = getattr(model.config, "max_position_embeddings", None) or MAX_LIKELIHOOD_TOKENS
    of_text = _tokenize(tokenizer, min(longest, MAX_LIKELIHOOD_TOKENS))
    begin = tokenizer.bos_token_id

    def tokenize(text: str) -> Sequence[int]:
        input_ids = list(of_text(text))
        if begin is not None and input_ids[:1] != [begin]:
            input_ids = [begin, *input_ids][:longest]
        if len(input_ids) < 2:
            raise Refused(
                f"{text!r} is one token for {directory}, which has none for a beginning: it has no likelihood"
            )
        return input_ids

    def score_ids(input_ids: Tensor) -> Tensor:
        input_ids = input_ids.to(device)
        logits = model(input_ids, use_cache=False).logits[:, :-1].float()
        return torch.log_softmax(logits, dim=-1).gather(2, input_ids[:, 1:, None])[..., 0].mean(dim=1)

    return SentenceScorer("likelihood", model.config.hidden_size, tokenize, score_ids)


def _tokenize(tokenizer: Any, max_tokens: int) -> Callable[[str], Sequence[int]]:
    def tokenize(text: str) -> Sequence[int]:
        input_ids: Sequence[int] = tokenizer(text, truncation=True, max_length=max_tokens)["input_ids"]
        return input_ids

    return tokenize


def _loaded(kind: str, directory: Path, **options: Any) -> tuple[Any, Any]:
    """Load a model by the name of its class in transformers, and its tokenizer.

    Raises Refused if the folder does not contain both.
    """
    device, model_class = options.pop("device"), getattr(transformers(), kind)
    with quiet_loading():
        try:
            stored = StoredWeights.in_folder(directory)
            config = read_config(directory, stored)
            config_class = getattr(model_class, "config_class", None)  # those that choose the model have none
            if config_class is not None and not isinstance(config, config_class):
                raise ValueError(f"it is of the architecture {config.model_type!r}")
            with stored.bound():
                model, loaded = model_class.from_pretrained(
                    directory, config=config, local_files_only=True, output_loading_info=True, **options
                )
            tokenizer = transformers().AutoTokenizer.from_pretrained(directory, local_files_only=True)
        except (OSError, ValueError) as error:
            raise Refused(f"{directory} can't be loaded as {kind}: {error}") from error
    if loaded["missing_keys"]:
        missing = ", ".join(sorted(loaded["missing_keys"])[:3])
        raise Refused(f"{directory} can't be loaded as {kind}: it has no {missing}")
    return model.eval().to(device), tokenizer
