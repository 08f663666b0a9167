"""READ-CLIP: a caption's embedding has to tell how the caption is worded, and paraphrases are to be near each other.

Kwon, Min and Sohn, "Enhancing Compositional Reasoning in CLIP via Reconstruction and Alignment of Text Descriptions"
(NeurIPS 2025, arXiv:2510.16540), with what its authors' code (github.com/JiH00nKw0n/READ-CLIP) settles:

    z_i     = W h_i         h_i is the text tower's state at the end of caption i, after its last norm and before CLIP's
                            projection; W has no bias
    L_rec   = − Σ_i Σ_n log p(y_in | y_i1 … y_i(n−1), z_i) / Σ_i |y_i|      p is a frozen decoder (T5 v1.1 large) whose
                            cross-attention sees z_i alone, y_i the tokens of another caption of image i
    L_align = − Σ_i log softmax_j(cos(t(y_i), t(x_j)) / τ)_i / B            t is the text tower, x_j are the captions
    L       = L_contrastive + λ_rec L_rec + λ_align L_align                 λ_rec = 0.1, λ_align = 0.5

Everything after the features is computed in at least float32, also under autocast.

Shapes: B captions, T tokens, V vocabulary, E embedding width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# In the place of a token that there is not.
IGNORED = -100


def reconstruction_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """L_rec: logits (B, T, V) for labels (B, T) int64, of which those that are IGNORED do not count."""
    with torch.autocast(logits.device.type, enabled=False):
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)


def alignment_loss(others: Tensor, captions: Tensor, logit_scale: Tensor | float) -> Tensor:
    """L_align: (B, E) and (B, E), both L2-normalised, row i of one a paraphrase of row i of the other."""
    with torch.autocast(others.device.type, enabled=False):
        logits = logit_scale * others.float() @ captions.float().T
        return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
