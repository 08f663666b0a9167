"""Checkpoint folders of a few bytes."""

import json
import struct
from pathlib import Path

from services.core.store.manifest import CheckpointInfo

INFO = CheckpointInfo(kind="tiny", training={"steps": 3}, seed=7, metrics={"accuracy": 0.5}, licence="MIT")


def safetensors(weights: bytes) -> bytes:
    """A safetensors file with one tensor of bytes."""
    tensor = {"dtype": "U8", "shape": [len(weights)], "data_offsets": [0, len(weights)]}
    header = json.dumps({"weights": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + weights


def write_checkpoint(directory: Path, weights: bytes = b"weights") -> Path:
    (directory / "tokenizer").mkdir(parents=True, exist_ok=True)
    (directory / "model.safetensors").write_bytes(safetensors(weights))
    (directory / "config.json").write_text('{"width": 4}')
    (directory / "tokenizer" / "merges.txt").write_text("a b\n")
    return directory


def write_starter(directory: Path, name: str, weights: bytes = b"starter") -> Path:
    write_checkpoint(directory, weights)
    (directory / "checkpoint.json").write_text(json.dumps({"name": name, **INFO.model_dump(mode="json")}))
    return directory
