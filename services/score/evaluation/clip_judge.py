"""CLIP and FSC-CLIP as judges: the cosine of pooled features, the mean cosine of single tokens, or a mix of both.

Shapes: U distinct images and V distinct texts of a batch, P patches, W text tokens, E embedding width, I images and
C captions of a record.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from services.core.refusals import Refused
from services.jobs.progress import standard_bars
from services.nn.clip_model import ClipModel, load_clip, open_clip, uses_quick_gelu
from services.nn.clip_tokenizer import Tokenizer
from services.score.evaluation.judges import Features, OnScores, Similarity, numbered, open_image
from services.score.evaluation.records import ImageFile, Record, Task
from services.score.fsc_clip import TextFeatures, mean_local_similarity, token_cosines
from services.score.model.checkpoint import FSC_CLIP_CONFIG, load_fsc_clip
from services.score.model.dense_features import check_towers, encode_images, encode_texts

# Number of distinct images, or texts, in a batch of records.
BATCH_SIZE = 64


@dataclass(frozen=True)
class Clip:
    """An open_clip model on a device with its preprocessing: RGB images to (3, height, width), texts to token ids.

    `local_weight` is the checkpoint's own weight of single tokens: score = (1 − local_weight) · global +
    local_weight · local.
    """

    model: Any
    tokenizer: Tokenizer
    preprocess: Callable[[Image.Image], Tensor]
    local_weight: float = 0.0

    @classmethod
    def load(cls, reference: Path | str, *, device: torch.device | str = "cpu") -> Self:
        """Load a folder of FSC-CLIP or open_clip, or `name:pretrained`: a model known to open_clip and a tag or file of
        its weights.

        Raises OSError, RuntimeError or ValueError if it does not exist.
        """
        if isinstance(reference, str):
            return cls._known(*reference.split(":", 1), device=device)
        if (reference / FSC_CLIP_CONFIG).is_file():
            checkpoint = load_fsc_clip(reference, device=device)
            return cls.of_model(checkpoint.clip, checkpoint.local_weight)
        clip = load_clip(str(reference))
        clip.model.eval().requires_grad_(False).to(device)
        return cls.of_model(clip, 0.0)

    @classmethod
    def of_model(cls, clip: ClipModel, local_weight: float) -> Self:
        """Take a loaded model with its own preprocessing, on the device that it is on."""

        def preprocess(image: Image.Image) -> Tensor:
            return clip.transform.normalise(torch.from_numpy(np.stack([clip.transform(image)])))[0]

        return cls(clip.model, clip.tokenizer, preprocess, local_weight)

    @classmethod
    def _known(cls, name: str, pretrained: str = "", *, device: torch.device | str) -> Self:
        if open_clip().get_model_config(name) is None:
            raise ValueError(f"open_clip has no model {name!r}")
        if not pretrained:
            raise ValueError(f"{name!r} needs weights, as in {name}:openai")
        model, _, preprocess = open_clip().create_model_and_transforms(
            name, pretrained=pretrained, force_quick_gelu=uses_quick_gelu(name, pretrained)
        )
        tokenizer = open_clip().get_tokenizer(name)
        model.eval().requires_grad_(False).to(device)
        return cls(model, Tokenizer(tokenizer, tokenizer.context_length), preprocess)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def input_ids(self, texts: Sequence[str]) -> tuple[Tensor, dict[str, int]]:
        """Tokenise texts, (V, W) on the model's device, and return the row of each.

        Texts with equal tokens share a row, so that they tie exactly.
        """
        rows = self.tokenizer(texts)
        numbers = numbered(row.tobytes() for row in rows.numpy())
        row_of = {text: numbers[row.tobytes()] for text, row in zip(texts, rows.numpy(), strict=True)}
        firsts = {number: place for place, number in reversed(list(enumerate(row_of.values())))}
        return rows[[firsts[number] for number in range(len(numbers))]].to(self.device), row_of


class ClipJudge:
    """A CLIP under evaluation; `similarity` is `mix`, the checkpoint's own, or one of its two components.

    Raises Refused for a similarity of single tokens if the model has no features of them.
    """

    reads_images = True

    def __init__(self, clip: Clip, *, name: str, similarity: Similarity = "mix", batch_size: int = BATCH_SIZE) -> None:
        self.name = name
        self._clip = clip
        self._local_weight = {"mix": clip.local_weight, "global": 0.0, "local": 1.0}[similarity]
        self._batch_size = batch_size
        self._num_cut = 0
        if self._local_weight > 0:
            try:
                check_towers(clip.model)
            except ValueError as error:
                raise Refused(f"{name} has no features of single tokens: {error}") from error

    @property
    def only_pooled(self) -> bool:
        """Tell whether a score is the cosine of pooled features alone."""
        return self._local_weight == 0

    @torch.inference_mode()
    def embed_images(self, images: Sequence[ImageFile], title: str) -> Features:
        """Embed images by their pooled features of length 1, a batch at a time. Raises Refused."""
        found = []
        with standard_bars().bar(f"{self.name}, {title}", total=len(images)) as bar:
            for start in range(0, len(images), self._batch_size):
                some = images[start : start + self._batch_size]
                pixels = torch.stack([self._clip.preprocess(open_image(image)) for image in some])
                features = self._clip.model.encode_image(pixels.to(self._clip.device), normalize=True)
                found.append(_on_cpu(features))
                bar.advance(len(some))
        return np.concatenate(found)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str], title: str) -> Features:
        """Embed texts by their pooled features of length 1; texts with equal tokens have equal rows."""
        input_ids, row_of = self._clip.input_ids(texts)
        self._num_cut += sum(map(self._is_cut, texts))
        found = []
        with standard_bars().bar(f"{self.name}, {title}", total=len(input_ids)) as bar:
            for some in _runs(input_ids, self._batch_size):
                found.append(_on_cpu(self._clip.model.encode_text(some, normalize=True)))
                bar.advance(len(some))
        return np.concatenate(found)[[row_of[text] for text in texts]]

    def notes(self) -> dict[str, Any]:
        """Report the local weight, and how many captions were cut to the model's context."""
        return {"local_weight": self._local_weight, **({"captions_cut": self._num_cut} if self._num_cut else {})}

    @torch.inference_mode()
    def score(self, task: Task, on_scores: OnScores) -> None:
        """Score one order; each image of a batch and each text is encoded once."""
        for batch in _batches(task.records, self._batch_size):
            images = numbered(path for _, record in batch for path in record.images)
            texts = list(numbered(caption for _, record in batch for caption in record.captions))
            input_ids, row_of = self._clip.input_ids(texts)
            self._num_cut += sum(map(self._is_cut, texts))
            places = [
                np.ix_([images[path] for path in record.images], [row_of[text] for text in record.captions])
                for _, record in batch
            ]
            wanted = np.zeros((len(images), len(input_ids)), np.bool_)
            for place in places:
                wanted[place] = True
            scores = self._scores(list(images), input_ids, wanted)
            for (number, _), place in zip(batch, places, strict=True):
                on_scores(number, scores[place][None])

    def _is_cut(self, text: str) -> bool:
        return self._clip.tokenizer.num_tokens(text) > self._clip.tokenizer.context_length

    def _scores(self, paths: Sequence[ImageFile], input_ids: Tensor, wanted: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Score the `wanted` pairs, (U, V); other values are meaningless."""
        model, weight, size = self._clip.model, self._local_weight, self._batch_size
        pixels = torch.stack([self._clip.preprocess(open_image(path)) for path in paths]).to(self._clip.device)
        if weight == 0:
            unit_images = [model.encode_image(some, normalize=True) for some in _runs(pixels, size)]
            unit_texts = [model.encode_text(some, normalize=True) for some in _runs(input_ids, size)]
            return _on_cpu(torch.cat(unit_images) @ torch.cat(unit_texts).T)
        images = [encode_images(model, some) for some in _runs(pixels, size)]
        pooled = torch.cat([some.pooled for some in images])
        tokens = torch.cat([some.tokens for some in images])
        columns = []
        for start in range(0, len(input_ids), size):
            texts = encode_texts(model, input_ids[start : start + size])
            local = _local(tokens, texts, wanted[:, start : start + size])
            columns.append((1 - weight) * pooled @ texts.pooled.T + weight * local)
        return _on_cpu(torch.cat(columns, dim=1))


def _local(image_tokens: Tensor, texts: TextFeatures, wanted: NDArray[np.bool_]) -> Tensor:
    """The mean cosine of each text's tokens with their parts of each image, for `wanted` pairs: (U, V)."""
    scores = torch.zeros(wanted.shape, device=image_tokens.device)
    for image, columns in enumerate(wanted):
        own = torch.from_numpy(np.flatnonzero(columns)).to(image_tokens.device)
        if len(own):
            # a token's cosine depends on no other token, so the texts of an image may be concatenated
            words = texts.tokens[own]
            cosines = token_cosines(image_tokens[image, None], words.flatten(0, 1)[None])
            scores[image, own] = mean_local_similarity(cosines.view(words.shape[:2]), texts.mask[own])
    return scores


def _batches(records: Sequence[Record], size: int) -> Iterator[list[tuple[int, Record]]]:
    """Yield batches of records with their places, grouped by image so that few images are read twice.

    A batch has at most `size` distinct images, and texts, unless a single record has more.
    """
    batch: list[tuple[int, Record]] = []
    images: set[ImageFile] = set()
    texts: set[str] = set()
    for place, record in sorted(enumerate(records), key=_image_names):
        images |= set(record.images)
        texts |= set(record.captions)
        if batch and max(len(images), len(texts)) > size:
            yield batch
            batch, images, texts = [], set(record.images), set(record.captions)
        batch.append((place, record))
    if batch:
        yield batch


def _image_names(numbered: tuple[int, Record]) -> list[str]:
    return list(map(str, numbered[1].images))


def _runs(rows: Tensor, size: int) -> Iterator[Tensor]:
    """Yield `size` rows at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _on_cpu(scores: Tensor) -> NDArray[np.float32]:
    on_cpu: NDArray[np.float32] = scores.float().cpu().numpy()
    return on_cpu
