"""A run of a row of the ledger: its commands in processes of their own, and our numbers beside the published ones."""

import hashlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from services.cli.papers.ledger import Comparison, Row
from services.core.refusals import Refused, near_names
from services.core.store.errors import InvalidCheckpoint, NotFoundInStore
from services.core.text_files import json_of, read_json, read_records
from services.jobs.code_revision import code_revision

# Above this size, images as a rule, the digest of a folder is one of names and sizes.
MAX_HASHED_BYTES = 256 * 1024**2
# The model of a record whose row's recipe trained it.
TRAINED = "trained here"
# What a command says of words that it does not accept.
USAGE = re.compile(r"Usage: (?P<command>fovea .*?) \[OPTIONS\].*^Error: (?P<error>.*)", re.MULTILINE | re.DOTALL)


class Missing(Refused):
    """Data or weights that a row needs and that are not there; the message tells which, and where they come from."""


class Misused(Refused):
    """Words of the command line that name nothing, or that a row's command does not accept."""


class Cell(BaseModel):
    """A published number and ours. `by` is the model that ours is of, where it is another than the run's."""

    source: str
    page: int
    row: str
    column: str
    published: float
    ours: float
    tolerance: float
    by: str = ""

    @property
    def difference(self) -> float:
        return self.ours - self.published

    @property
    def is_within(self) -> bool:
        return abs(self.difference) <= self.tolerance + 1e-9


