"""Images with captions on disk, by number: folders with a table of captions, and webdataset tar shards.

The order of an epoch depends only on a seed and the epoch, and any example can be read without those before it, so that
processes and loader workers read theirs by number, and a killed run resumes without rereading earlier examples.
"""

import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from PIL import Image

from services.core.text_files import BadFile, json_objects, read_rows, text_of
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
    name. Raises ValueError for a name that is no type or form, occurs twice or has no pairs; BadFile for files
    that can't be read.
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


IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp")
CAPTION_COLUMNS = ("caption", "captions", "title", "text")
IMAGE_COLUMNS = ("image", "filepath", "file_name", "filename")
# Number of shards whose examples are shuffled together, a compromise between reading one shard and all at once.
SHARDS_AT_ONCE = 8
# More consecutive unreadable images than this mean a wrong folder rather than occasional damage.
MAX_UNREADABLE = 20

_BRACE_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class Unreadable(Exception):
    """One example that can't be read; the message names it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A whole file, or `num_bytes` of it from `offset`."""

    file: Path
    offset: int = 0
    num_bytes: int = -1

    def read(self) -> bytes:
        """Read the bytes. Raises OSError."""
        with self.file.open("rb") as opened:
            opened.seek(self.offset)
            return opened.read(self.num_bytes)


@dataclass(frozen=True, slots=True)
class Example:
    """An image and where its captions are: the captions themselves, or a text or JSON file that holds them."""

    image: Part
    captions: tuple[str, ...] | Part
    negatives: OfImage = field(default_factory=dict)


class Captioned(NamedTuple):
    """An image (RGB), a caption, and the stored hard negatives of the caption, by name."""

    image: Image.Image
    caption: str
    negatives: Mapping[str, str]


class CaptionedImages:
    """Examples in blocks: an epoch runs through the blocks, shuffled, SHARDS_AT_ONCE at a time.

    `name` appears in messages, `has_negatives` tells whether captions have stored hard negatives. Raises ValueError if
    there are no examples.
    """

    def __init__(self, blocks: Sequence[Sequence[Example]], name: str, *, has_negatives: bool = False) -> None:
        self.has_negatives = has_negatives
        self._blocks = [block for block in blocks if block]
        self._num_examples = sum(map(len, self._blocks))
        if not self._num_examples:
            raise ValueError(f"there are no images with captions in {name}")
        self._order: tuple[tuple[int, int], list[Example]] | None = None

    def __len__(self) -> int:
        return self._num_examples

    def example(self, seed: int, position: int) -> Captioned:
        """The image and a caption at a position of the endless shuffled epochs.

        Of several captions, and of several hard negatives of a name, every epoch takes another. An example that can't
        be read is replaced by the next one. Raises Unreadable after MAX_UNREADABLE consecutive ones.
        """
        epoch, offset = divmod(position, self._num_examples)
        order = self._epoch(seed, epoch)
        for place in range(offset, offset + MAX_UNREADABLE):
            example = order[place % self._num_examples]
            try:
                captions = _captions(example)
                caption = captions[(position + seed) % len(captions)]
                stored = example.negatives.get(caption, {})
                negatives = {name: texts[(epoch + seed) % len(texts)] for name, texts in stored.items()}
                return Captioned(_image(example.image), caption, negatives)
            except Unreadable as error:
                last = error
        raise Unreadable(f"{MAX_UNREADABLE} consecutive examples can't be read; last error: {last}")

    def _epoch(self, seed: int, epoch: int) -> list[Example]:
        if self._order is None or self._order[0] != (seed, epoch):
            generator = torch.Generator().manual_seed(seed * 1_000_000_007 + epoch)
            blocks = [self._blocks[i] for i in torch.randperm(len(self._blocks), generator=generator).tolist()]
            order: list[Example] = []
            for start in range(0, len(blocks), SHARDS_AT_ONCE):
                mixed = [example for block in blocks[start : start + SHARDS_AT_ONCE] for example in block]
                order += [mixed[i] for i in torch.randperm(len(mixed), generator=generator).tolist()]
            self._order = (seed, epoch), order
        return self._order[1]


