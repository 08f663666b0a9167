"""Reference outputs: a checkpoint's answers to a few inputs, recorded on publishing and compared on serving.

`reference.json` is an ordinary file of the version, so that its digest and the version's id cover it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from services.nn.broken_model import BrokenModel
from services.nn.weight_files import check_weights

REFERENCE_FILE = "reference.json"
MAX_REFERENCE_BYTES = 1024 * 1024
MAX_INPUTS = 16
MAX_NUMBERS = 8192

# Distance of two outputs as a share of the length of one. Rounding and the order of summation make outputs of the same
# weights differ by far less, other weights by about 1.
TOLERANCES = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.2, "int8": 0.5}
# If outputs of two different inputs are closer than this, the model ignores its inputs.
SAME_OUTPUT = 1e-6

OutputRow = Sequence[float]


class Reference(BaseModel):
    """Reference `inputs` and their `outputs`, in the form of the checkpoint's service, computed in `dtype`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dtype: str = Field(pattern=f"^({'|'.join(TOLERANCES)})$")
    inputs: list[JsonValue] = Field(min_length=1, max_length=MAX_INPUTS)
    outputs: list[list[float]] = Field(min_length=1, max_length=MAX_INPUTS)


class ReferencedEngine(Protocol):
    """An engine whose outputs can be compared with recorded ones."""

    @property
    def computes_in(self) -> str:
        """The key of TOLERANCES for this engine."""

    def reference_inputs(self) -> list[JsonValue]:
        """Return inputs, all different, that any checkpoint of the kind accepts."""

    def reference_outputs(self, inputs: Sequence[Any]) -> list[OutputRow]:
        """Return a row of numbers for each input; other weights give it another direction."""


def make_reference(engine: ReferencedEngine) -> bytes:
    """Return the content of REFERENCE_FILE. Raises BrokenModel if outputs do not depend on inputs."""
    inputs = engine.reference_inputs()
    outputs = engine.reference_outputs(inputs)
    _check_sense(outputs)
    rounded = [[float(f"{number:.6g}") for number in row] for row in outputs]
    return Reference(dtype=engine.computes_in, inputs=inputs, outputs=rounded).model_dump_json().encode()


def check_checkpoint(engine: ReferencedEngine, directory: Path | None) -> None:
    """Raises BrokenModel for weights that can't result from training, outputs that do not depend on the input, and
    outputs that differ from those recorded in the folder. Without a REFERENCE_FILE only the first two are checked,
    without a folder (None) only the second.
    """
    if directory is not None:
        check_weights(directory)
    _check_sense(engine.reference_outputs(engine.reference_inputs()))
    reference = read_reference(directory) if directory is not None else None
    if reference is None:
        return
    tolerance = max(TOLERANCES[reference.dtype], TOLERANCES[engine.computes_in])
    check_outputs(reference, engine.reference_outputs(reference.inputs), tolerance)


def check_outputs(reference: Reference, found: Sequence[OutputRow], tolerance: float) -> None:
    """Raises BrokenModel for outputs that differ from the reference's by more than `tolerance`."""
    for place, (expected, row) in enumerate(zip(reference.outputs, found, strict=True)):
        if len(row) != len(expected):
            raise BrokenModel(f"the output {place} has {len(row)} numbers, its reference {len(expected)}")
        difference = _distance(row, expected)
        # written so that NaN fails
        if not difference <= tolerance:
            raise BrokenModel(
                f"the output {place} differs from its reference by {difference:.3g}, more than {tolerance}"
            )


def read_reference(directory: Path) -> Reference | None:
    """Read the folder's reference; None if it has none. Raises BrokenModel for an invalid file."""
    path = directory / REFERENCE_FILE
    if not path.exists():
        return None
    try:
        if path.stat().st_size > MAX_REFERENCE_BYTES:
            raise ValueError(f"more than {MAX_REFERENCE_BYTES} bytes")
        reference = Reference.model_validate_json(path.read_bytes())
        if len(reference.outputs) != len(reference.inputs):
            raise ValueError("the numbers of outputs and inputs differ")
        if sum(map(len, reference.outputs)) > MAX_NUMBERS:
            raise ValueError(f"more than {MAX_NUMBERS} numbers")
    except (ValidationError, ValueError) as error:
        raise BrokenModel(f"{REFERENCE_FILE} is invalid: {str(error).splitlines()[0]}") from error
    return reference


def _check_sense(outputs: Sequence[OutputRow]) -> None:
    for place, row in enumerate(outputs):
        if not np.isfinite(row).all():
            raise BrokenModel(f"the output {place} contains numbers that are not finite")
        for other in outputs[:place]:
            if len(other) == len(row) and not _distance(row, other) > SAME_OUTPUT:
                raise BrokenModel("two different inputs have the same output")


def _distance(row: OutputRow, expected: OutputRow) -> float:
    length = float(np.linalg.norm(expected))
    return float(np.linalg.norm(np.subtract(row, expected))) / length if length else 0.0
