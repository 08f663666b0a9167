"""`fovea models`: published models that are known to fit, and their imports for `fovea up --models`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from rich.filesize import decimal as human_bytes

from services.cli import store
from services.cli.programs import gpu_free_bytes, has_nvidia_gpu
from services.cli.store_import import ENGINES
from services.core.logs import log_warnings_to_stderr
from services.core.memory import memory_within_limits, return_freed_memory
from services.core.refusals import Refused, first_complaint, near_names
from services.core.settings import ServiceSettings, read_settings
from services.core.text_files import read_toml
from services.generate.capacity import DEFAULT_SHARE, DTYPE_BYTES
from services.jobs.imports.source import HUB_SCHEME
from services.jobs.options import command_line

FILE = Path(__file__).with_name("models.toml")
MILLION = 10**6
Device = Literal["cpu", "gpu"]
# As `auto` chooses them.
DTYPES: Mapping[Device, str] = {"cpu": "float32", "gpu": "bfloat16"}

app = command_line()


class Model(BaseModel):
    """A row of the catalogue. Every size follows from the number of parameters:

        download = parameters × bytes of a number as published, unless the row says it
        memory   = parameters × bytes of a number as served / DEFAULT_SHARE

    with 4 bytes on a CPU and 2 on a GPU. `fovea capacity` tells what a language model's cache takes besides.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    kind: str
    services: tuple[Literal["embed", "generate", "predict", "score"], ...] = Field(min_length=1)
    parameters: int = Field(ge=1)
    dtype: Literal["float32", "float16", "bfloat16"]
    licence: str
    gated: bool = False
    options: str = ""
    needs: str = ""
    at: str = ""
    download: int | Literal["unknown"] | None = None
    figures: str = ""

    @field_validator("kind")
    @classmethod
    def _is_imported(cls, kind: str) -> str:
        if kind not in ENGINES:
            raise ValueError(f"nothing imports {kind!r}, only {', '.join(ENGINES)}")
        return kind

    @property
    def download_bytes(self) -> int | None:
        """Count the bytes that an import downloads, None if that is not known."""
        if self.download == "unknown":
            return None
        return self.download or self.parameters * MILLION * DTYPE_BYTES[self.dtype]

    def memory_bytes(self, dtype: str) -> int:
        """Count the bytes that have to be free for each service that serves it."""
        return int(self.parameters * MILLION * DTYPE_BYTES[dtype] / DEFAULT_SHARE)

    @property
    def words(self) -> list[str]:
        """Return the arguments of the one `fovea store` command that imports it."""
        return ["import", self.source, "--name", self.name, *self.options.split(), *self.needs.split()]

    @property
    def command(self) -> str:
        """Return that command as it is typed."""
        return " ".join(["fovea store", *self.words])

    def content(self) -> dict[str, object]:
        """Return the row as plain JSON; null is what is not known."""
        sizes = {f"{device}_bytes": self.memory_bytes(dtype) for device, dtype in DTYPES.items()}
        known = self.model_dump(include={"name", "kind", "services", "source", "gated"}, mode="json")
        told = {field: getattr(self, field) or None for field in ("licence", "at", "figures")}
        size = {"parameters": self.parameters * MILLION, "download_bytes": self.download_bytes}
        return {**known, **told, **size, **sizes, "import": self.command}

    def cells(self) -> tuple[str, ...]:
        """Return the row for a table of `COLUMNS`."""
        licence = self.licence or "not named"
        sizes = (self.download_bytes, *(self.memory_bytes(dtype) for dtype in DTYPES.values()))
        told = ["unknown" if size is None else human_bytes(size) for size in sizes]
        return self.name, ", ".join(self.services), f"{licence} (gated)" if self.gated else licence, *told


COLUMNS = ("model", "service", "licence", "download", "memory on a CPU", "on a GPU")


@cache
def catalogue(file: Path = FILE) -> dict[str, Model]:
    """Read the rows, by name. Raises Refused for an invalid one."""
    rows = read_toml(file)["model"]
    try:
        return {row["name"]: Model.model_validate(row) for row in rows}
    except ValidationError as invalid:
        raise Refused(f"{file.name}: {first_complaint(invalid, 'the file')}") from None