class Record(BaseModel):
    """One run: its commands, model, seed and data, and the numbers that it gave; a line of the file of records.

    `more` are the words that were added to the row's last command, so that it is not the row's whole protocol.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    id: str
    beside: str
    model: str
    model_digest: str
    seed: int
    data: dict[str, str]
    commands: list[list[str]]
    more: list[str] = []
    version: str
    commit: str
    date: str
    seconds: float
    cells: list[Cell]


def read_all(path: Path) -> list[Record]:
    """Read a file of records. Raises BadFile."""
    return [record for _, record in read_records(path, Record)]


def append(record: Record, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(record.model_dump_json() + "\n")


def find_data(
    row: Row, folder: Path | None, models: Sequence[tuple[str, str]], *, is_whole: bool = True
) -> dict[str, Path]:
    """Find what the models' commands read: all of it for the whole protocol, else what at least one source has.

    Raises Missing, which names all that is not there and its sources.
    """
    found, missing = {}, []
    words = [word for chosen in models for step in row.steps_for(*chosen) for word in step]
    for name, data in row.data.items():
        if not any(f"{{data.{name}}}" in word for word in words):
            continue
        lacking = {path: data.lacking(None if folder is None else folder / path) for path in data.paths}
        path, lacks = min(lacking.items(), key=lambda one: sum(map(len, one[1].values())))
        if folder is not None and len(lacks) <= (0 if is_whole else len(data.files) - 1):
            found[name] = folder / path
            continue
        missing += [f"{', '.join(path + name for name in names)} from {source}" for source, names in lacks.items()]
        if 0 < len(lacks) < len(data.files) and is_whole:
            missing.append(f"or give options for what {path} has, such as --only or --tasks")
    if missing:
        if not is_whole:
            missing.append("with options of your own, what they read is enough")
        where = f"{folder} lacks" if folder is not None else "and --data is not given"
        raise Missing("\n  ".join([f"{row.id} needs data, {where}:", *missing]))
    return found


def choose_models(row: Row, given: Sequence[str]) -> list[tuple[str, str]]:
    """Return models with the published row that each stands beside, no model where the row's recipe trains one.

    A packaged model stands beside its own row, and any other beside the first, unless one is named. Raises Missing for
    a row that has neither, and Misused.
    """
    if not any("{model}" in word for step in row.steps for word in step):
        if given:
            raise Misused(f"{row.id} has no model: leave --model out")
        return [(beside, "") for beside in row.models or [""]]
    if not given and not row.models and not row.recipes:
        raise Missing(f"{row.id} needs --model: {row.weights}")
    known = {name for published in row.published for name in published.rows} | row.models.keys()
    trained = [(beside, "") for beside in row.recipes]
    chosen = []
    for text in given:
        beside, _, model = text.rpartition("=")
        if beside and beside not in known:
            near = ", ".join(map(repr, near_names(beside, known, count=3, similarity=0.0)))
            raise Misused(f"--model {text}: {row.id} has no row or model {beside!r}; the nearest are {near}")
        if not model and (beside, model) not in trained:
            raise Misused(f"--model {text}: {row.id} has no recipe for {beside!r}; it needs ROW=MODEL")
        own = (name for name, packaged in row.models.items() if packaged == model)
        chosen.append((beside or next(chain(own, row.models or row.recipes), ""), model))
    return chosen or list(row.models.items()) or trained


def folder_of(row: Row, model: tuple[str, str], output: Path) -> Path:
    """Name the folder of a run: that of the row, and in it one for each published row and model."""
    name = re.sub(r"[^\w.+-]+", "-", " ".join(filter(None, model))).strip("-.")
    return output.expanduser() / row.id / name


def filled(word: str, names: Mapping[str, str]) -> str:
    """Put names into a word of a command or a key; braces that stand for nothing stay."""
    for name, value in names.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def run(
    row: Row, model: tuple[str, str], data: Mapping[str, Path], seed: int, more: Sequence[str], kept: Path | None = None
) -> Record:
    """Run the row's commands and compare. `more` are words for the last one. Raises Refused and Misused.

    What the commands write is in `kept`, or else in a temporary folder.
    """
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="fovea-papers-") as folder:
            return run(row, model, data, seed, more, Path(folder))
    beside, reference = model
    began = time.monotonic()
    kept.mkdir(parents=True, exist_ok=True)
    steps = row.steps_for(beside, reference)
    steps = (*steps[:-1], (*steps[-1], *more))
    checkpoint = reference or (f"{kept}/run/checkpoint" if row.recipes else "")
    names = {"beside": beside, "seed": str(seed)}
    filling = {**names, "model": checkpoint, "out": str(kept)} | {
        f"data.{name}": str(path) for name, path in data.items()
    }
    commands = [[filled(word, filling) for word in step] for step in steps]
    if more and len(commands) > 1:
        _output_of([*commands[-1], "--help"])  # an option that it lacks is told before the others run
    printed = []
    for command in commands:
        sys.stderr.write(f"fovea {' '.join(command)}\n")
        printed.append(_output_of(command))
    if not row.compare:
        sys.stdout.writelines(printed)
    shown = {**names, "model": reference or "OUT/run/checkpoint", "out": "OUT"}
    shown |= {f"data.{name}": f"DATA/{path.name}" for name, path in data.items()}
    return Record(
        id=row.id,
        beside=beside,
        model=reference or (TRAINED if row.recipes else ""),
        model_digest=_model_digest(checkpoint),
        seed=seed,
        data={name: digest(path) for name, path in data.items()},
        commands=[[filled(word, shown) for word in step] for step in steps],
        more=list(more),
        version=installed_version("fovea-serving"),
        commit=code_revision() or "",
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        seconds=round(time.monotonic() - began, 1),
        cells=compare(row, beside, kept, printed[-1]),
    )


def compare(row: Row, beside: str, folder: Path, printed: str) -> list[Cell]:
    """Pair published cells with our numbers, as far as the commands gave any."""
    cells = []
    for comparison in row.compare:
        document = _document(comparison, folder, printed)
        rows = {filled(name, {"beside": beside}): ours for name, ours in comparison.rows.items()}
        (published,) = (one for one in row.published if one.source == comparison.source)
        for name, column, number in published.cells():
            if name not in rows or column not in comparison.columns:
                continue
            names = {"row": rows[name], "column": comparison.columns[column], "beside": beside}
            ours = value_at(document, [filled(step, names) for step in comparison.key])
            if comparison.over and ours is not None:
                whole = value_at(document, [filled(step, names) for step in comparison.over])
                ours = ours / whole if whole else None
            if ours is not None:
                ours = round(ours * comparison.factor, 6)
                where = {"source": published.source, "page": published.page, "row": name, "column": column}
                numbers = {"published": number, "ours": ours, "tolerance": comparison.tolerance}
                cells.append(Cell.model_validate({**where, **numbers, "by": comparison.by}))
    return cells


def value_at(document: Any, key: Sequence[str]) -> float | None:
    """Follow a key into JSON: a name of an object, `name=value` or `name!=value` for items of a list with it or not.

    A number is the place of an item of a list, and another name continues with the last item. `*` is the mean over an
    object or a list, `a+b` a sum of two numbers, `#` the length of a list. None where the document has nothing there.
    """
    if not key:
        return float(document) if isinstance(document, int | float) else None
    step, rest = key[0], key[1:]
    if step == "*" and isinstance(document, list | dict):
        values = [value_at(one, rest) for one in (document.values() if isinstance(document, dict) else document)]
        known = [one for one in values if one is not None]
        return fmean(known) if known else None
    if isinstance(document, list):
        name, is_filter, value = step.partition("=")
        if step == "#":
            return float(len(document))
        if step.isdigit():
            return value_at(document[int(step)], rest) if int(step) < len(document) else None
        if is_filter:
            is_other, name = name.endswith("!"), name.removesuffix("!")
            return value_at([one for one in document if (str(one.get(name)) == value) is not is_other], rest)
        return value_at(document[-1], key) if document else None
    if not isinstance(document, dict):
        return None
    if step in document:
        return value_at(document[step], rest)
    parts = [value_at(document, [part, *rest]) for part in step.split("+")] if "+" in step else [None]
    return None if None in parts else sum(one for one in parts if one is not None)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files; `sizes:` of a large folder."""
    if path.is_file():
        return _sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    is_large = sum(file.stat().st_size for file in files) > MAX_HASHED_BYTES
    whole = hashlib.sha256()
    for file in files:
        content = str(file.stat().st_size) if is_large else _sha256(file)
        whole.update(f"{file.relative_to(path)} {content}\n".encode())
    return ("sizes:" if is_large else "") + whole.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _document(comparison: Comparison, folder: Path, printed: str) -> Any:
    if comparison.file:
        return read_json(folder / comparison.file, may_have_nan=True)
    text = printed.strip()
    told = text if text.startswith("{\n") else text.rpartition("\n")[2]
    return json_of(told.encode(), "the last line of the command's output")


def _output_of(command: Sequence[str]) -> str:
    """Run a `fovea` command as a user would type it; what it says while it works is shown. Raises Refused.

    Raises Misused, with the command and its message, in place of showing how it is used.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        words, usage = [sys.executable, "-m", "services.cli.main", *command], ""
        with subprocess.Popen(words, stdout=output, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr or ():
                if usage or line.startswith("Usage: "):
                    usage += line
                else:
                    sys.stderr.write(line)
        output.seek(0)
        printed = output.read()
    if told := USAGE.search(usage):
        raise Misused(f"{told['command']}: {' '.join(told['error'].split())}")
    if process.returncode != 0:
        sys.stderr.write(printed)  # some commands print there what they lack
        raise Refused(f"`fovea {' '.join(command)}` ended with status {process.returncode}")
    return printed


def _model_digest(reference: str) -> str:
    """Return the digest of a version in the store or of a folder; nothing for what has no files: a tag, shapes."""
    from services.jobs.checkpoints import find_checkpoint  # imports torch, which a list of the ledger does without

    try:
        return find_checkpoint(reference).digest() if reference else ""
    except (InvalidCheckpoint, NotFoundInStore, Refused):
        return ""
