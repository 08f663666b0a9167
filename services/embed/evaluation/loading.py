"""Loading of embedders by their names on a command line."""

from services.embed.evaluation.embedders import ClipEmbedder, EngineEmbedder, FocalLensEmbedder, ImageEmbedder
from services.embed.model.checkpoint import load_focallens
from services.embed.model.engines import engine_of
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.plain_engine import PlainEngine
from services.jobs.checkpoints import find_checkpoint
from services.nn.clip_model import ClipModel, load_clip, open_clip, uses_quick_gelu
from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform


def load_embedder(
    reference: str, *, pretrained: str | None = None, device: str = "cpu", store_url: str | None = None
) -> ImageEmbedder:
    """Load the embedder named on a command line: a folder of FocalLens's, open_clip's, MagicLens's, LLaVA's,
    InstructBLIP's or of another vision-language model, a name in the store, or, with `pretrained` (a tag, or a file
    that open_clip reads), a name that open_clip knows.

    Raises ValueError for an unknown open_clip name, StoreError if the store has no such name.
    """
    if pretrained is not None:
        return ClipEmbedder(_known_clip(reference, pretrained), name=reference, device=device)
    directory = find_checkpoint(reference, store_url).directory
    engine = engine_of(directory)
    if engine is FocalLensEngine:
        return FocalLensEmbedder(load_focallens(directory, device=device), name=reference)
    if engine is PlainEngine:
        return ClipEmbedder(load_clip(str(directory)), name=reference, device=device)
    return EngineEmbedder.load(engine, directory, name=reference, device=device)


def _known_clip(name: str, pretrained: str) -> ClipModel:
    """Load a model of any architecture that open_clip builds, with its own tokenizer and preprocessing."""
    model_config = open_clip().get_model_config(name)
    if model_config is None:
        raise ValueError(f"open_clip has no model {name!r}")
    quick_gelu = uses_quick_gelu(name, pretrained)
    model = open_clip().create_model(name, pretrained=pretrained, force_quick_gelu=quick_gelu)
    tokenizer = open_clip().get_tokenizer(name)
    config = model.visual.preprocess_cfg
    size = config["size"]
    return ClipModel(
        model=model,
        tokenizer=Tokenizer(tokenizer, tokenizer.context_length),
        transform=ImageTransform(
            size=(size, size) if isinstance(size, int) else tuple(size),
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
            interpolation=config["interpolation"],
            resize_mode=config["resize_mode"],
        ),
        config={"model_cfg": {**model_config, "quick_gelu": quick_gelu}},
    )
