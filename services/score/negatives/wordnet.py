"""WordNet's database files, read in place: words, their senses, and the pointers between senses.

The files are those of wndb(5WN) in any edition: Debian's `wordnet-base` and `wordnet-sense-index`, or NLTK's
`corpora/wordnet`, a folder or its archive. They are mapped into memory and searched in place (each line of an index is
found by bisection, each sense is at its offset), so opening them is nearly free and processes share the pages.
"""

import mmap
import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

Pos = Literal["n", "v", "a", "r"]  # adjectives with their satellites are "a"
Buffer = mmap.mmap | bytes

FILES: dict[Pos, str] = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_SENSE_TYPES: dict[Pos, int] = {"n": 1, "v": 2, "a": 3, "r": 4}
_SATELLITE = 5
# endings and the corresponding endings of dictionary forms, tried in this order (morphy(7WN))
_ENDINGS: dict[Pos, tuple[tuple[str, str], ...]] = {
    "n": (
        *(("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z")),
        *(("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y")),
    ),
    "v": (
        *(("s", ""), ("ies", "y"), ("es", "e"), ("es", "")),
        *(("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    ),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}
# number of parsed senses to cache; frequent ones are needed for nearly every word
_KEPT_SYNSETS = 32_768
# the words of nearly all senses are within this number of bytes
_HEAD_BYTES = 192


class Pointer(NamedTuple):
    """A pointer from a sense, or one word of it, to another."""

    symbol: str  # "@" hypernym, "~" hyponym, "!" antonym, "+" derived form, "&" similar, ";u" usage, …
    pos: Pos
    offset: int
    source: int  # number of the word at which it starts, from 1; 0 for all of them
    target: int  # likewise for the target


class Synset(NamedTuple):
    """Words of one meaning."""

    pos: Pos
    offset: int
    is_satellite: bool  # an adjective with a similar meaning to a head adjective
    lexicographer_file: int
    lemmas: tuple[str, ...]  # as printed: spaces are underscores, names keep their capitals
    lemma_ids: tuple[int, ...]


class WordNet:
    """The database in one folder. Words are given in lower case, with underscores for spaces."""

    def __init__(self, source: Path) -> None:
        """Open a folder, or an archive with a folder `wordnet`. Raises FileNotFoundError if it is neither."""
        self.source = source
        self._buffers: dict[str, Buffer] = {}
        self._exceptions: dict[Pos, dict[str, list[str]]] = {}
        self._irregular_forms: dict[Pos, dict[str, list[str]]] = {}
        self.synset = lru_cache(_KEPT_SYNSETS)(self._synset)
        self._pointers_of = lru_cache(_KEPT_SYNSETS)(self._pointers)
        expected = [source] if _is_archive(source) else [source / f"{kind}.{FILES['n']}" for kind in ("index", "data")]
        for path in expected:
            if not path.is_file():
                raise FileNotFoundError(path)

    def __reduce__(self) -> tuple[type["WordNet"], tuple[Path]]:
        return WordNet, (self.source,)

    def synsets(self, word: str, pos: Pos) -> list[Synset]:
        """List the senses of a word in any form, most frequent first; those of its dictionary form come last."""
        offsets = [offset for form in self.base_forms(word, pos) for offset in self._offsets(form, pos)]
        return [self.synset(pos, offset) for offset in dict.fromkeys(offsets)]

    def synsets_of_lemma(self, lemma: str, pos: Pos) -> list[Synset]:
        """List only the senses of a dictionary form."""
        return [self.synset(pos, offset) for offset in self._offsets(lemma.lower(), pos)]

    def base_forms(self, word: str, pos: Pos) -> list[str]:
        """List a word's dictionary forms, itself first: irregular ones, or those derived by its endings."""
        word = word.lower()
        irregular = self._irregular(pos).get(word)
        if irregular is not None:
            return [form for form in dict.fromkeys((word, *irregular)) if self._offsets(form, pos)]
        endings = _ENDINGS[pos]
        shorter = [word[: len(word) - len(old)] + new for old, new in endings if word.endswith(old)]
        return [form for form in dict.fromkeys((word, *shorter)) if self._offsets(form, pos)]

    def irregular_forms(self, lemma: str, pos: Pos) -> tuple[str, ...]:
        """Return the irregular forms of a dictionary word."""
        return tuple(self._forms(pos).get(lemma, ()))

    def count(self, synset: Synset, place: int) -> int:
        """Count the occurrences of a sense's lemma in the tagged texts; 0 if these are missing."""
        return self._counts.get(self._sense_key(synset, place), 0)

    def related(self, synset: Synset, *symbols: str) -> Iterator[Synset]:
        """Yield the targets of pointers of these kinds, from the sense as a whole or any of its words."""
        for pointer in self._pointers_of(synset.pos, synset.offset):
            if pointer.symbol in symbols:
                yield self.synset(pointer.pos, pointer.offset)

    def related_lemmas(self, synset: Synset, symbol: str, place: int | None = None) -> Iterator[tuple[Synset, int]]:
        """Yield the targets (a sense and a place in it) of pointers from the lemma at a place, or from any."""
        for pointer in self._pointers_of(synset.pos, synset.offset):
            if pointer.symbol == symbol and pointer.source and place in (None, pointer.source - 1):
                yield self.synset(pointer.pos, pointer.offset), pointer.target - 1

    def gloss(self, synset: Synset) -> str:
        """Return a sense's definition and examples."""
        buffer = self._buffer(f"data.{FILES[synset.pos]}")
        start = buffer.find(b"|", synset.offset) + 1
        return bytes(buffer[start : buffer.find(b"\n", start)]).decode("utf-8", "replace").strip()

    def _offsets(self, lemma: str, pos: Pos) -> tuple[int, ...]:
        if not lemma or lemma[0] == " ":  # like the lines of the licence at the head of the file
            return ()
        line = _line_of(self._buffer(f"index.{FILES[pos]}"), lemma.encode("utf-8", "replace") + b" ")
        if line is None:
            return ()
        # lemma pos num_senses num_pointers [pointers] num_senses num_tagged [offsets]
        fields = line.split()
        return tuple(map(int, fields[6 + int(fields[3]) :]))

    def _synset(self, pos: Pos, offset: int) -> Synset:
        fields = self._fields(pos, offset, _HEAD_BYTES)
        num_words = int(fields[3], 16)
        if len(fields) < 6 + 2 * num_words:  # too long: its words do not end within the head
            fields = self._fields(pos, offset, None)
        return Synset(
            pos=pos,
            offset=offset,
            is_satellite=fields[2] == b"s",
            lexicographer_file=int(fields[1]),
            # an adjective may carry its syntactic position, as in "galore(ip)"
            lemmas=tuple(
                sys.intern(word.partition(b"(")[0].decode("utf-8", "replace"))
                for word in fields[4 : 4 + 2 * num_words : 2]
            ),
            lemma_ids=tuple(int(number, 16) for number in fields[5 : 5 + 2 * num_words : 2]),
        )

    def _pointers(self, pos: Pos, offset: int) -> tuple[Pointer, ...]:
        fields = [field.decode("ascii", "replace") for field in self._fields(pos, offset, None)]
        at = 4 + 2 * int(fields[3], 16)
        return tuple(
            Pointer(sys.intern(fields[p]), _POS[fields[p + 2]], int(fields[p + 1]), *_ends(fields[p + 3]))
            for p in range(at + 1, at + 1 + 4 * int(fields[at]), 4)
        )

    def _fields(self, pos: Pos, offset: int, num_bytes: int | None) -> list[bytes]:
        buffer = self._buffer(f"data.{FILES[pos]}")
        end = offset + num_bytes if num_bytes else buffer.find(b"|", offset)
        return buffer[offset:end].split()

    def _sense_key(self, synset: Synset, place: int) -> bytes:
        number, head = _SENSE_TYPES[synset.pos], ":"
        if synset.is_satellite:
            number = _SATELLITE
            first = next(self.related(synset, "&"))
            head = f"{first.lemmas[0].lower()}:{first.lemma_ids[0]:02d}"
        ids = f"{number}:{synset.lexicographer_file:02d}:{synset.lemma_ids[place]:02d}"
        return f"{synset.lemmas[place].lower()}%{ids}:{head}".encode()

    @cached_property
    def met_lemmas(self) -> frozenset[str]:
        """The words that occur in the tagged texts in any sense, in lower case."""
        return frozenset(key.partition(b"%")[0].decode("utf-8", "replace") for key in self._counts)

    @cached_property
    def _counts(self) -> dict[bytes, int]:
        with suppress(FileNotFoundError):
            rows = (line.split() for line in bytes(self._buffer("cntlist.rev")).splitlines())
            return {row[0]: int(row[2]) for row in rows if len(row) == 3}
        return {}

    def _irregular(self, pos: Pos) -> dict[str, list[str]]:
        if pos not in self._exceptions:
            table: dict[str, list[str]] = {}
            with suppress(FileNotFoundError):
                for line in bytes(self._buffer(f"{FILES[pos]}.exc")).decode("utf-8", "replace").splitlines():
                    word, *forms = line.split()
                    table[word] = forms
            self._exceptions[pos] = table
        return self._exceptions[pos]

    def _forms(self, pos: Pos) -> dict[str, list[str]]:
        if pos not in self._irregular_forms:
            table: dict[str, list[str]] = {}
            for word, lemmas in self._irregular(pos).items():
                for lemma in lemmas:
                    table.setdefault(lemma, []).append(word)
            self._irregular_forms[pos] = table
        return self._irregular_forms[pos]

    def _buffer(self, name: str) -> Buffer:
        if name not in self._buffers:
            self._buffers[name] = (
                _unzipped(self.source, name) if _is_archive(self.source) else _mapped(self.source / name)
            )
        return self._buffers[name]


def find_wordnet(folder: Path | None = None) -> WordNet | None:
    """Find the database in a folder, or where NLTK and Debian install it; None if there is none.

    Raises FileNotFoundError if a folder was given that holds no database.
    """
    if folder is not None:
        return WordNet(folder)
    for place in _usual_places():
        with suppress(FileNotFoundError):
            return WordNet(place)
    return None


def _usual_places() -> Iterator[Path]:
    given = [Path(entry) for entry in os.environ.get("NLTK_DATA", "").split(os.pathsep) if entry]
    own = [Path(sys.prefix, *parts, "nltk_data") for parts in ((), ("share",), ("lib",))]
    shared = [Path(entry, "nltk_data") for entry in ("/usr/share", "/usr/local/share", "/usr/lib", "/usr/local/lib")]
    for data in (*given, None, Path.home() / "nltk_data", *own, *shared):
        if data is None:
            yield Path("/usr/share/wordnet")
        else:
            yield data / "corpora" / "wordnet"
            yield data / "corpora" / "wordnet.zip"


def _is_archive(source: Path) -> bool:
    return source.suffix == ".zip"


def _mapped(path: Path) -> Buffer:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _unzipped(archive: Path, name: str) -> bytes:
    with zipfile.ZipFile(archive) as files:
        try:
            return files.read(f"wordnet/{name}")
        except KeyError as error:
            raise FileNotFoundError(f"{archive}/wordnet/{name}") from error


def _line_of(buffer: Buffer, start: bytes) -> bytes | None:
    """Find the line of a sorted file that begins with `start`, by bisection."""
    low, high = 0, len(buffer)
    while low < high:
        middle = (low + high) // 2
        begin = buffer.rfind(b"\n", low, middle) + 1 or low
        end = buffer.find(b"\n", middle, high)
        end = high if end < 0 else end
        head = buffer[begin : begin + len(start)]
        if head == start:
            return buffer[begin:end]
        if head < start:
            low = end + 1
        else:
            high = begin
    return None


_POS: dict[str, Pos] = {"n": "n", "v": "v", "a": "a", "s": "a", "r": "r"}


def _ends(numbers: str) -> tuple[int, int]:
    return int(numbers[:2], 16), int(numbers[2:], 16)
