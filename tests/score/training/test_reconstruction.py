"""A frozen decoder tells what captions their embeddings hold: it equals one that numpy computes, and only the text
tower and the map before the decoder learn from it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from services.core.refusals import Refused
from services.nn.clip_model import save_clip
from services.nn.loading import transformers
from services.score.model.dense_features import encode_texts
from services.score.negatives.annotation import TextBlobAnnotator
from services.score.negatives.hard_negatives import KINDS, HardNegatives
from services.score.read_clip import IGNORED, alignment_loss
from services.score.training.batches import TuningBatch, TuningData
from services.score.training.caption_states import caption_ends
from services.score.training.objectives import TuningLoss
from services.score.training.reconstruction import (
    CaptionDecoder,
    ClipLabels,
    Reading,
    ReadWeights,
    read_decoder,
    small_decoder,
)
from services.score.training.train import app
from starters.score.training.tuning import SceneLexicon, SceneSource
from tests.published_clips import write_siglip
from tests.score.tiny import IMAGE_SIZE, tiny_clip
from tests.score.training.test_batches import write_folder

Weights = dict[str, np.ndarray]
CLIP_WIDTH = 16


def decoder_of(vocab_size: int = 60, seed: int = 0) -> CaptionDecoder:
    torch.manual_seed(seed)
    decoder = small_decoder(vocab_size, CLIP_WIDTH)
    for weight in decoder.parameters():  # those of a new T5 are too small to matter
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.2)
    return decoder.eval()


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * weight)


def self_attention(x: np.ndarray, w: Weights, name: str, bias: np.ndarray) -> np.ndarray:
    """T5's causal attention of T tokens, without a scale; `bias` (distance, heads) is that of distances below 16."""
    length, heads = len(x), bias.shape[1]
    q, k, v = ((x @ w[f"{name}.{part}.weight"].T).reshape(length, heads, -1) for part in "qkv")
    out = np.zeros_like(q)
    for head in range(heads):
        for t in range(length):
            logits = np.array([q[t, head] @ k[s, head] + bias[t - s, head] for s in range(t + 1)])
            share = np.exp(logits - logits.max())
            out[t, head] = share / share.sum() @ v[: t + 1, head]
    return np.asarray(out.reshape(length, -1) @ w[f"{name}.o.weight"].T)


def told(end: np.ndarray, before: np.ndarray, w: Weights) -> np.ndarray:
    """The logits (T, V) of a T5 decoder of two blocks that sees one vector, of which its attention is all."""
    seen, x = w["projection.weight"] @ end, w["t5.shared.weight"][before]
    for block in range(2):
        name = f"t5.decoder.block.{block}.layer"
        bias = w["t5.decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        x = x + self_attention(rms(x, w[f"{name}.0.layer_norm.weight"]), w, f"{name}.0.SelfAttention", bias)
        x = x + w[f"{name}.1.EncDecAttention.o.weight"] @ (w[f"{name}.1.EncDecAttention.v.weight"] @ seen)
        h = rms(x, w[f"{name}.2.layer_norm.weight"])
        gate, up = (h @ w[f"{name}.2.DenseReluDense.wi_{i}.weight"].T for i in (0, 1))
        gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        x = x + (gelu * up) @ w[f"{name}.2.DenseReluDense.wo.weight"].T
    return np.asarray(rms(x, w["t5.decoder.final_layer_norm.weight"]) @ w["t5.lm_head.weight"].T)


def test_the_loss_equals_one_that_numpy_computes_from_the_decoders_arithmetic() -> None:
    decoder = decoder_of()
    labels = torch.tensor([[5, 7, 59, 3], [8, 2, IGNORED, IGNORED]])
    ends = torch.randn(2, CLIP_WIDTH)
    w = {name: x.double().numpy() for name, x in decoder.state_dict().items()}
    expected = []
    for end, row in zip(ends.double().numpy(), labels.numpy(), strict=True):
        row = row[row != IGNORED]
        logits = told(end, np.array([0, *row[:-1]]), w)
        expected += list(np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(row)), row])
    assert decoder(ends, labels).item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_labels_are_what_clip_reads_after_the_start_of_text() -> None:
    clip = tiny_clip()
    texts = ["a red circle", "two big blue squares left of a star"]
    labels, input_ids = ClipLabels(clip.tokenizer)(texts), clip.tokenizer(texts)
    for row, ids in zip(labels.tolist(), input_ids.tolist(), strict=True):
        end = ids.index(max(ids))
        assert row == [*ids[1 : end + 1], *[IGNORED] * (len(row) - end)]
    assert max(map(len, labels.tolist())) == (labels != IGNORED).sum(dim=1).max()


def batch_of(clip: Any, num_images: int = 4) -> TuningBatch:
    made = HardNegatives(TextBlobAnnotator(), SceneLexicon())
    data = TuningData(
        SceneSource(IMAGE_SIZE), clip.tokenizer, made, KINDS, 0, num_images, reads=ClipLabels(clip.tokenizer)
    )
    return data(0)


