"""`fovea train distill`: teach a T5 a task with a teacher's rationales, and publish it.

Running the same command again continues an interrupted training. With the same options, `accelerate launch -m
services.predict.training.train` or `torchrun -m services.predict.training.train` divides the work among processes.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer
from accelerate import PartialState
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.store.errors import StoreError
from services.core.store.manifest import MAX_NAME_LENGTH, NAME_PATTERN
from services.core.text_files import read_json
from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line, output_folder
from services.nn.loading import transformers
from services.nn.model_configs import StoredWeights, read_config
from services.nn.weight_files import readable_weights
from services.predict.data.rows import LabelSource, TeachingData
from services.predict.data.task_file import read_task_file
from services.predict.model.scoring import Candidates
from services.predict.training.initialisation import MIN_VOCABULARY, SHAPES, build_tokenizer, create_t5
from services.predict.training.loop import CHECKPOINT, Teaching, agree, forget, teach
from services.predict.training.recipe import (
    BatchSize,
    Evaluation,
    LearningRate,
    Method,
    Outcome,
    Recipe,
    RecipeFile,
    Steps,
    recipe_of,
)
from services.predict.training.sources import DataSource, Source

KIND = "t5-student"
RESULT = "result.json"
EXIT_FAILED = 1
# The standard error of an accuracy on as many rows is up to 5 percentage points.
ENOUGH_TEST_ROWS = 100
Metrics = Mapping[str, Any]


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

    def load(self, data: TeachingData) -> tuple[Any, Any]:
        """The model before training, float32 on the CPU, and its tokenizer. Raises ValueError and OSError."""
        if self.model in SHAPES:
            tokenizer = build_tokenizer(training_texts(data, self.recipe), self.recipe.vocab_size)
            return create_t5(SHAPES[self.model], len(tokenizer), self.recipe.seed), tokenizer
        directory = Path(self.model)
        if not (directory / "config.json").is_file():
            raise ValueError(
                f"model {self.model!r} is neither a directory with a config.json nor one of {', '.join(SHAPES)}"
            )
        stored = StoredWeights.in_folder(directory)
        config = read_config(directory, stored)
        if config.model_type != "t5":
            raise ValueError(f"{self.model}: the architecture {config.model_type!r} is not t5")
        with readable_weights(directory), stored.bound():
            model: Any = transformers().T5ForConditionalGeneration.from_pretrained(
                directory, config=config, dtype="float32", local_files_only=True
            )
        return model, transformers().AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )


def run_student(run: StudentRun, folder: Path, report: Callable[[str], None], *, num_workers: int = 0) -> Outcome:
    """Train a student, or continue an interrupted training; a finished one is read from `folder`.

    Raises ValueError if another run was begun in `folder`, and as `teach` and `StudentRun.load` do; BadFile and
    OutputError for data that can't be read.
    """
    path = folder / RESULT
    described = json.loads(json.dumps({**asdict(run), "content": run.data.content()}, default=str))
    if path.is_file():
        result = read_json(path)
        agree(path, result["run"], described)
        values = result["outcome"]
        evaluations = tuple(Evaluation(**one) for one in values.pop("evaluations"))
        return Outcome(evaluations=evaluations, **values)
    data = run.data.read(run.recipe)
    model, tokenizer = run.load(data)
    _check_answers(data, tokenizer)
    report(_counted(data))
    outcome = teach(model, tokenizer, data, run.recipe, folder, report, num_workers=num_workers, teaching=run.teaching)
    if PartialState().is_main_process:
        result = {"run": described, "outcome": asdict(outcome)}
        write_durably(path, [json.dumps(result, indent=1).encode() + b"\n"])
        forget(folder)
    return outcome


def _check_answers(data: TeachingData, tokenizer: Any) -> None:
    """Raises ValueError for labels, or the choices of a row, that the tokenizer reads as the same tokens."""
    if data.task.labels is not None:
        Candidates.of_texts(tokenizer, "labels", data.task.labels)
    for example in (*data.train, *data.valid, *data.test):
        if example.choices:
            name = f"{data.task.choices} of the row {example.input[:80]!r}"
            Candidates.of_texts(tokenizer, name, example.choices)


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
        *(recipe.label_prefix + example.input for example in data.train),
        *(recipe.rationale_prefix + example.input for example in data.train),
        *(example.label for example in data.train),
        *(example.rationale for example in data.train if example.rationale is not None),
    ]


app = command_line()

TaskName = Literal["esnli", "anli1", "cqa", "svamp"]
Output = Annotated[
    Path, typer.Option(callback=output_folder, help="Folder for the checkpoint, the result and the resume state.")
]
MethodName = Annotated[Method, typer.Option(help="Training method. explained: the rationale is part of the input.")]
Seed = Annotated[int, typer.Option(help="Seed of weights, order, dropout and the fraction of the data.")]
Name = Annotated[str | None, typer.Option(help="Name in the model store.", show_default="the task's")]
Licence = Annotated[str | None, typer.Option(help="Licence of the published checkpoint.")]
Statement = Annotated[
    str | None, typer.Option(help="What the student has seen and knows, in a sentence for its users.")
]
Publish = Annotated[bool, typer.Option(help="Publish to the model store when done.")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the published data sets; for your own task a file of JSON lines, or a folder with train.jsonl,"
        " valid.jsonl and test.jsonl."
    ),
]
Rationales = Annotated[
    Path | None, typer.Option(help="Output of `fovea distill extract`, a file or a folder.", show_default="PaLM's")
]


@app.command()
@interruptible(resumable)
def distill(
    *,
    task: Annotated[TaskName | None, typer.Argument(help="Published data set.", show_default=False)] = None,
    task_file: Annotated[
        Path | None, typer.Option("--task", help="Your own task instead: a YAML or JSON file.", show_default=False)
    ] = None,
    output: Output,
    model: Annotated[str, typer.Option(help=f"A Hugging Face T5 directory; from scratch: {', '.join(SHAPES)}.")],
    data: Data = None,
    rationales: Rationales = None,
    labels: Annotated[LabelSource, typer.Option(help="Labels to learn: those of humans, or the teacher's.")] = "human",
    fraction: Annotated[float, typer.Option(help="Fraction of the training rows, chosen by the seed.")] = 1.0,
    augment: Annotated[bool, typer.Option("--augment", help="Add ASDiv's problems to svamp.")] = False,
    method: MethodName = Recipe.method,
    recipe: RecipeFile = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = 0,
    name: Name = None,
    licence: Licence = None,
    statement: Statement = None,
    publish: Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Train a student, choose its best step on validation examples, test it once, and publish it.

    The defaults are the published hyperparameters. Run the same command again to continue an interrupted run.
    """
    options: dict[str, Any] = dict(locals())
    with one_line_errors("fovea train distill"):
        if (task is None) == (task_file is None):
            raise typer.BadParameter("name a task, or give a file with --task, and not both")
        own = None if task_file is None else read_task_file(task_file).own()
        source = DataSource(
            own.task.name if own else str(task), data, rationales, augment, own, labels=labels, fraction=fraction
        )
        train_and_publish(StudentRun(source, model, recipe_of(Recipe, options)), options)


