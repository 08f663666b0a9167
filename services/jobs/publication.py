"""Where training jobs take models from, and where they leave what they made."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from services.core.settings import ServiceSettings
from services.core.store.checkpoint_files import DESCRIPTION_FILE
from services.core.store.manifest import CheckpointInfo, check_model_name
from services.core.store.starters import packaged_starters
from services.core.store.store import Store
from services.nn.clip_model import OPEN_CLIP_CONFIG, ClipModel, load_clip

# what says nothing on another machine
LOCAL_OPTIONS = ("output", "publish", "store_url", "name")


@dataclass(frozen=True)
class Publication:
    """A finished checkpoint folder: what it is called, what made it and what it measured."""

    directory: Path
    name: str
    kind: str
    options: Mapping[str, Any]
    metrics: Mapping[str, float]

    def finish(self) -> None:
        """Write what the publisher knows beside the weights, print it, and publish where the options say so."""
        training = {key: _plain(value) for key, value in self.options.items() if key not in LOCAL_OPTIONS}
        info = CheckpointInfo(
            kind=self.kind,
            base=training.pop("base", None),
            training=training,
            seed=training["seed"],
            metrics={key: round(value, 4) for key, value in self.metrics.items()},
            code_revision=os.environ.get("FOVEA_CODE_REVISION"),
            licence="MIT",
        )
        console = Console(highlight=False)
        console.print_json(json.dumps(info.metrics))
        if self.options["publish"]:
            console.print(f"published {open_store(self.options['store_url']).publish(self.name, self.directory, info)}")
        description = {"name": self.name, **info.model_dump(mode="json")}
        (self.directory / DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n")


def check_publication(name: str, store_url: str | None, *, is_wanted: bool) -> None:
    """Before the work: whether the store takes such a name and can be asked. Raises StoreError."""
    if is_wanted:
        check_model_name(name)
        open_store(store_url).names()


def open_store(url: str | None) -> Store:
    """The store of this URL, or of the settings. Raises StoreError."""
    return Store.open(url or ServiceSettings(port=0).store_url)


def open_clip_model(name: str, pretrained: str | None, store_url: str | None) -> tuple[ClipModel, str]:
    """A model in evaluation mode and how a manifest names it: an open_clip name with weights, a folder, or a name in
    the store (`name` or `name@alias`).

    Raises StoreError or ValueError where there is none.
    """
    if pretrained is not None:
        model, reference = load_clip(name, pretrained), f"{name}:{pretrained}"
    elif (Path(name) / OPEN_CLIP_CONFIG).is_file():
        model, reference = load_clip(name), name
    else:
        store = open_store(store_url)
        store.publish_starters(packaged_starters())
        stem, _, version = name.partition("@")
        directory = store.fetch(
            stem, store.resolve(stem, version or "latest"), ServiceSettings(port=0).checkpoint_cache_dir
        )
        # a verified copy lies in a folder named by its version
        model, reference = load_clip(str(directory)), f"{stem}@{directory.name}"
    model.model.eval()
    return model, reference


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
