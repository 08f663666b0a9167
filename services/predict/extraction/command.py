"""`fovea distill extract`: ask a large model for the rationales and labels that students learn from.

Running the same command again continues where it stopped: inputs with a written answer are not asked about again.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import stamina
import typer
from rich.console import Console

from services.core.openai_client import Api, Endpoint, EndpointClient, EndpointError, Patience
from services.core.printable import printable
from services.jobs.inquiry.inquiry import Interrupted, Tokens, attended
from services.jobs.inquiry.record_file import OutputError, RecordFile
from services.jobs.options import command_line, json_object
from services.jobs.progress import Bars
from services.jobs.ray.cluster import (
    LOCAL,
    RayAddress,
    RayError,
    RayOptions,
    UsesRay,
    Workers,
    connected,
    ray_options,
)
from services.predict.data.inputs import Input, published_inputs, read_inputs
from services.predict.data.own_rows import split_file
from services.predict.data.published import Split
from services.predict.data.rationale_file import Record, opened_rationales
from services.predict.data.rows import BadData
from services.predict.data.task_file import read_task_file
from services.predict.extraction.extraction import Extraction, Plan, Tally, UnparsedOutputs, unanswered
from services.predict.extraction.on_ray import extract_on_ray
from services.predict.extraction.prompts import PromptError, Prompts, load_prompts, own_prompts
from services.predict.tasks import TASKS, Task

EXIT_FAILED = 1
EXIT_UNANSWERED = 3
EXIT_UNPARSED = 4
EXIT_INTERRUPTED = 130

app = command_line()

# Called with each record, and with each input that has none.
Told = tuple[Callable[[Record], None], Callable[[Input, EndpointError], None]]
TaskName = Literal["esnli", "anli1", "cqa", "svamp", "asdiv"]


@dataclass(frozen=True)
class Concurrency:
    """Number of concurrent requests, how long to wait for one, and Ray if workers on it send them."""

    concurrency: int
    patience: Patience
    ray: RayOptions | None = None


@app.command()
def extract(
    *,
    context: typer.Context,
    task: Annotated[TaskName | None, typer.Argument(help="Task of the inputs.", show_default=False)] = None,
    task_file: Annotated[
        Path | None, typer.Option("--task", help="Your own task instead: a YAML or JSON file.", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option(help="File of outputs, new or to be continued, as JSON lines.")],
    model: Annotated[str, typer.Option(help="The teacher's name at the endpoint.")],
    base_url: Annotated[
        str, typer.Option(help="Base URL of an OpenAI-compatible endpoint.")
    ] = "http://127.0.0.1:8080/v1",
    inputs: Annotated[Path | None, typer.Option(help="File of inputs: JSON lines or a JSON list.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data of `fovea train distill`, instead of --inputs: a folder, or the rows of your own task."
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="Of a folder --data.")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many inputs.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="YAML file of prompts.", show_default="the task's")] = None,
    zero_shot: Annotated[
        bool, typer.Option("--zero-shot", help="Use an instruction instead of demonstrations.")
    ] = False,
    api: Annotated[Api, typer.Option(help="Route of the endpoint to use.")] = "chat",
    key_variable: Annotated[
        str | None, typer.Option(help="Environment variable that holds the key.", show_default="no key")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens of an output.")] = 256,
    extra: Annotated[str, typer.Option(help="Additional fields of a request, as JSON; null removes a field.")] = "{}",
    concurrency: Annotated[
        int, typer.Option(min=1, help="Number of concurrent requests. With --ray: of each worker.")
    ] = 8,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts for each request.")] = Patience.attempts,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="Time limit of each attempt.")] = Patience.timeout_s,
    max_unparsed: Annotated[
        float, typer.Option(min=0, max=1, help="Stop and fail if more than this share of the outputs can't be parsed.")
    ] = 0.5,
    price_per_million_input: Annotated[
        float | None, typer.Option(min=0, help="Price of a million input tokens, to show the cost.")
    ] = None,
    price_per_million_output: Annotated[
        float | None, typer.Option(min=0, help="Price of a million output tokens, to show the cost.")
    ] = None,
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print the first request and exit.")] = False,
    ray: UsesRay = False,
    ray_address: RayAddress = LOCAL,
    workers: Workers = None,
) -> None:
    """Collect rationales and labels from a teacher, and keep all of its outputs.

    Run the same command again to continue where it stopped. Exit status: 0 if every input has an output, 3 if the
    endpoint rejected some, 4 if too many outputs can't be parsed, 1 if the command failed.
    """
    on_ray = ray_options(context, ray_address, workers, uses_ray=ray)
    stamina.instrumentation.set_on_retry_hooks(())  # a line for each retry would break the progress bar
    console = Console(stderr=True, highlight=False)
    with _one_line_errors(console):
        loaded = _prompts(task, task_file, prompts, is_zero_shot=zero_shot)
        endpoint = Endpoint(base_url, api, _key(key_variable))
        plan = Plan(loaded, endpoint, model, temperature, max_tokens, json_object(extra, "--extra"))
        asked = _asked(loaded.task, inputs, data, split)[:limit]
        if show_prompt:
            typer.echo(json.dumps(plan.body(plan.prompt(asked[0].values)), indent=1, ensure_ascii=False))
            return
        tally = Tally(Tokens(price_per_million_input, price_per_million_output), max_unparsed)
        pace = Concurrency(concurrency, Patience(attempts, timeout_s), on_ray)
        try:
            num_failed = _extract(plan, asked, output, tally, pace, console)
        except UnparsedOutputs as error:
            _tell_totals(tally, console)
            _tell_unparsed(error, plan, console)
            raise typer.Exit(EXIT_UNPARSED) from None
    _tell_totals(tally, console)
    if num_failed:
        console.print(
            f"{num_failed} inputs have no output; run the same command to send them again", markup=False, soft_wrap=True
        )
        raise typer.Exit(EXIT_UNANSWERED)


def _extract(
    plan: Plan, asked: Sequence[Input], output: Path, tally: Tally, pace: Concurrency, console: Console
) -> int:
    """Ask about the inputs and return how many remain without an output.

    Raises EndpointError, OutputError, RayError, UnparsedOutputs and Interrupted.
    """
    with opened_rationales(output, plan.arguments()) as file, Bars(console).bar("Outputs") as bar:
        todo = unanswered(plan, asked, file.found)
        for record in file.found:
            tally.add(record)
        bar.set(len(asked) - len(todo), len(asked))
        bar.advance(0, tally.told())
        tally.check(is_complete=not todo)
        reasons: list[str] = []

        def on_record(record: Record) -> None:
            tally.add(record)
            bar.advance(1, tally.told())
            tally.check(is_complete=False)

        def on_failure(one: Input, error: EndpointError) -> None:
            reasons.append(str(error))
            typer.echo(json.dumps({"id": one.id, "status": error.status, "reason": str(error)}, ensure_ascii=False))

        if pace.ray is not None:
            if todo:
                with connected(pace.ray) as cluster:
                    workers = (cluster.pool(pace.ray, uses_gpus=False), pace.concurrency, pace.patience)
                    extract_on_ray(plan, todo, file, workers, on_record, on_failure)
        else:
            asyncio.run(_ask_here(plan, todo, file, pace, console, (on_record, on_failure)))
        tally.check(is_complete=True)
        if tally.num_records == 0 and len(set(reasons)) == 1:
            raise EndpointError(f"every input was rejected for the same reason, {reasons[0]}")
        return len(reasons)


async def _ask_here(
    plan: Plan, todo: Sequence[Input], file: RecordFile[Record], pace: Concurrency, console: Console, told: Told
) -> None:
    """Ask about the inputs from this process. Raises EndpointError, OutputError, UnparsedOutputs and Interrupted."""
    on_record, on_failure = told
    async with EndpointClient(plan.endpoint, pace.patience) as teacher:
        inquiry = Extraction(plan, teacher, file, on_record).inquiry(on_failure)
        with attended(inquiry, console):
            await inquiry.run(todo, pace.concurrency)


@contextmanager
def _one_line_errors(console: Console) -> Iterator[None]:
    """Print an error as one line."""
    try:
        yield
    except (BadData, PromptError, OutputError, EndpointError, RayError) as error:
        console.print(f"fovea distill extract: {printable(str(error))}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except (Interrupted, KeyboardInterrupt, asyncio.CancelledError):
        console.print("Stopped. Run the same command to continue.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _tell_totals(tally: Tally, console: Console) -> None:
    console.print(f"{tally.num_records} outputs: {tally.told()}", markup=False, soft_wrap=True)
    for problem, number in tally.problems.most_common():
        console.print(f"  {problem}: {number}", markup=False, soft_wrap=True)


def _tell_unparsed(error: UnparsedOutputs, plan: Plan, console: Console) -> None:
    console.print(f"fovea distill extract: {printable(str(error))}", markup=False, soft_wrap=True)
    other = "demonstrations" if plan.prompts.is_zero_shot else "--zero-shot"
    console.print(
        f"All outputs are kept. Use another --output with {other}, other --prompts or more --max-tokens, or raise"
        " --max-unparsed to continue with this one.",
        soft_wrap=True,
    )


def _prompts(name: TaskName | None, file: Path | None, prompts: Path | None, *, is_zero_shot: bool) -> Prompts:
    """The prompts of a built-in task or a user's own. Raises BadParameter unless one is named, BadData, PromptError."""
    if (name is None) == (file is None):
        raise typer.BadParameter("name a task, or give a file with --task, and not both")
    if name is not None:
        return load_prompts(TASKS[name], prompts, is_zero_shot=is_zero_shot)
    assert file is not None
    given = read_task_file(file)
    if prompts is not None:
        return load_prompts(given.to_task(), prompts, is_zero_shot=is_zero_shot)
    return own_prompts(given, file, is_zero_shot=is_zero_shot)


def _asked(task: Task, inputs: Path | None, data: Path | None, split: Split) -> list[Input]:
    """Read the inputs to ask about. Raises BadData, also if there are none."""
    if inputs is not None and data is None:
        asked = read_inputs(task, inputs)
    elif data is not None and inputs is None and task.name in TASKS:
        asked = published_inputs(task, data, split)
    elif data is not None and inputs is None:
        path = split_file(data, split)
        if path is None:
            raise BadData(f"{data} has no file {split}.jsonl")
        asked = read_inputs(task, path)
    else:
        raise typer.BadParameter("give --inputs or --data, and not both")
    if not asked:
        raise BadData(f"{inputs or data} contains no inputs")
    return asked


def _key(variable: str | None) -> str | None:
    """Read the key from the environment, as others can read a command line. Raises BadParameter."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise typer.BadParameter(f"{variable} is not set", param_hint="--key-variable")
    return key


if __name__ == "__main__":
    app()
