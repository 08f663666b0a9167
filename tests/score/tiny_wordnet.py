"""A WordNet of a few senses, written in the database's own format."""

import zipfile
from dataclasses import dataclass, field
from pathlib import Path

LICENCE = "  1 This software and database is being provided to you, the LICENSEE.  \n  2 Of any kind.  \n"
FILES = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
TYPES = {"n": 1, "v": 2, "a": 3, "s": 5, "r": 4}


@dataclass
class Sense:
    """Words of one meaning; pointers are (symbol, name of the other sense, source, target), words counted from 1."""

    words: str  # split at spaces
    kind: str = "n"
    gloss: str = "a thing"
    pointers: list[tuple[str, str, int, int]] = field(default_factory=list)
    counts: tuple[int, ...] = ()


def below(parent: str) -> list[tuple[str, str, int, int]]:
    return [("@", parent, 0, 0)]


def animals() -> dict[str, Sense]:
    """A tree of six steps with dogs, cats and their like in it, and opposites of three kinds."""
    return {
        "entity": Sense("entity"),
        "object": Sense("object", pointers=below("entity")),
        "whole": Sense("whole", pointers=below("object")),
        "living": Sense("living_thing", pointers=below("whole")),
        "organism": Sense("organism", pointers=below("living")),
        "animal": Sense("animal beast", pointers=below("organism"), counts=(5, 0)),
        "canine": Sense("canine", pointers=below("animal")),
        "feline": Sense("feline", pointers=below("animal")),
        "dog": Sense("dog domestic_dog", pointers=below("canine"), counts=(40, 0)),
        "wolf": Sense("wolf", pointers=below("canine"), counts=(3,)),
        "cat": Sense("cat true_cat", pointers=below("feline"), counts=(18, 0)),
        "lynx": Sense("lynx Lynx_lynx", pointers=below("feline")),
        "cur": Sense("cur", pointers=below("canine"), gloss="an offensive word for a dog", counts=(9,)),
        "puppy": Sense("puppy", pointers=below("dog"), counts=(2,)),
        "move": Sense("move", "v", counts=(9,)),
        "hesitate": Sense("hesitate", "v", pointers=below("move"), counts=(2,)),
        "follow": Sense("go_after", "v", pointers=below("move")),
        "chase": Sense("chase dog", "v", pointers=below("follow"), counts=(4, 1)),
        "trot": Sense("trot jog", "v", pointers=below("follow"), counts=(2, 7)),
        "regret": Sense("regret", "v", pointers=below("follow"), counts=(1,)),
        "big": Sense("big large", "a", pointers=[("!", "small", 1, 1), ("&", "huge", 0, 0)], counts=(9, 8)),
        "small": Sense("small", "a", pointers=[("!", "big", 1, 1)], counts=(7,)),
        "huge": Sense("huge(a) vast", "s", pointers=[("&", "big", 0, 0)], counts=(3, 1)),
        "slowly": Sense("slowly", "r", pointers=[("!", "quickly", 1, 1)], counts=(2,)),
        "quickly": Sense("quickly", "r", pointers=[("!", "slowly", 1, 1)], counts=(5,)),
    }


EXCEPTIONS = {
    "noun": "wolves wolf\n",
    "verb": "regretted regret\nregretting regret\n",
    "adj": "bigger big\n",
    "adv": "",
}


def write_wordnet(folder: Path, senses: dict[str, Sense]) -> Path:
    """The database's files in a folder. Hyponyms are written with their hypernyms."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, sense in senses.items():
        for symbol, other, _, _ in sense.pointers:
            if symbol == "@":
                senses[other].pointers.append(("~", name, 0, 0))
    offsets: dict[str, int] = dict.fromkeys(senses, 0)
    for _ in range(2):  # once for the lengths, once with the offsets
        texts = dict.fromkeys(FILES.values(), LICENCE)
        for name, sense in senses.items():
            offsets[name] = len(texts[FILES[sense.kind]])
            texts[FILES[sense.kind]] += _line(sense, senses, offsets)
    for name, text in texts.items():
        (folder / f"data.{name}").write_text(text)
        (folder / f"index.{name}").write_text(LICENCE + _index(name, senses, offsets))
        (folder / f"{name}.exc").write_text(EXCEPTIONS[name])
    (folder / "cntlist.rev").write_text("".join(sorted(_counts(senses))))
    return folder


def write_archive(path: Path, folder: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"wordnet/{file.name}")
    return path


def _line(sense: Sense, senses: dict[str, Sense], offsets: dict[str, int]) -> str:
    words = [f"{word} {place}" for place, word in enumerate(sense.words.split())]
    pointers = [
        f"{symbol} {offsets[other]:08d} {senses[other].kind.replace('s', 'a')} {source:02x}{target:02x}"
        for symbol, other, source, target in sense.pointers
    ]
    me = offsets[next(name for name, one in senses.items() if one is sense)]
    head = f"{me:08d} 05 {sense.kind} {len(words):02x} {' '.join(words)} {len(pointers):03d}"
    return f"{' '.join([head, *pointers])} | {sense.gloss}  \n"


def _index(file: str, senses: dict[str, Sense], offsets: dict[str, int]) -> str:
    found: dict[str, list[str]] = {}
    for name, sense in senses.items():
        for word in sense.words.split():
            if FILES[sense.kind] == file:
                found.setdefault(word.partition("(")[0].lower(), []).append(name)
    lines = []
    for lemma, names in found.items():
        kind = senses[names[0]].kind.replace("s", "a")
        places = " ".join(f"{offsets[name]:08d}" for name in names)
        lines.append(f"{lemma} {kind} {len(names)} 2 @ ~ {len(names)} 0 {places}  \n")
    return "".join(sorted(lines))


def _counts(senses: dict[str, Sense]) -> list[str]:
    lines = []
    for sense in senses.values():
        head = ":"
        if sense.kind == "s":
            other = next(name for symbol, name, _, _ in sense.pointers if symbol == "&")
            head = f"{senses[other].words.split()[0]}:00"
        for place, (word, count) in enumerate(zip(sense.words.split(), sense.counts, strict=False)):
            if count:
                lemma = word.partition("(")[0].lower()
                lines.append(f"{lemma}%{TYPES[sense.kind]}:05:{place:02d}:{head} 1 {count}\n")
    return lines
