"""A FocalLens checkpoint on a device."""

import math
from pathlib import Path

import torch

from services.embed.model.checkpoint import FocalLensCheckpoint, load_focallens
from services.embed.model.encoder import Encoder
from services.embed.model.stacking_engine import Costs, Encoders, StackingEngine

# Reading a number of a state from memory, widening it and attending to it takes a CPU about as long as this many
# multiplications of a forward pass.
STATE_READ_COST = 32


class EmbedEngine(StackingEngine[FocalLensCheckpoint]):
    """Runs one FocalLens checkpoint."""

    def __init__(self, checkpoint: FocalLensCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        model = checkpoint.model
        blocks = model.clip.visual.transformer.resblocks
        width = model.condition_projection.out_features
        num_weights = 12 * width**2 * len(blocks)  # of attention and an MLP four times as wide
        costs = Costs(
            num_patches=int(model.clip.visual.positional_embedding.shape[0]) - 1,
            share_of_blocks=1 - model.condition_layer / len(blocks),
            state=math.ceil(STATE_READ_COST * (model.state_size or 0) / num_weights),
        )
        encoder = Encoder(checkpoint, device, dtype)
        super().__init__(checkpoint, device, dtype, Encoders(encoder, encoder, encoder), costs)

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> FocalLensCheckpoint:
        return load_focallens(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: FocalLensCheckpoint) -> int:
        return int(checkpoint.model.condition_projection.out_features)
