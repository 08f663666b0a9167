"""READ-CLIP's losses equal numbers that numpy computes from the equations."""

import numpy as np
import pytest
import torch

from services.score.read_clip import IGNORED, alignment_loss, reconstruction_loss


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def test_reconstruction_is_the_mean_over_all_tokens_that_there_are() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 4, 7)), rng.integers(0, 7, size=(3, 4))
    labels[1, 2:] = labels[2, 1:] = IGNORED
    told = [-log_softmax(logits)[i, n, labels[i, n]] for i in range(3) for n in range(4) if labels[i, n] != IGNORED]
    assert len(told) == 7
    found = reconstruction_loss(torch.tensor(logits), torch.tensor(labels))
    assert found.item() == pytest.approx(np.mean(told), rel=1e-6)


def test_alignment_finds_each_caption_among_all_by_its_paraphrase() -> None:
    rng = np.random.default_rng(1)
    others, captions = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in rng.normal(size=(2, 5, 6)))
    expected = -np.mean(np.diag(log_softmax(20 * others @ captions.T)))
    found = alignment_loss(torch.tensor(others), torch.tensor(captions), 20.0)
    assert found.item() == pytest.approx(expected, rel=1e-5)
    assert alignment_loss(torch.eye(5), torch.eye(5), 100.0).item() == pytest.approx(0, abs=1e-6)