@app.command()
def models(
    service: Annotated[
        Literal["embed", "generate", "predict", "score"] | None, typer.Option(help="Only models of this service.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="Only models under this licence: apache-2.0, mit, llama2.")
    ] = None,
    *,
    fits: Annotated[bool, typer.Option("--fits", help="Only models for which this machine has free memory.")] = False,
    as_json: store.AsJson = False,
) -> None:
    """List published models that are known to fit: service, licence, download, memory and the import command.

    `fovea up --models NAME,…` imports and serves those that you name.
    """
    rows = [row for row in catalogue().values() if service in (None, *row.services)]
    rows = [row for row in rows if licence is None or row.licence.casefold() == licence.casefold()]
    if fits:
        device = _device("auto")
        limit = _free()[device]
        rows = [row for row in rows if limit is None or len(row.services) * row.memory_bytes(DTYPES[device]) <= limit]
    if as_json:
        store.print_json([row.content() for row in rows])
        return
    store.print_table(COLUMNS, (row.cells() for row in rows))
    typer.echo("\n".join(row.command for row in rows))


def import_and_choose(
    names: Sequence[str], environment: Mapping[str, str], programs: Collection[str]
) -> dict[str, str]:
    """Import the models of these names that the store lacks; returns the settings that serve them and no others.

    Raises Refused for an unknown name, for a service that is not among the programs, for what this machine's memory
    does not hold, and for a model whose import needs more than its name.
    """
    rows = [_row(name) for name in dict.fromkeys(filter(None, (name.strip() for name in names)))]
    if not rows:
        raise Refused("--models names no model; fovea models lists them")
    if absent := [service for row in rows for service in row.services if service not in programs]:
        raise Refused(f"--models: {absent[0]} is not installed here; pip install 'fovea-serving[{absent[0]}]'")
    _check_memory(rows, environment)
    log_warnings_to_stderr()
    opened = store.open_store(read_settings(ServiceSettings, port=0).store_url)
    missing = [row for row in rows if "latest" not in opened.aliases(row.name)]
    for row in missing:
        if row.needs or not row.source.startswith(HUB_SCHEME):
            first = f"download {row.source} from {row.at}, and then" if row.at else "choose its task, and"
            raise Refused(
                f"{row.name} is not in {opened.label} and needs more than its name: {first} run {row.command}"
            )
    for number, row in enumerate(missing, 1):
        typer.echo(f"Importing {number} of {len(missing)}: {row.command}")
        if status := typer.main.get_command(store.app).main([*row.words, "--once", "latest"], standalone_mode=False):
            raise typer.Exit(status)
    if missing:
        return_freed_memory()
    return dict(_settings(rows))


def _row(name: str) -> Model:
    rows = catalogue()
    if name not in rows:
        near = near_names(name, rows, count=3, similarity=0.4)
        hint = f"the nearest are {', '.join(near)}" if near else "none has a similar name"
        own = "a model of your own is served by FOVEA_…_MODELS"
        raise Refused(f"--models: fovea models lists no {name!r}; {hint} ({own})")
    return rows[name]


def _settings(rows: Sequence[Model]) -> Iterator[tuple[str, str]]:
    for service in dict.fromkeys(service for row in rows for service in row.services):
        own = [row for row in rows if service in row.services]
        yield f"FOVEA_{service.upper()}_MODELS", ",".join(row.name for row in own)


def _check_memory(rows: Sequence[Model], environment: Mapping[str, str]) -> None:
    """Raises Refused if the memory of a device does not hold all models that would be served on it."""
    needed: dict[Device, dict[str, int]] = {"cpu": {}, "gpu": {}}
    for row in rows:
        for service in row.services:
            prefix = f"FOVEA_{service.upper()}"
            device = _device(environment.get(f"{prefix}_DEVICE", "auto"))
            dtype = environment.get(f"{prefix}_DTYPE", "auto")
            size = row.memory_bytes(dtype if dtype in DTYPE_BYTES else DTYPES[device])
            needed[device][f"{row.name} in {service}"] = size
    for device, free in _free().items():
        total = sum(needed[device].values())
        if free is not None and total > free:
            told = ", ".join(f"{what} {human_bytes(size)}" for what, size in needed[device].items())
            raise Refused(
                f"--models: the {device.upper()} has {human_bytes(free)} of free memory, and {human_bytes(total)} are "
                f"needed ({told}): name smaller models (fovea models --fits), or halve them on a CPU by FOVEA_…_DTYPE="
                "bfloat16; what is imported and named in FOVEA_…_MODELS is tried all the same"
            )


def _device(setting: str) -> Device:
    return "gpu" if setting in ("auto", "cuda") and has_nvidia_gpu() else "cpu"


def _free() -> dict[Device, int | None]:
    """Return the free memory of each device, None where it is not known."""
    return {"cpu": memory_within_limits()[1], "gpu": gpu_free_bytes()}
