"""FSC-CLIP checkpoint directories: an open_clip directory with an additional `fsc_clip.json`.

The weights are CLIP's own, so open_clip loads the same directory; `fsc_clip.json` sets the weight of single words:
score = (1 − local_weight) · global + local_weight · local. Its optional `temperature` replaces CLIP's own in
probabilities: softmax of score / temperature.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from services.nn.clip_model import OPEN_CLIP_WEIGHTS, ClipModel, build_clip, save_clip
from services.nn.text_transformer import clamped_scale
from services.score.model.dense_features import check_towers

FSC_CLIP_CONFIG = "fsc_clip.json"
# the kind of such a directory in manifests of the model store
FSC_CLIP_KIND = "fsc-clip"


@dataclass(frozen=True)
class FscClipCheckpoint:
    """A model ready to score; `local_weight` ranges from 0, pooled features only, to 1, single tokens only.

    `temperature` divides the scores in probabilities, None for CLIP's own. Raises ValueError for another weight, for a
    temperature that is not a finite number above 0, and for a model without token features.
    """

    clip: ClipModel
    local_weight: float
    temperature: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.local_weight <= 1:
            raise ValueError(f"local_weight is {self.local_weight}: it must be from 0 to 1")
        if self.temperature is not None and not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}: it must be a finite number above 0")
        check_towers(self.clip.model)

    @property
    def logit_scale(self) -> float:
        """The factor of scores in probabilities."""
        own = float(clamped_scale(self.clip.model.logit_scale.detach().float()))
        return own if self.temperature is None else 1 / self.temperature


def save_fsc_clip(checkpoint: FscClipCheckpoint, directory: Path) -> None:
    """Write an FSC-CLIP directory. Weights are stored as float16."""
    save_clip(checkpoint.clip, directory)
    settings = {"local_weight": checkpoint.local_weight}
    if checkpoint.temperature is not None:
        settings["temperature"] = checkpoint.temperature
    (directory / FSC_CLIP_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")


def load_fsc_clip(
    directory: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> FscClipCheckpoint:
    """Read an FSC-CLIP directory for inference. Raises OSError, ValueError or RuntimeError if it is not one."""
    local_weight, temperature = _read_settings(directory / FSC_CLIP_CONFIG)
    clip = build_clip(directory)
    clip.model.load_state_dict(load_file(directory / OPEN_CLIP_WEIGHTS))
    clip.model.eval().requires_grad_(False)
    clip.model.to(device=device, dtype=dtype)
    return FscClipCheckpoint(clip, local_weight, temperature)


def _read_settings(path: Path) -> tuple[float, float | None]:
    """Read the local weight and the temperature, None if there is none."""
    settings = json.loads(path.read_text())
    if not isinstance(settings, dict) or set(settings) - {"temperature"} != {"local_weight"}:
        raise ValueError(f"{path} must contain only a local_weight and, if wanted, a temperature")
    for name, value in settings.items():
        if not isinstance(value, int | float):
            raise ValueError(f"{path}: {name} is {value!r}: it must be a number")
    temperature = settings.get("temperature")
    return float(settings["local_weight"]), None if temperature is None else float(temperature)
