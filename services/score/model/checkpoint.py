"""FSC-CLIP checkpoint directories: an open_clip directory with an additional `fsc_clip.json`.

The weights are CLIP's own, so open_clip loads the same directory; `fsc_clip.json` sets the weight of single words:
score = (1 − local_weight) · global + local_weight · local.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from services.nn.clip_model import OPEN_CLIP_WEIGHTS, ClipModel, create_clip, read_config, save_clip
from services.score.model.dense_features import check_towers

FSC_CLIP_CONFIG = "fsc_clip.json"
# the kind of such a directory in manifests of the model store
FSC_CLIP_KIND = "fsc-clip"


@dataclass(frozen=True)
class FscClipCheckpoint:
    """A model ready to score; `local_weight` ranges from 0, pooled features only, to 1, single tokens only.

    Raises ValueError for another weight, and for a model without token features.
    """

    clip: ClipModel
    local_weight: float

    def __post_init__(self) -> None:
        if not 0 <= self.local_weight <= 1:
            raise ValueError(f"local_weight is {self.local_weight}: it must be from 0 to 1")
        check_towers(self.clip.model)


def save_fsc_clip(checkpoint: FscClipCheckpoint, directory: Path) -> None:
    """Write an FSC-CLIP directory. Weights are stored as float16."""
    save_clip(checkpoint.clip, directory)
    settings = {"local_weight": checkpoint.local_weight}
    (directory / FSC_CLIP_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")


def load_fsc_clip(
    directory: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> FscClipCheckpoint:
    """Read an FSC-CLIP directory for inference. Raises OSError, ValueError or RuntimeError if it is not one."""
    local_weight = _read_local_weight(directory / FSC_CLIP_CONFIG)
    clip = create_clip(*read_config(directory))
    clip.model.load_state_dict(load_file(directory / OPEN_CLIP_WEIGHTS))
    clip.model.eval().requires_grad_(False)
    clip.model.to(device=device, dtype=dtype)
    return FscClipCheckpoint(clip, local_weight)


def _read_local_weight(path: Path) -> float:
    settings = json.loads(path.read_text())
    if not isinstance(settings, dict) or set(settings) != {"local_weight"}:
        raise ValueError(f"{path} must contain only a local_weight")
    if not isinstance(settings["local_weight"], int | float):
        raise ValueError(f"{path}: local_weight is {settings['local_weight']!r}: it must be a number")
    return float(settings["local_weight"])
