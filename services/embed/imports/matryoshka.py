"""Widths that a source says its embeddings were trained to be cut to (Matryoshka)."""

from services.core.refusals import Refused
from services.embed.outputs import trained_widths
from services.jobs.imports.source import MODEL_CONFIG, Source, read_object
from services.nn.clip_model import OPEN_CLIP_CONFIG

FILES = (MODEL_CONFIG, "config_sentence_transformers.json", OPEN_CLIP_CONFIG)
# As vLLM and Jina name them, and the width to which sentence-transformers and Jina's CLIP cut.
FIELDS = ("matryoshka_dimensions", "matryoshka_dims", "truncate_dim")


def widths_of(source: Source, given: str | None) -> str | None:
    """Return the widths of an option, else those that the source's settings name. Raises Refused for another form."""
    if given is not None:
        return _checked("--dimensions", given)
    for path in FILES:
        settings = read_object(source, path)
        for field in FIELDS:
            if value := settings.get(field):
                return _checked(f"{path}: {field}", value)
        if settings.get("is_matryoshka") is True:
            return "1+"
    return None


def _checked(place: str, told: object) -> str:
    if (widths := trained_widths(told)) is None:
        raise Refused(f"{place} is {str(told)[:50]}: it lists numbers such as 64,128,256, or is 64+ for any from 64 up")
    return widths
