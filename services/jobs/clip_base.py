"""The CLIP that a job tunes, from a folder, the model store or open_clip."""

from pathlib import Path

from services.jobs.checkpoints import find_checkpoint
from services.nn.clip_model import OPEN_CLIP_CONFIG, ClipModel, build_clip, load_clip

# In the place of pretrained weights: none, but weights drawn by torch's generator.
RANDOM = "random"


def load_base(reference: str, pretrained: str | None, store_url: str | None) -> tuple[ClipModel, str]:
    """Load a CLIP to tune, in evaluation mode, and return its name for a manifest.

    It is what `find_checkpoint` finds or, with `pretrained` weights, a name that open_clip knows. RANDOM are those of a
    model to train from scratch, of such a name or in a folder's form. Raises StoreError or ValueError if there is none.
    """
    if pretrained == RANDOM:
        folder = Path(reference)
        clip = build_clip(folder) if (folder / OPEN_CLIP_CONFIG).is_file() else load_clip(reference)
        name = f"{reference}:{RANDOM}"
    elif pretrained is not None:
        clip, name = load_clip(reference, pretrained), f"{reference}:{pretrained}"
    else:
        source = find_checkpoint(reference, store_url)
        clip, name = load_clip(str(source.directory)), source.label if source.manifest else reference
    clip.model.eval()
    return clip, name