def test_both_losses_are_added_to_the_methods_own() -> None:
    clip = tiny_clip()
    batch = batch_of(clip)
    decoder = small_decoder(49408, CLIP_WIDTH)
    assert batch.others is not None
    rec = decoder(caption_ends(clip.model, batch.input_ids[:4]), batch.others.labels).item()
    captions, others = (encode_texts(clip.model, ids).pooled for ids in (batch.input_ids[:4], batch.others.input_ids))
    align = alignment_loss(others, captions, clip.model.logit_scale.exp()).item()
    plain = TuningLoss((clip.model, clip.transform), "fsc-clip")(batch).item()
    for weights in (ReadWeights(0.1, 0.5), ReadWeights(0.3, 0), ReadWeights(0, 0.7)):
        reading = Reading(decoder if weights.reconstruction else None, weights)
        for method in ("fsc-clip", "negclip", "clip"):
            without = TuningLoss((clip.model, clip.transform), method)(batch).item()
            found = TuningLoss((clip.model, clip.transform), method, reading=reading)(batch).item()
            assert found - without == pytest.approx(weights.reconstruction * rec + weights.alignment * align, rel=1e-4)
    assert plain != pytest.approx(rec)


def test_a_frozen_decoder_teaches_the_text_tower_and_the_map_before_it() -> None:
    clip, decoder = tiny_clip(), decoder_of(49408)
    decoder.freeze()
    reading = Reading(decoder, ReadWeights(0.1)).train()
    batch = batch_of(clip)
    reading(clip.model, batch, encode_texts(clip.model, batch.input_ids[:4]).pooled).backward()
    assert decoder.projection.weight.grad is not None
    assert decoder.projection.weight.grad.abs().max() > 0
    assert clip.model.token_embedding.weight.grad.abs().max() > 0
    assert all(weight.grad is None for weight in decoder.t5.parameters())
    assert not decoder.t5.training


def test_the_state_at_the_end_of_a_caption_is_what_clip_projects() -> None:
    clip = tiny_clip()
    input_ids = clip.tokenizer(["a red circle", "two big blue squares left of a star"])
    projected = caption_ends(clip.model, input_ids) @ clip.model.text_projection
    torch.testing.assert_close(
        torch.nn.functional.normalize(projected, dim=-1), encode_texts(clip.model, input_ids).pooled
    )


def write_t5(folder: Path) -> Path:
    """A T5 v1.1 in transformers' layout, with the tokenizer of a published model."""
    write_siglip(folder / "siglip")
    config = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2, "feed_forward_proj": "gated-gelu"}
    tokenizer = transformers().AutoTokenizer.from_pretrained(folder / "siglip")
    tokenizer.save_pretrained(folder / "t5")
    t5 = transformers().T5ForConditionalGeneration(
        transformers().T5Config(
            vocab_size=len(tokenizer), tie_word_embeddings=False, decoder_start_token_id=0, pad_token_id=0, **config
        )
    )
    t5.save_pretrained(folder / "t5")
    return folder / "t5"


def test_the_decoder_of_a_published_t5_is_read_frozen_with_its_own_tokens(tmp_path: Path) -> None:
    folder = write_t5(tmp_path)
    decoder, labels = read_decoder(folder, CLIP_WIDTH, 24)
    t5 = transformers().T5ForConditionalGeneration.from_pretrained(folder).eval()
    ends, rows = torch.randn(2, CLIP_WIDTH), labels(["a red square", "a"])
    assert (rows == IGNORED).any()
    expected = t5(encoder_outputs=(decoder.projection(ends)[:, None],), labels=rows).loss
    assert decoder(ends, rows).item() == pytest.approx(expected.item(), rel=1e-6)
    assert not any(weight.requires_grad for weight in decoder.t5.parameters())
    with pytest.raises(Refused, match="can't be read as a T5"):
        read_decoder(tmp_path, CLIP_WIDTH, 24)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(Refused, match="of the architecture 'bert'"):
        read_decoder(folder, CLIP_WIDTH, 24)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_job_learns_a_decoder_first_and_then_tunes_with_both_losses(tmp_path: Path) -> None:
    save_clip(tiny_clip(), tmp_path / "base")
    command = ["--base", str(tmp_path / "base"), "--output", str(tmp_path / "out"), "--batch-size", "4"]
    command += ["--images", str(write_folder(tmp_path)), "--steps", "2", "--precision", "no", "--no-publish"]
    reading = ["--set", "lambda_reconstruction=0.1", "--set", "lambda_alignment=0.5"]
    recipe = tmp_path / "few.toml"
    recipe.write_text('negatives = ["replace"]\ndecoder_steps = 2\n')
    result = CliRunner().invoke(app, [*command, *reading, "--recipe", str(recipe)])
    assert result.exit_code == 0, result.output
    described = json.loads((tmp_path / "out" / "checkpoint" / "checkpoint.json").read_text())["training"]
    assert (described["lambda_reconstruction"], described["lambda_alignment"]) == (0.1, 0.5)
    assert (tmp_path / "out" / "resume-decoder.pt").exists()
