"""`fovea distill extract`: ask a large model for the rationales and labels that students are taught with.

It goes on where it stopped when the same command is given again: what was answered and written is never asked again.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import stamina
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from services.core.printable import printable
from services.jobs.endpoint import Api, Endpoint, EndpointClient, EndpointError, Patience
from services.predict.data.published import Split
from services.predict.data.rationale_file import OutputError, RationaleFile, Record
from services.predict.data.rows import BadData
from services.predict.extraction.extraction import Extraction, Interrupted, Plan, Tally, unanswered
from services.predict.extraction.inputs import Input, published_inputs, read_inputs
from services.predict.extraction.prompts import PromptError, load_prompts
from services.predict.tasks import TASKS

EXIT_FAILED = 1
EXIT_UNANSWERED = 3
EXIT_INTERRUPTED = 130

SIGNALS = (signal.SIGINT, signal.SIGTERM)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TaskName = Literal["esnli", "anli1", "cqa", "svamp", "asdiv"]


@dataclass(frozen=True)
class Concurrency:
    """Requests on their way at a time, and how long one is waited for."""

    concurrency: int
    patience: Patience


@app.command()
def extract(
    task: Annotated[TaskName, typer.Argument(help="Task of the inputs.")],
    output: Annotated[Path, typer.Option(help="File of outputs, new or to be continued, as JSON lines.")],
    model: Annotated[str, typer.Option(help="The teacher's name at the endpoint.")],
    base_url: Annotated[
        str, typer.Option(help="Base URL of an OpenAI-compatible endpoint.")
    ] = "http://127.0.0.1:8080/v1",
    inputs: Annotated[Path | None, typer.Option(help="File of inputs: JSON lines or a JSON list.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the published data sets, instead of --inputs.")] = None,
    split: Annotated[Split, typer.Option(help="With --data.")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many inputs.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="YAML file of prompts.", show_default="ours")] = None,
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
    concurrency: Annotated[int, typer.Option(min=1, help="Number of concurrent requests.")] = 8,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts for each request.")] = Patience.attempts,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="Time limit of each attempt.")] = Patience.timeout_s,
    price_per_million_input: Annotated[float | None, typer.Option(min=0, help="Of tokens.")] = None,
    price_per_million_output: Annotated[float | None, typer.Option(min=0, help="Of tokens.")] = None,
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print the first request and exit.")] = False,
) -> None:
    """Collect rationales and labels from a teacher, and keep all of its outputs.

    Run the same command again to continue where it stopped. Exit status: 0 if every input has an output, 3 if the
    endpoint rejected some, 1 if the command failed.
    """
    stamina.instrumentation.set_on_retry_hooks(())  # a line for each would tear the progress bar
    console = Console(stderr=True, highlight=False)
    with _one_line_errors(console):
        loaded = load_prompts(TASKS[task], prompts, is_zero_shot=zero_shot)
        endpoint = Endpoint(base_url, api, _key(key_variable))
        plan = Plan(loaded, endpoint, model, temperature, max_tokens, _parsed_extra(extra))
        asked = _asked(task, inputs, data, split)[:limit]
        if show_prompt:
            typer.echo(json.dumps(plan.body(plan.prompt(asked[0].values)), indent=1, ensure_ascii=False))
            return
        tally = Tally(price_per_million_input, price_per_million_output)
        pace = Concurrency(concurrency, Patience(attempts, timeout_s))
        num_failed = asyncio.run(_extract(plan, asked, output, tally, pace, console))
    console.print(f"{tally.num_records} outputs: {tally.told()}", markup=False, soft_wrap=True)
    for problem, number in tally.problems.most_common():
        console.print(f"  {problem}: {number}", markup=False, soft_wrap=True)
    if num_failed:
        console.print(
            f"{num_failed} inputs have no output; run the same command to send them again", markup=False, soft_wrap=True
        )
        raise typer.Exit(EXIT_UNANSWERED)


async def _extract(
    plan: Plan, asked: Sequence[Input], output: Path, tally: Tally, pace: Concurrency, console: Console
) -> int:
    """Returns how many inputs were left without an output. Raises EndpointError, OutputError and Interrupted."""
    with RationaleFile.opened(output, plan.arguments()) as file, _bar(console) as (progress, bar):
        todo = unanswered(plan, asked, file.found)
        for record in file.found:
            tally.add(record)
        progress.update(bar, total=len(asked), completed=len(asked) - len(todo), told=tally.told())
        num_failed = 0

        def on_record(record: Record) -> None:
            tally.add(record)
            progress.update(bar, advance=1, told=tally.told())

        def on_failure(one: Input, error: EndpointError) -> None:
            nonlocal num_failed
            num_failed += 1
            typer.echo(json.dumps({"id": one.id, "status": error.status, "reason": str(error)}, ensure_ascii=False))

        async with EndpointClient(plan.endpoint, pace.patience) as teacher:
            extraction = Extraction(plan, teacher, file, on_record=on_record, on_failure=on_failure)
            with _ending(extraction, progress):
                await extraction.run(todo, pace.concurrency)
        return num_failed


@contextmanager
def _ending(extraction: Extraction, progress: Progress) -> Iterator[None]:
    """The first signal ends the extraction when the answers on their way have come, the second at once."""
    loop = asyncio.get_running_loop()
    running = asyncio.current_task()
    assert running is not None
    signals = iter((True,))

    def end() -> None:
        if next(signals, False):
            progress.console.print("Stopping after the answers in flight have arrived; press again to stop at once.")
            extraction.end(Interrupted())
        else:
            running.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def _bar(console: Console) -> Iterator[tuple[Progress, TaskID]]:
    progress = Progress(
        BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn(), console=console,
    )  # fmt: skip
    with progress:
        yield progress, progress.add_task("", total=None, told="")


@contextmanager
def _one_line_errors(console: Console) -> Iterator[None]:
    """Print an error as one line."""
    try:
        yield
    except (BadData, PromptError, OutputError, EndpointError) as error:
        console.print(f"fovea distill extract: {printable(str(error))}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    except (Interrupted, KeyboardInterrupt, asyncio.CancelledError):
        console.print("Stopped. Run the same command to continue.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _asked(task: TaskName, inputs: Path | None, data: Path | None, split: Split) -> list[Input]:
    """Read the inputs to ask about. Raises BadData, also for none."""
    if inputs is not None and data is None:
        asked = read_inputs(TASKS[task], inputs)
    elif data is not None and inputs is None:
        asked = published_inputs(TASKS[task], data, split)
    else:
        raise typer.BadParameter("give --inputs or --data, and not both")
    if not asked:
        raise BadData(f"{inputs or data} contains no inputs")
    return asked


def _key(variable: str | None) -> str | None:
    """Read the key from the environment alone: a command line can be read by others. Raises BadParameter."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise typer.BadParameter(f"{variable} is not set", param_hint="--key-variable")
    return key


def _parsed_extra(text: str) -> dict[str, Any]:
    try:
        extra = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON ({error})", param_hint="--extra") from None
    if not isinstance(extra, dict):
        raise typer.BadParameter("not a JSON object", param_hint="--extra")
    return extra


if __name__ == "__main__":
    app()
