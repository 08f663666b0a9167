"""ViT-B/32, an image and a text tower of OpenAI's CLIP, on the device of `CountedGPU`: without numbers."""

import torch

from services.nn.clip_model import ClipModel, create_clip, open_clip
from tests.nn.counted_gpu import GPU, CountedGPU

SIDE, CONTEXT = 224, 77


def clip_on_gpu() -> ClipModel:
    config = {"model_cfg": {**open_clip().get_model_config("ViT-B-32"), "quick_gelu": True}}
    with GPU:
        clip = create_clip(config)
    clip.model.eval().requires_grad_(False).bfloat16()
    # models read it when they are made
    clip.model.logit_scale = torch.nn.Parameter(torch.tensor(4.6), requires_grad=False)
    return clip


def open_clips_work(clip: ClipModel, num: int) -> tuple[CountedGPU, CountedGPU]:
    """Count open_clip's own encoding of images and of texts to host memory, `num` each."""
    pixels = torch.zeros(num, 3, SIDE, SIDE, dtype=torch.bfloat16, device=GPU)
    ids = torch.zeros(num, CONTEXT, dtype=torch.int64)
    return (
        CountedGPU.of(lambda: clip.model.encode_image(pixels, normalize=True).float().cpu()),
        CountedGPU.of(lambda: clip.model.encode_text(ids.to(GPU), normalize=True).float().cpu()),
    )
