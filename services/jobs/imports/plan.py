"""The plan of an import: which files a checkpoint takes, which are converted or made, and which are left, and why."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pydantic import JsonValue

from services.jobs.imports.source import Source
from services.jobs.imports.weights import PICKLES, Weights

DOCUMENTATION = (".md", ".txt", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp")
OTHER_FRAMEWORKS = (
    ".onnx",
    ".onnx_data",
    ".gguf",
    ".ggml",
    ".msgpack",
    ".h5",
    ".ot",
    ".tflite",
    ".mlpackage",
    ".engine",
)
# A licence goes with what it is about.
LICENCES = re.compile(r"(LICEN[CS]E|NOTICE|USE_POLICY)(\.(md|txt))?", re.IGNORECASE)
# What the trainer of transformers saves beside the model.
TRAINING_STATE = ("optimizer.", "scheduler.", "rng_state", "scaler.", "training_args.", "trainer_state.")
PROGRAMS = (".py", ".pyc", ".sh", ".so", ".ipynb")


@dataclass(frozen=True)
class Plan:
    """The files of a source for a checkpoint of a kind, and the services that serve it.

    `taken` stay as they are; `weights`, None if they are among the others, are converted if they are pickles; `read`
    are needed to make others; `made` are new files with what they are made of; and `left` are the others with the
    reason. `facts` describe the model to people and enter the manifest.
    """

    kind: str
    services: tuple[str, ...]
    taken: tuple[str, ...]
    weights: Weights | None
    read: tuple[str, ...] = ()
    made: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def converted(self) -> Mapping[str, str]:
        """Pickled weights, and the files that they are converted to."""
        if self.weights is None or not self.weights.are_pickles:
            return {}
        return dict(zip(self.weights.files, self.weights.made(), strict=True))

    @property
    def all_read(self) -> tuple[str, ...]:
        """Files that others are made of, with the index of weights that are converted."""
        index = self.weights.index if self.weights is not None and self.converted else None
        return self.read if index is None else (*self.read, index)

    @property
    def placed(self) -> tuple[str, ...]:
        """Files that become part of the checkpoint as they are."""
        return self.taken if self.weights is None or self.converted else (*self.taken, *self.weights.files)


def left_files(
    source: Source, weights: Weights | None, others: Collection[str], reasons: Mapping[str, str]
) -> dict[str, str]:
    """Say for each file of a source but the weights and `others` why it is left; `reasons` win over what names tell."""
    used = {*others, *((*weights.files, weights.index) if weights else ())}
    left = [path for path in source.files if path not in used and not LICENCES.fullmatch(path)]
    return {path: reasons.get(path) or _reason(path) for path in left}


def _reason(path: str) -> str:
    name = PurePosixPath(path).name
    suffix = PurePosixPath(path).suffix.lower()
    if name.startswith("."):
        return "bookkeeping of git or of a download"
    if suffix in PROGRAMS:
        return "a program; nothing of a source is run"
    if name.startswith(TRAINING_STATE):
        return "state of a training"
    if suffix in OTHER_FRAMEWORKS:
        return "of another framework"
    if suffix == ".safetensors" or suffix in PICKLES or ".bin." in name or ".safetensors." in name:
        return "other weights than those that are imported"
    if suffix in DOCUMENTATION or name.upper() in ("LICENSE", "README"):
        return "documentation"
    return "not needed for serving"
