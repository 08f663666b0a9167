"""Decoders that reconstruct captions from a text tower's state at their end, for READ-CLIP's losses.

A decoder is that of a T5 on disk, or a small one that first learns to reconstruct what the tower says before tuning.
Then it is frozen.

Shapes: B captions, W text tokens of CLIP, T tokens of a decoder, D width of the text tower, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from services.core.refusals import Refused
from services.jobs.training import Run, gather, train
from services.nn.clip_model import ClipModel
from services.nn.clip_tokenizer import Tokenizer
from services.nn.loading import transformers
from services.nn.model_configs import StoredWeights, read_config
from services.nn.text_transformer import MAX_LOG_SCALE
from services.score.read_clip import IGNORED, alignment_loss, reconstruction_loss
from services.score.training.batches import OtherCaptions, TuningBatch, TuningData
from services.score.training.caption_states import caption_ends, encode_by_length

Labels = Callable[[Sequence[str]], Tensor]

DECODER_RATE = 2e-3  # of a small decoder, which begins with random weights
SMALL = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_heads": 4, "num_layers": 1, "num_decoder_layers": 2}


class CaptionDecoder(nn.Module):
    """The decoder of a T5 behind a linear map from the text tower's width, without the T5's encoder."""

    def __init__(self, t5: Any, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(width, t5.config.d_model, bias=False)
        self.t5 = t5
        self.t5.encoder = nn.Identity()  # never called: what it would return is given

    def forward(self, ends: Tensor, labels: Tensor) -> Tensor:
        """Compute L_rec of labels (B, T), each to be told by one state (B, D)."""
        seen = (self.projection(ends)[:, None],)
        before = self.t5.prepare_decoder_input_ids_from_labels(labels)
        return reconstruction_loss(self.t5(encoder_outputs=seen, decoder_input_ids=before).logits, labels)

    def freeze(self) -> None:
        """Keep the decoder as it is; the linear map before it goes on learning."""
        self.t5.requires_grad_(False)

    def train(self, mode: bool = True) -> "CaptionDecoder":
        super().train(mode)
        self.t5.eval()  # without dropout, which blurs what a caption lacks
        return self


@dataclass(frozen=True)
class ReadWeights:
    """The weights of READ-CLIP's losses, and the decoder: that of a T5 in a folder, or else a small one that learns in
    `decoder_steps` steps before the tuning."""

    reconstruction: float = 0.0
    alignment: float = 0.0
    decoder: str | None = None
    decoder_steps: int = 400


@dataclass(frozen=True)
class ClipLabels:
    """Labels of a decoder with CLIP's own vocabulary: a text's tokens after its start, to its end."""

    tokenizer: Tokenizer

    def __call__(self, texts: Sequence[str]) -> Tensor:
        input_ids = self.tokenizer(texts)
        end = input_ids.argmax(dim=-1)
        position = torch.arange(1, int(end.max()) + 1)
        return input_ids[:, 1 : int(end.max()) + 1].masked_fill(position > end[:, None], IGNORED)


@dataclass(frozen=True)
class T5Labels:
    """Labels of a T5's decoder: tokens of its own tokenizer, at most as many as CLIP reads."""

    tokenizer: Any
    max_length: int

    def __call__(self, texts: Sequence[str]) -> Tensor:
        found = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        labels: Tensor = found.input_ids.masked_fill(found.attention_mask == 0, IGNORED)
        return labels


def small_decoder(vocab_size: int, width: int) -> CaptionDecoder:
    """Create a small decoder of CLIP's vocabulary, with random weights."""
    config = transformers().T5Config(
        vocab_size=vocab_size, feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0, **SMALL,
        decoder_start_token_id=0, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    return CaptionDecoder(transformers().T5ForConditionalGeneration(config), width)


def read_decoder(folder: Path, width: int, max_length: int) -> tuple[CaptionDecoder, Labels]:
    """Read the frozen decoder of a T5 in transformers' layout, and what makes its labels. Raises Refused."""
    try:
        stored = StoredWeights.in_folder(folder)
        config = read_config(folder, stored)
        if config.model_type != "t5":
            raise ValueError(f"it is of the architecture {config.model_type!r}")
        with stored.bound():
            t5 = transformers().T5ForConditionalGeneration.from_pretrained(folder, config=config, local_files_only=True)
        tokenizer = transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise Refused(f"{folder} can't be read as a T5: {error}") from error
    decoder = CaptionDecoder(t5, width)
    decoder.freeze()
    return decoder, T5Labels(tokenizer, max_length)


class DecoderLearning(nn.Module):
    """The loss of a decoder that learns what a text tower says, which itself learns nothing."""

    def __init__(self, clip: Any, decoder: CaptionDecoder) -> None:
        super().__init__()
        self.clip, self.decoder = clip, decoder

    def forward(self, batch: TuningBatch) -> Tensor:
        others = _others(batch)
        with torch.no_grad():
            ends = caption_ends(self.clip, batch.input_ids[: len(others.labels)])
        loss: Tensor = self.decoder(ends, others.labels)
        return loss


class Reading(nn.Module):
    """READ-CLIP's two losses with their weights; one that has no decoder, or the weight 0, is not computed."""

    def __init__(self, decoder: CaptionDecoder | None, weights: ReadWeights) -> None:
        super().__init__()
        self.decoder, self.weights = decoder, weights

    def forward(self, clip: Any, batch: TuningBatch, captions: Tensor) -> Tensor:
        """Compute the loss of a batch; the captions of all processes have these features (B, E), of length 1."""
        others = _others(batch)
        loss = captions.new_zeros(())
        if self.decoder is not None:
            ends = caption_ends(clip, batch.input_ids[: len(others.labels)])
            loss = loss + self.weights.reconstruction * self.decoder(ends, others.labels)
        if self.weights.alignment > 0:
            scale = clip.logit_scale.clamp(0, MAX_LOG_SCALE).exp()
            paraphrases = gather(encode_by_length(clip, others.input_ids).pooled)
            loss = loss + self.weights.alignment * alignment_loss(paraphrases, captions, scale)
        return loss


def prepare_reading(
    run: Run, weights: ReadWeights, clip: ClipModel, data: TuningData
) -> tuple[Reading | None, TuningData]:
    """Make READ-CLIP's losses, with a decoder that has learnt, and batches with what they need.

    Without weights there are no losses, and the batches are the same. Raises Refused for a folder that holds no T5.
    """
    if max(weights.reconstruction, weights.alignment) == 0:
        return None, data
    vocab_size, width = getattr(clip.model, "text", clip.model).token_embedding.weight.shape
    if weights.reconstruction == 0:
        return Reading(None, weights), replace(data, reads=ClipLabels(clip.tokenizer))
    if weights.decoder is not None:
        decoder, labels = read_decoder(Path(weights.decoder), width, clip.tokenizer.context_length)
        return Reading(decoder, weights), replace(data, reads=labels)
    data = replace(data, reads=ClipLabels(clip.tokenizer))
    decoder = small_decoder(vocab_size, width)
    learning = replace(run, num_steps=weights.decoder_steps, learning_rate=DECODER_RATE, stage="decoder")
    clip.model.requires_grad_(False)
    train(learning, DecoderLearning(clip.model, decoder), replace(data, names=(), seed=data.seed + 8_000))
    clip.model.requires_grad_(True)
    decoder.freeze()
    return Reading(decoder, weights), data


def _others(batch: TuningBatch) -> OtherCaptions:
    assert batch.others is not None, "the batches are made without other captions"
    return batch.others
