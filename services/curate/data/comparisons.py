"""Comparisons of two sets of hard negatives of the same captions, by form (Tables 4.4 and C.3)."""

from collections.abc import Mapping

from services.jobs.sugarcrepe import PairKind

# The forms of the comparison, with the types of each. Denials and additions both ask whether something is there.
COMPARED: Mapping[str, tuple[PairKind, ...]] = {
    "REPLACE": ("replace_obj", "replace_att", "replace_rel"),
    "SWAP": ("swap_obj", "swap_att"),
    "NEGATE / ADD": ("negate", "add_obj", "add_att"),
    "SHUFFLE": ("shuffle",),
}
FORM_OF: Mapping[str, str] = {kind: form for form, kinds in COMPARED.items() for kind in kinds}


def same_caption(caption: str) -> str:
    """Tell captions apart by their words alone, since sets differ in white space, capitals and full stops."""
    return " ".join(caption.lower().split()).rstrip(" .")
