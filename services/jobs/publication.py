"""Publication of checkpoints created by jobs."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from services.core.store.checkpoint_files import DESCRIPTION_FILE
from services.core.store.manifest import CheckpointInfo, check_model_name
from services.jobs.checkpoints import open_store

# options that are meaningless on another machine
LOCAL_OPTIONS = ("output", "publish", "store_url")


def check_publication(name: str, store_url: str | None, *, is_wanted: bool) -> None:
    """Check before the work that the store accepts the name and responds. Raises StoreError."""
    if is_wanted:
        check_model_name(name)
        open_store(store_url).names()


def publish_trained(
    directory: Path, name: str, kind: str, options: Mapping[str, Any], metrics: Mapping[str, Any]
) -> None:
    """Print a training's measurements, and describe and publish its checkpoint folder according to its options.

    The options `seed`, `base`, `licence` and `statement` have their own fields in the manifest. Raises StoreError.
    """
    kept = {key: value for key, value in options.items() if key not in LOCAL_OPTIONS}
    training = json.loads(json.dumps(kept, default=str))  # paths become strings
    info = CheckpointInfo(
        kind=kind,
        base=training.pop("base", None),
        licence=training.pop("licence", "MIT"),
        statement=training.pop("statement", None),
        training=training,
        seed=training["seed"],
        metrics=dict(metrics),
        code_revision=os.environ.get("FOVEA_CODE_REVISION"),
    )
    console = Console(highlight=False)
    console.print_json(json.dumps(metrics))
    publish_described(directory, name, info, options["store_url"], console, is_wanted=options["publish"])


def publish_described(
    directory: Path, name: str, info: CheckpointInfo, store_url: str | None, console: Console, *, is_wanted: bool
) -> None:
    """Publish a checkpoint folder if requested, and write its description next to the weights.

    Raises StoreError.
    """
    if is_wanted:
        console.print(f"published {open_store(store_url).publish(name, directory, info)}")
    description = {"name": name, **info.model_dump(mode="json")}
    (directory / DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n")