def open_table(table: Path, image_folder: Path | None = None, stored: StoredNegatives | None = None) -> CaptionedImages:
    """Open a TSV or JSONL file of images and their captions.

    A TSV has two columns, or a header with one of IMAGE_COLUMNS and one of CAPTION_COLUMNS; a JSONL line is an object
    with such keys, where captions may be a list. Images are paths relative to `image_folder`, by default the table's
    own folder. Captions may have `stored` hard negatives. Raises OSError or ValueError, naming the line, or the image
    or caption of a stored negative that is not there.
    """
    folder = table.parent if image_folder is None else image_folder
    rows = list(_json_rows(table) if table.suffix in (".jsonl", ".ndjson") else _tsv_rows(table))
    if stored is None:
        return CaptionedImages([[Example(Part(folder / image), captions) for image, captions in rows]], str(table))
    known: dict[str, set[str]] = {}
    for image, captions in rows:
        known.setdefault(image, set()).update(captions)
    stored.check(table, known, folder)
    examples = [Example(Part(folder / image), captions, stored.of(image)) for image, captions in rows]
    return CaptionedImages([examples], str(table), has_negatives=True)


def open_shards(sources: Sequence[str]) -> CaptionedImages:
    """Open webdataset tar files, or ranges of them (`shards-{000..010}.tar`): images, each with a `.txt`, or a `.json`
    with a caption, of the same key. Raises OSError or ValueError for a file that is missing or not a plain tar file."""
    paths = [path for source in sources for path in _expand(source)]
    return CaptionedImages([_tar_examples(path) for path in paths], ", ".join(sources))


def _image(part: Part) -> Image.Image:
    try:
        return Image.open(io.BytesIO(part.read())).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Unreadable(f"{part.file} at byte {part.offset}: {error}") from None


def _captions(example: Example) -> tuple[str, ...]:
    if not isinstance(example.captions, Part):
        return example.captions
    part = example.captions
    try:
        text = part.read().decode()
        record = json.loads(text) if text.lstrip().startswith("{") else {"caption": text}
        found = _caption_texts(record)
    except (OSError, ValueError) as error:
        raise Unreadable(f"{part.file} at byte {part.offset}: {error}") from None
    if not found:
        raise Unreadable(f"{part.file} at byte {part.offset}: there is no caption")
    return found


def _caption_texts(record: dict[str, object]) -> tuple[str, ...]:
    value = next((record[name] for name in CAPTION_COLUMNS if record.get(name)), ())
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a caption must be a string or a list of strings")
    return tuple(" ".join(text.split()) for text in texts if text.strip())


def _json_rows(table: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for place, record in json_objects(table):
        name = next((name for name in IMAGE_COLUMNS if name in record), IMAGE_COLUMNS[0])
        image = text_of(record, name, place)
        try:
            captions = _caption_texts(record)
        except ValueError as error:
            raise BadFile(f"{place}: {error}") from None
        if captions:
            yield image, captions


def _tsv_rows(table: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    image, caption = 0, 1
    for number, (place, row) in enumerate(read_rows(table, "\t", is_quoted=False)):
        if number == 0 and any(name in row for name in IMAGE_COLUMNS):
            image = next(i for i, name in enumerate(row) if name in IMAGE_COLUMNS)
            caption = next((i for i, name in enumerate(row) if name in CAPTION_COLUMNS), -1)
            if caption < 0:
                raise BadFile(f"{place}: the header has none of {', '.join(CAPTION_COLUMNS)}")
        elif len(row) <= max(image, caption):
            raise BadFile(f"{place}: an image and a caption are required, separated by a tab")
        elif text := " ".join(row[caption].split()):
            yield row[image], (text,)


def _expand(source: str) -> Iterator[Path]:
    if not Path(source).exists() and (braces := _BRACE_RANGE.search(source)):
        first, last = braces.groups()
        width = len(first) if first.startswith("0") else 0
        for number in range(int(first), int(last) + 1):
            yield from _expand(f"{source[: braces.start()]}{number:0{width}d}{source[braces.end() :]}")
        return
    yield Path(source)


def _tar_examples(path: Path) -> list[Example]:
    """Read a shard in order; images without a caption are left out."""
    images: dict[str, Part] = {}
    captions: dict[str, Part] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                folder, slash, base = member.name.removeprefix("./").rpartition("/")
                stem, _, extension = base.partition(".")
                key, part = f"{folder}{slash}{stem}", Part(path, member.offset_data, member.size)
                if not member.isreg():
                    continue
                if extension.lower() in IMAGE_SUFFIXES:
                    images[key] = part
                elif extension == "txt" or (extension == "json" and key not in captions):
                    captions[key] = part
    except tarfile.TarError as error:
        raise ValueError(f"{path} is not an uncompressed tar file: {error}") from None
    return [Example(image, captions[key]) for key, image in images.items() if key in captions]