def train_and_publish(
    run: StudentRun, options: Mapping[str, Any], num_workers: int = 0, measure: Callable[[Path], Metrics] = lambda _: {}
) -> Metrics:
    """Train a student, or continue its training, and publish it according to the command's options.

    `measure` adds metrics of the checkpoint's folder to those of the training. Returns all of them, on the main
    process. Raises ValueError, BadFile, OutputError, StoreError and OSError.
    """
    name, publish = options["name"] or run.data.task, options["publish"]
    if NAME_PATTERN.fullmatch(name) is None:
        raise ValueError(f"name consists of a-z, 0-9, '.', '_' and '-', at most {MAX_NAME_LENGTH}, not {name!r}")
    if publish and run.recipe.method == "explained":
        raise ValueError("a student of the method explained can't be served: give --no-publish")
    check_publication(name, options["store_url"], is_wanted=publish)
    console = Console(stderr=True, highlight=False)

    def tell(line: str) -> None:
        if PartialState().is_main_process:
            console.print(line, markup=False, soft_wrap=True)

    outcome = run_student(run, options["output"], tell, num_workers=num_workers)
    metrics: dict[str, Any] = {}
    if PartialState().is_main_process:
        metrics = {key: value for key, value in asdict(outcome).items() if key not in ("evaluations", "seconds")}
        metrics |= measure(options["output"] / CHECKPOINT)
        _finish(run, metrics, name, options)
    if outcome.num_test < ENOUGH_TEST_ROWS:
        few = f"{outcome.num_test} test rows: on fewer than {ENOUGH_TEST_ROWS}, an accuracy says little."
        tell(f"The test accuracy is that of {few}")
    return metrics


def _finish(run: StudentRun, metrics: Metrics, name: str, options: Mapping[str, Any]) -> None:
    base = Path(run.model).resolve().name if Path(run.model).is_dir() else None
    kept = {**options, **asdict(run.recipe), "task": run.data.task, "base": base}
    del kept["recipe"]
    publish_trained(options["output"] / CHECKPOINT, name, KIND, kept, metrics)


@contextmanager
def one_line_errors(command: str) -> Iterator[None]:
    """Print an error as one line."""
    try:
        yield
    except (StoreError, ValueError, OSError) as error:
        Console(stderr=True, highlight=False).print(f"{command}: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None


if __name__ == "__main__":
    app()
