"""The CLIP that a job tunes, from a folder, the model store or open_clip."""

from services.jobs.checkpoints import find_checkpoint
from services.nn.clip_model import ClipModel, load_clip


def load_base(reference: str, pretrained: str | None, store_url: str | None) -> tuple[ClipModel, str]:
    """Load a CLIP to tune, in evaluation mode, and return its name for a manifest.

    It is what `find_checkpoint` finds or, with `pretrained` weights, a name that open_clip knows. Raises StoreError or
    ValueError if there is none.
    """
    if pretrained is not None:
        clip, name = load_clip(reference, pretrained), f"{reference}:{pretrained}"
    else:
        source = find_checkpoint(reference, store_url)
        clip, name = load_clip(str(source.directory)), source.label if source.manifest else reference
    clip.model.eval()
    return clip, name
