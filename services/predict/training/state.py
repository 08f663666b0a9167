"""The files that let a training continue: its state, and the weights of the best step so far.

    resume.pt       step, weights, optimizer and evaluations, with the arguments that they belong to
    best-<step>.pt  the weights that were best on the validation examples

Files are written atomically. The best weights are written before the state that names them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from services.jobs.resumption import differences, flat, option_names
from services.predict.training.recipe import Recipe, TeachingData

STATE_FILE = "resume.pt"
# Options of `fovea train distill` and keys of its recipe, by the last part of an argument's name.
OPTIONS = {
    **{name: name for name in Recipe.__dataclass_fields__},
    **option_names("method", "learning_rate", "batch_size", "seed", "fraction", "augment", "rationales"),
    "num_steps": "--steps",
    "prefixes.label": "label_prefix",
    "prefixes.rationale": "rationale_prefix",
    "recipe.prefixes.label": "label_prefix",
    "recipe.prefixes.rationale": "rationale_prefix",
    "data.folder": "--data",
    "data.labels": "--labels",
}


class Progress:
    """A training's files in a folder, for a module and its optimizer as prepared by accelerate.

    All processes read the same folder; only the main one writes.
    """

    def __init__(
        self, folder: Path, accelerator: Accelerator, module: nn.Module, optimizer: Any, arguments: Mapping[str, Any]
    ) -> None:
        """`arguments` must equal those with which a state was saved for it to be continued; JSON values."""
        self._folder = folder
        self._accelerator = accelerator
        self._module = module
        self._optimizer = optimizer
        self._arguments = json.loads(json.dumps(arguments))

    def load(self) -> dict[str, Any] | None:
        """Load the last state's weights into the module, and return the values saved with it; None without a state.

        Raises ValueError for a state with other arguments.
        """
        path = self._folder / STATE_FILE
        if not path.is_file():
            return None
        state = torch.load(path, map_location="cpu", weights_only=True)
        agree(path, json.loads(state["arguments"]), self._arguments)
        load_weights(self._accelerator.unwrap_model(self._module), state["weights"])
        optimizer = state["optimizer"]
        for number, weight in enumerate(self._trained().values()):
            moments = optimizer["state"][number]
            # all values except the step number have the weight's shape
            optimizer["state"][number] = {
                name: _part_of(weight, moment) if moment.dim() else moment for name, moment in moments.items()
            }
        self._optimizer.load_state_dict(optimizer)
        values: dict[str, Any] = state["values"]
        return values

    def weights(self) -> dict[str, Tensor]:
        """The full trained weights by name; every process must call this. Empty except on the main process."""
        return {name: whole for name, weight in self._trained().items() if (whole := self._whole(weight)) is not None}

    def save(self, values: Mapping[str, Any], *, best_step: int, is_best: bool) -> None:
        """Save the state, and its weights as the best if `is_best`; every process must call this."""
        weights, optimizer = self.weights(), self._optimizer.state_dict()
        for number, moments in optimizer["state"].items():
            optimizer["state"][number] = {name: self._whole(moment) for name, moment in moments.items()}
        if not self._accelerator.is_main_process:
            return
        if is_best:
            _write(self.best_path(best_step), weights)
        state = {
            "arguments": json.dumps(self._arguments),
            "values": dict(values),
            "weights": weights,
            "optimizer": optimizer,
        }
        _write(self._folder / STATE_FILE, state)
        for path in self._folder.glob("best-*.pt"):
            if path != self.best_path(best_step):
                path.unlink()

    def best_weights(self, step: int) -> dict[str, Tensor]:
        """Load the weights that were saved as the best, of this step."""
        weights: dict[str, Tensor] = torch.load(self.best_path(step), map_location="cpu", weights_only=True)
        return weights

    def best_path(self, step: int) -> Path:
        """Return the path of the best weights."""
        return self._folder / f"best-{step}.pt"

    def _trained(self) -> dict[str, Tensor]:
        return trained_weights(self._accelerator.unwrap_model(self._module))

    def _whole(self, tensor: Tensor) -> Tensor | None:
        """Assemble a tensor from its parts, on the main process."""
        if not isinstance(tensor, DTensor):
            return tensor
        whole: Tensor = tensor.full_tensor()
        return whole.cpu() if self._accelerator.is_main_process else None


def forget(folder: Path) -> None:
    """Remove the files that a finished training no longer needs."""
    for path in (folder / STATE_FILE, *folder.glob("best-*.pt")):
        path.unlink(missing_ok=True)


def trained_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the weights that require a gradient, by name, each once."""
    return {name: weight.detach() for name, weight in module.named_parameters() if weight.requires_grad}


@torch.no_grad()
def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load full weights into a module's trained ones. Raises KeyError for a missing weight."""
    for name, weight in trained_weights(module).items():
        weight.copy_(_part_of(weight, weights[name]))


def arguments_of(recipe: Recipe, data: TeachingData, model: nn.Module) -> dict[str, Any]:
    """Summarise what affects the result of a training: the recipe, and digests of the examples and of the model.

    The digest covers only the first numbers of each of the model's weights.
    """
    examples = hashlib.sha256(repr(data.task).encode())
    for split in (data.train, data.valid, data.test, *([data.confided] if data.confided else [])):
        examples.update(f"{len(split)}".encode())
        for example in split:
            examples.update(repr(example).encode())
    first = hashlib.sha256()
    for name, weight in model.named_parameters():
        first.update(f"{name} {tuple(weight.shape)}".encode())
        first.update(weight.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return {**asdict(recipe), "examples": examples.hexdigest()[:12], "model": first.hexdigest()[:12]}


def agree(path: Path, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ValueError, with the differences, if a file was begun with other arguments; JSON objects."""
    changed = differences(flat(begun), flat(now), OPTIONS)
    if changed:
        raise ValueError(
            f"{path} belongs to a training with other arguments ({changed}): remove it or choose another folder"
        )


def _part_of(like: Tensor, whole: Tensor) -> Tensor:
    """Return the process's part of a tensor that is sharded like another one."""
    if not isinstance(like, DTensor):
        return whole
    # every process has read the whole tensor, so nothing needs to be sent
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _write(path: Path, content: Any) -> None:
    unfinished = path.with_suffix(".partial")
    torch.save(content, unfinished)
    unfinished.replace(path)  # a kill leaves the old file or the new one
