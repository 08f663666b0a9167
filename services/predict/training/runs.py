"""Training of a student from data, a model and a recipe, for the job that trains one and for sweeps.

<folder>/checkpoint/   the student, as read by `PredictEngine.load`
<folder>/result.json   the run and its outcome, written last
<folder>/tensorboard/  the losses
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from accelerate import PartialState

from services.core.durable_files import write_durably
from services.nn.loading import transformers
from services.nn.weight_files import readable_weights
from services.predict.training.initialisation import MIN_VOCABULARY, SHAPES, build_tokenizer, create_t5
from services.predict.training.loop import Teaching, teach
from services.predict.training.recipe import Evaluation, Outcome, Recipe, TeachingData
from services.predict.training.sources import Source
from services.predict.training.state import agree, forget

RESULT = "result.json"


@dataclass(frozen=True)
class StudentRun:
    """One training. `model` is a Hugging Face T5 directory, or a shape of SHAPES from scratch, by the recipe's seed.

    A student from scratch has a tokenizer that was learnt from its training texts. Raises ValueError if the recipe's
    `vocab_size` is too small to contain every byte, and for an average of a student from scratch.
    """

    data: Source
    model: str
    recipe: Recipe
    teaching: ClassVar[type[Teaching]] = Teaching

    def __post_init__(self) -> None:
        if self.recipe.average is not None and self.model in SHAPES:
            raise ValueError(f"average is for students of a directory, not for {self.model} from scratch")
        if self.recipe.vocab_size < MIN_VOCABULARY:
            raise ValueError(f"vocab_size is at least {MIN_VOCABULARY}, not {self.recipe.vocab_size}")

    def as_json(self) -> dict[str, Any]:
        """Return the values that affect the result, as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return values

    def load(self, data: TeachingData) -> tuple[Any, Any]:
        """The model before training, float32 on the CPU, and its tokenizer.

        Raises ValueError if the model is neither a T5's directory nor a shape and for damaged weights, and OSError for
        a directory without weights.
        """
        if self.model in SHAPES:
            tokenizer = build_tokenizer(training_texts(data, self.recipe), self.recipe.vocab_size)
            return create_t5(SHAPES[self.model], len(tokenizer), self.recipe.seed), tokenizer
        directory = Path(self.model)
        if not (directory / "config.json").is_file():
            raise ValueError(
                f"model {self.model!r} is neither a directory with a config.json nor one of {', '.join(SHAPES)}"
            )
        config = transformers().AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        if config.model_type != "t5":
            raise ValueError(f"{self.model}: the architecture {config.model_type!r} is not t5")
        with readable_weights(directory):
            model: Any = transformers().T5ForConditionalGeneration.from_pretrained(
                directory, config=config, dtype="float32", local_files_only=True
            )
        return model, transformers().AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )


def run_student(run: StudentRun, folder: Path, report: Callable[[str], None], *, num_workers: int = 0) -> Outcome:
    """Train a student, or continue an interrupted training; a finished one is read from `folder`.

    `num_workers` processes tokenise its batches.

    Raises ValueError if another run was begun in `folder`, and as `teach` and `StudentRun.load` do; BadData and
    OutputError for data that can't be read.
    """
    path = folder / RESULT
    described = {**run.as_json(), "content": run.data.content()}
    if path.is_file():
        result = json.loads(path.read_bytes())
        # results of earlier versions have no digest of the files
        agree(path, {"content": described["content"], **result["run"]}, described)
        values = result["outcome"]
        evaluations = tuple(Evaluation(**one) for one in values.pop("evaluations"))
        return Outcome(evaluations=evaluations, **values)
    data = run.data.read(run.recipe)
    model, tokenizer = run.load(data)
    report(_counted(data))
    outcome = teach(model, tokenizer, data, run.recipe, folder, report, num_workers=num_workers, teaching=run.teaching)
    if PartialState().is_main_process:
        result = {"run": described, "outcome": asdict(outcome)}
        write_durably(path, [json.dumps(result, indent=1).encode() + b"\n"])
        forget(folder)
    return outcome


def _counted(data: TeachingData) -> str:
    """Report the numbers of examples of a training, and anything unusual about them."""
    num_explained = sum(bool(example.rationale) for example in data.train)
    told = (
        f"{len(data.train)} training rows ({num_explained} with a rationale), {len(data.valid)} validation rows,"
        f" {len(data.test)} test rows"
    )
    learnt = {example.input for example in data.train}
    if num_known := sum(example.input in learnt for example in data.test):
        told += f"; {num_known} test rows have an input that is also a training row's"
    missing = set(data.task.labels or ()) - {example.label for example in data.train}
    return told + (f"; no training row has the label {', '.join(sorted(missing))}" if missing else "")


def training_texts(data: TeachingData, recipe: Recipe) -> list[str]:
    """Collect the texts to learn a tokenizer from: the same for each method, so that methods share one tokenizer."""
    return [
        *(recipe.prefixes.label + example.input for example in data.train),
        *(recipe.prefixes.rationale + example.input for example in data.train),
        *(example.label for example in data.train),
        *(example.rationale for example in data.train if example.rationale is not None),
    ]
