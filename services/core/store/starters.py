"""Checkpoint folders that describe themselves: starters, and the folders given to `fovea store publish`."""

from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from services.core.complaints import first_complaint
from services.core.store.checkpoint_files import DESCRIPTION_FILE
from services.core.store.errors import InvalidCheckpoint
from services.core.store.manifest import CheckpointInfo


class CheckpointDescription(CheckpointInfo):
    """The contents of `checkpoint.json`: a folder's name and aliases in the store, and its manifest's information."""

    name: str
    aliases: tuple[str, ...] = ("latest",)

    def info(self) -> CheckpointInfo:
        return CheckpointInfo(**{field: getattr(self, field) for field in CheckpointInfo.model_fields})


def read_description(directory: Path) -> CheckpointDescription:
    """Read a description. Raises InvalidCheckpoint, naming file and field, where it is missing or invalid."""
    path = directory / DESCRIPTION_FILE
    try:
        return CheckpointDescription.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidCheckpoint(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidCheckpoint(f"{path}: {first_complaint(error, 'content')}") from error


def packaged_starters() -> list[Path]:
    """List the `<service>/starter/<name>` folders of the installed package."""
    package = Path(str(files("services")))
    return sorted(path.parent for path in package.glob(f"*/starter/*/{DESCRIPTION_FILE}"))
