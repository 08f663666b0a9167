"""FocalLens-MLLM's contrastive loss, and LoRA on the language model.

Shapes: B images, R rows (an image under an instruction, and its answer), W text tokens, E embedding width.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.embed.focallens_mllm import FocalLensMllm
from services.embed.training.objectives import Contrast, Rows
from services.nn.clip_model import ClipModel
from services.nn.image_transform import ImageTransform
from services.nn.loading import transformers
from services.nn.text_transformer import clamped_scale, encode_text

# LoRA's scale is SCALE / rank · rank, so that the matrices' contribution does not shrink with a small rank.
SCALE = 2
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class MllmLoss(nn.Module):
    """Eq. 5.1 over (image, instruction, answer) rows, whose negatives are the other answers of the batch.

    `clip` is a CLIP whose text tower stays as it is; `scale` None is its own temperature, trained further.
    """

    def __init__(
        self, tuned: tuple[FocalLensMllm, ImageTransform], clip: ClipModel, scale: float | None, contrast: Contrast
    ) -> None:
        super().__init__()
        self.model, self.transform = tuned
        self._contrast = contrast
        # the image tower is not needed
        visual, clip.model.visual = clip.model.visual, None
        self.texts = copy.deepcopy(clip.model).requires_grad_(False)
        clip.model.visual = visual
        self.logit_scale = nn.Parameter(clip.model.logit_scale.detach().clone(), requires_grad=scale is None)
        self.scale = scale

    def forward(self, batch: Rows) -> Tensor:
        input_ids = batch.condition_ids[batch.condition_index]
        features = self.model(self.transform.normalise(batch.images), input_ids, batch.image_index)
        scale = clamped_scale(self.logit_scale) if self.scale is None else self.scale
        return self._contrast(features, batch.answer_ids, self._encode_answers, scale)

    def _encode_answers(self, answer_ids: Tensor) -> Tensor:
        return F.normalize(encode_text(self.texts, answer_ids).float(), dim=-1)


def prepare_tuning(model: FocalLensMllm, width: int, lora_rank: int, dtype: torch.dtype) -> None:
    """Add a new projection to `width` numbers, and make trainable what is tuned: projections and language model.

    With a `lora_rank`, of the language model only matrices of that rank, which `merge` adds to its weights; these and
    the image tower are kept in `dtype`. Raises ValueError if peft is not installed.
    """
    model.requires_grad_(False)
    llava: Any = model.llava
    if lora_rank == 0:
        llava.language_model.requires_grad_(True)
    else:
        llava.to(dtype)
        _add_lora(llava.language_model, lora_rank)
    llava.multi_modal_projector.float().requires_grad_(True)
    model.projection = nn.Linear(int(llava.config.text_config.hidden_size), width, bias=False)
    model.width = width


def recompute_activations(model: FocalLensMllm) -> None:
    """Let the language model's layers compute their activations again on the way back."""
    language_model: Any = model.llava.language_model
    # by the name of transformers 5.23, or else of those before
    enable = getattr(language_model, "activation_checkpointing_enable", None)
    (enable or language_model.gradient_checkpointing_enable)()


@torch.no_grad()
def merge(model: FocalLensMllm) -> None:
    """Add LoRA's matrices, if there are any, to the weights of the language model."""
    for module in list(model.llava.language_model.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "base_layer"):
                child.merge()
                setattr(module, name, child.base_layer)


def _add_lora(language_model: Any, rank: int) -> None:
    transformers()  # which peft imports
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ValueError("lora_rank needs the package peft, which is not installed") from None
    config = LoraConfig(r=rank, lora_alpha=SCALE * rank, lora_dropout=0.0, target_modules=list(ADAPTED))
    inject_adapter_in_model(config, language_model)
    for weight in language_model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()  # whatever the precision of the weights that stay
