"""`fovea convert fsc-clip`: convert a released CLIP, tuned for composition, to a checkpoint of the score service."""

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import JsonValue
from rich.console import Console

from services.core.refusals import Refused
from services.core.store.errors import StoreError
from services.core.store.manifest import CheckpointInfo, check_model_name
from services.jobs.checkpoints import publish_described
from services.jobs.options import StoreUrl, command_line
from services.jobs.released_weights import (
    leave_out,
    merge_lora,
    read_state_dict,
)
from services.nn.clip_model import ClipModel, load_clip
from services.nn.weight_files import load_exactly
from services.score.model.checkpoint import FSC_CLIP_KIND, FscClipCheckpoint, save_fsc_clip

app = command_line()


@app.command("fsc-clip")
def fsc_clip(
    weights: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="The released .pt file, or a .safetensors file.")
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Architecture of the weights: an open_clip name or directory. Models tuned from OpenAI's weights need "
            "a -quickgelu name, such as ViT-B-32-quickgelu."
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the checkpoint.")],
    name: Annotated[str | None, typer.Option(help="Name in the store.", show_default="the file's")] = None,
    local_weight: Annotated[
        float, typer.Option(min=0, max=1, help="Weight of the local (word-level) score. 0: CLIP's own score.")
    ] = 0.0,
    lora_alpha: Annotated[float, typer.Option(help="LoRA alpha: low-rank matrices are scaled by alpha / rank.")] = 1.0,
    leave: Annotated[
        list[str] | None,
        typer.Option("--leave-out", help="Prefix of weights to ignore, such as training heads. Repeatable."),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of the weights, for the manifest.")] = None,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Convert the weights of FSC-CLIP, NegCLIP, CE-CLIP, TSVLC, DAC, CLoVe, GNM or any other training of a CLIP.

    Every weight must match the model: a missing or unexpected weight is an error that names it.
    """
    console = Console(highlight=False, soft_wrap=True)
    try:
        name = check_model_name(name or weights.stem.lower())
        clip, training = _converted(weights, model, lora_alpha, leave or [])
        save_fsc_clip(FscClipCheckpoint(clip, local_weight), output)
        console.print(_told(training, output))
        revision = os.environ.get("FOVEA_CODE_REVISION")
        info = CheckpointInfo(
            kind=FSC_CLIP_KIND, base=model, training=training, code_revision=revision, licence=licence
        )
        publish_described(output, name, info, store_url, console, is_wanted=publish)
    except (StoreError, ValueError) as error:
        typer.echo(f"fovea convert: {error}", err=True)
        raise typer.Exit(1) from None


def _converted(
    path: Path, model: str, lora_alpha: float, prefixes: Sequence[str]
) -> tuple[ClipModel, dict[str, JsonValue]]:
    """Load a model with released weights, and describe their origin for the manifest. Raises Refused."""
    lora = merge_lora(read_state_dict(path), lora_alpha)
    state, left_out = leave_out(lora.state, prefixes)
    clip = _untrained(model)
    load_exactly(clip.model, state)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    of_lora: dict[str, JsonValue] = {} if lora.rank is None else {"lora_rank": lora.rank, "lora_alpha": lora_alpha}
    return clip, {"weights": path.name, "sha256": digest, "left_out": list(left_out), **of_lora}


def _untrained(model: str) -> ClipModel:
    """Create an open_clip model whose weights will be replaced. Raises Refused for an unknown model."""
    logging.disable(logging.WARNING)  # open_clip warns of random weights
    try:
        return load_clip(model)
    except (OSError, RuntimeError, ValueError) as error:
        raise Refused(f"--model: {error}") from error
    finally:
        logging.disable(logging.NOTSET)


def _told(training: Mapping[str, Any], output: Path) -> str:
    lines = [f"converted {training['weights']} to {output}"]
    if "lora_rank" in training:
        lines.append(
            f"added low-rank matrices to their weights: rank {training['lora_rank']}, alpha {training['lora_alpha']:g}"
        )
    if training["left_out"]:
        lines.append(f"left out: {', '.join(training['left_out'])}")
    return "\n".join(lines)


if __name__ == "__main__":
    app()
