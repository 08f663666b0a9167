"""Stored hard negatives: the false captions of a file of pairs, as `fovea curate` publishes them, by true caption."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from services.jobs.sugarcrepe import FORMS, Pair, PairKind, load_pairs

# The false captions of each name, by the true caption.
OfImage = Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True)
class StoredNegatives:
    """False captions by image and true caption; `names` are the forms or types that they are chosen by.

    An image is a path relative to the folder of images. White space of true captions is normalised.
    """

    path: Path
    names: tuple[str, ...]
    by_image: Mapping[str, OfImage]

    def of(self, image: str) -> OfImage:
        """Return the false captions of an image, by its true captions."""
        return self.by_image.get(image, {})

    def check(self, table: Path, captions: Mapping[str, set[str]], folder: Path) -> None:
        """Check that each pair's image is a file in the folder and has the caption in a table, given as its captions
        by image. Raises ValueError with the numbers and the first fault.
        """
        missing = [image for image in self.by_image if not (folder / image).is_file()]
        if missing:
            raise ValueError(
                f"{self.path}: {len(missing)} of {len(self.by_image)} images are not in {folder}, such as {missing[0]}"
            )
        pairs = [(image, caption) for image, found in self.by_image.items() for caption in found]
        unknown = [(image, caption) for image, caption in pairs if caption not in captions.get(image, ())]
        if unknown:
            image, caption = unknown[0]
            raise ValueError(
                f"{self.path}: {len(unknown)} of {len(pairs)} captions are not in {table}, such as {caption!r} of"
                f" {image}"
            )


def read_stored(path: Path, names: Sequence[str] = ()) -> StoredNegatives:
    """Read the false captions of some types or forms, by default of each form that the file has.

    The path is a file of JSON lines or a folder in SugarCrepe's form. A true caption may have several false ones of a
    name. Raises ValueError for a name that is no type or form, occurs twice or has no pairs; BadPairs, MissingData and
    OSError for files that can't be read.
    """
    pairs = load_pairs(path)
    counts = Counter(pair.kind for pair in pairs)
    names = tuple(names) or tuple(form for form, kinds in FORMS.items() if any(counts[kind] for kind in kinds))
    kinds_of = {name: _kinds(name) for name in names}
    used = Counter(kind for kinds in kinds_of.values() for kind in kinds)
    twice = [kind for kind, number in used.items() if number > 1]
    if len(kinds_of) < len(names) or twice:
        raise ValueError(f"{', '.join(names)}: each type may be named once")
    for name, kinds in kinds_of.items():
        if not any(counts[kind] for kind in kinds):
            had = ", ".join(f"{kind} ({number})" for kind, number in counts.items())
            raise ValueError(f"{path} holds no pairs of {name}; it holds {had or 'nothing'}")
    name_of = {kind: name for name, kinds in kinds_of.items() for kind in kinds}
    return StoredNegatives(path, names, _by_image(pairs, name_of))


def _kinds(name: str) -> Sequence[PairKind]:
    known = {kind: (kind,) for kind in get_args(PairKind)} | dict(FORMS)
    if name not in known:
        raise ValueError(f"{name!r} is neither a form nor a type of pairs: {', '.join(FORMS)}; {', '.join(known)}")
    return known[name]


def _by_image(pairs: Sequence[Pair], name_of: Mapping[PairKind, str]) -> dict[str, OfImage]:
    found: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    for pair in pairs:
        name = name_of.get(pair.kind)
        if name is not None:
            texts = found.setdefault(pair.filename, {}).setdefault(" ".join(pair.caption.split()), {})
            texts[name] = (*texts.get(name, ()), pair.negative_caption)
    return {**found}
