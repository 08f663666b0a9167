"""Versions that `fovea store push` has put on the Hub: the files of a version beside its manifest, and a model card."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from services.core.refusals import Refused
from services.core.store.checkpoint_files import digest_of
from services.core.store.errors import CorruptCheckpoint
from services.core.store.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, CheckpointInfo, Manifest
from services.jobs.imports.plan import Plan
from services.jobs.imports.source import Source
from services.jobs.model_card import services_of

# The fields by which a manifest of the store is told from other files of its name.
FIELDS = frozenset({"kind", "name", "version", "digest", "files"})
FACTS = ("num_parameters", "context_length", "bytes_per_token")


def read_manifest(source: Source) -> Manifest | None:
    """Return the manifest of the version that a source holds; None if it holds something else.

    Raises CorruptCheckpoint for a manifest that was changed.
    """
    if source.files.get(MANIFEST_FILE, MAX_MANIFEST_BYTES + 1) > MAX_MANIFEST_BYTES:
        return None
    body = source.fetch(MANIFEST_FILE).read_bytes()
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not content.keys() >= FIELDS:
        return None
    return Manifest.parse(body, name=str(content["name"]), version=str(content["version"]))


@dataclass(frozen=True)
class PushedVersion:
    """The import of a version as it was published, byte for byte, so that it has the same id."""

    source: Source
    manifest: Manifest

    @classmethod
    def of(cls, source: Source) -> Self | None:
        """Return the import of a source that holds a version. Raises Refused for one without all of its files."""
        manifest = read_manifest(source)
        if manifest is None:
            return None
        for path, file in manifest.files.items():
            if (found := source.files.get(path)) != file.size_bytes:
                told = "is missing" if found is None else f"has {found} bytes, not {file.size_bytes}"
                raise Refused(f"{source.uri}: {path} of {manifest.name}@{manifest.version} {told}")
        return cls(source, manifest)

    def plan(self) -> Plan:
        files, known = self.manifest.files, self.manifest.source or {}
        weights = sum(file.size_bytes for path, file in files.items() if path.endswith(".safetensors"))
        facts: dict[str, JsonValue] = {"version": self.manifest.version, "weight_bytes": weights}
        return Plan(
            kind=self.manifest.kind,
            services=services_of(self.manifest.kind),
            taken=tuple(files),
            weights=None,
            read=(MANIFEST_FILE,),
            left=dict.fromkeys(self.source.files.keys() - {*files, MANIFEST_FILE}, "not part of the version"),
            facts=facts | {fact: known[fact] for fact in FACTS if isinstance(known.get(fact), int)},
            info=CheckpointInfo(**{field: getattr(self.manifest, field) for field in CheckpointInfo.model_fields}),
        )

    def build(self, folder: Path) -> None:
        """Compare the files in the folder with the manifest. Raises CorruptCheckpoint."""
        for path, expected in self.manifest.files.items():
            if (found := digest_of(folder / path)) != expected:
                where = f"{self.manifest.name}@{self.manifest.version} in {self.source.uri}"
                raise CorruptCheckpoint(
                    where, path, expected=f"sha256 {expected.sha256}", found=f"sha256 {found.sha256}"
                )
