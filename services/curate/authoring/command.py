"""`fovea curate generate`: make hard negatives of captions, by a language model or by rules.

Running the same command again continues where it stopped: no request with an answer on disk is sent again.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import stamina
import typer
from pydantic import ValidationError
from rich.console import Console

from services.core.openai_client import Api, EndpointError
from services.core.printable import printable
from services.core.refusals import message_of
from services.curate.authoring.candidates import reasons_told
from services.curate.authoring.generation import UnusableAnswers
from services.curate.authoring.job import Generated, GenerateOptions, run_generation
from services.curate.data.captions import CaptionFile, Fields, read_captions
from services.jobs.interruption import one_line_errors
from services.jobs.options import MAX_SEED, among, command_line, json_object, output_folder
from services.jobs.progress import counted
from services.jobs.sugarcrepe import PairKind
from services.score.negatives.prompting.writer import Chat, Reply, Requests, Steps

EXIT_UNANSWERED = 3
EXIT_UNUSABLE = 4

app = command_line()


@app.command()
def generate(
    *,
    captions: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="COCO's captions_*.json, or JSON lines of captions.")
    ],
    output: Annotated[Path, typer.Option(callback=output_folder, help="Folder of pairs, rejected and answers.")],
    method: Annotated[Literal["llm", "rules"], typer.Option(help="A language model, or ARO's and CREPE's rules.")] = (
        "llm"
    ),
    kinds: Annotated[
        str | None, typer.Option(help="Types, separated by commas.", show_default="all that the method makes")
    ] = None,
    per_kind: Annotated[int, typer.Option(min=1, max=100, help="Negatives of each type; a model swaps once.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many captions.")] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Field of a JSON line: caption=NAME, image=, id= or second=. Repeatable.")
    ] = None,
    endpoint: Annotated[
        str, typer.Option(help="Base URL of an OpenAI-compatible endpoint.")
    ] = "http://127.0.0.1:8080/v1",
    model: Annotated[str | None, typer.Option(help="The model's name at the endpoint.")] = None,
    api: Annotated[Api, typer.Option(help="Route of the endpoint to use.")] = "chat",
    key_variable: Annotated[
        str | None, typer.Option(help="Environment variable that holds the key.", show_default="no key")
    ] = None,
    steps: Annotated[Steps, typer.Option(help="Three requests for a replacement or an addition, or one.")] = "three",
    prompts: Annotated[
        Path | None,
        typer.Option(help="Folder of prompts, <type>.toml, or printed; other types keep the built-in ones."),
    ] = None,
    extra: Annotated[str, typer.Option(help="Additional fields of a request, as JSON; null removes a field.")] = "{}",
    concurrency: Annotated[int, typer.Option(min=1, help="Number of concurrent requests.")] = 8,
    max_unanswered: Annotated[
        float, typer.Option(min=0, max=1, help="Go on if no larger share of the candidates has no answer.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the rules.")] = 0,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of a recipe's table `generate`, such as max_tokens=512. Repeatable."),
    ] = None,
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print the first request and exit.")] = False,
) -> None:
    """Make hard negatives: pairs.jsonl holds those that pass the checks of their type, rejected.jsonl the others.

    Run the same command again to continue where it stopped. Exit status: 0 if every request has an answer, 3 if more
    than --max-unanswered have none, 4 if too many answers can't be used, 1 if the command failed.
    """
    given = dict(locals())
    stamina.instrumentation.set_on_retry_hooks(())  # a line for each retry would break the progress bar
    console = Console(stderr=True, highlight=False)
    with generation_errors("fovea curate generate", console):
        found = read_captions(captions, _fields(_named(field, "--field")), limit=limit)
        tell_captions(found, console)
        options = _options(given)
        if show_prompt:
            typer.echo(json.dumps(first_request(found.captions[0].text, options), indent=1, ensure_ascii=False))
            return
        done = run_generation(found.captions, options, output, console)
    tell(done, output, console)
    if done.lacks_answers:
        raise typer.Exit(EXIT_UNANSWERED)


def tell(done: Generated, folder: Path, console: Console) -> None:
    """Print the numbers of a generation, and how to go on where answers are missing."""
    tokens = done.progress.tokens
    told = f" · {tokens.told()}" if tokens.has_any else ""
    console.print(
        f"{counted(done.num_candidates, 'candidate')}: {len(done.pairs):,} kept as pairs, {len(done.rejected):,}"
        f" rejected, in {folder}{told}",
        markup=False,
        soft_wrap=True,
    )
    for line in reasons_told(done.rejected):
        console.print(line, markup=False, soft_wrap=True)
    if done.lacks_answers:
        console.print(done.told_unanswered("command"), markup=False, soft_wrap=True)


def tell_captions(found: CaptionFile, console: Console) -> None:
    """Print what is unusual about the captions that were read."""
    for sentence in found.told():
        console.print(sentence, markup=False, soft_wrap=True)


class _Asked(Exception):
    """The first request, which was not sent."""


def first_request(caption: str, options: GenerateOptions) -> dict[str, Any]:
    """Return the JSON of the first request about a caption. Raises ValueError."""
    requests = Requests(options.model or "", options.api, options.max_tokens, options.extra)
    bodies: list[dict[str, Any]] = []

    async def ask(chat: Chat) -> Reply:
        bodies.append(requests.body(chat))
        raise _Asked

    with suppress(_Asked):
        asyncio.run(options.writer().write(caption, options.written_kinds()[0], ask))
    return bodies[0]


@contextmanager
def generation_errors(command: str, console: Console) -> Iterator[None]:
    """End with one line and the status that belongs to the error."""
    with one_line_errors(command, console, (EndpointError, ValueError, OSError, ModuleNotFoundError), _told):
        try:
            yield
        except UnusableAnswers as error:
            console.print(f"{command}: {printable(str(error))}", markup=False, soft_wrap=True)
            console.print("All answers are kept. Try another model or other prompts, or raise the limit to continue.")
            raise typer.Exit(EXIT_UNUSABLE) from None


def _told(error: Exception) -> str:
    if isinstance(error, EndpointError) and error.status in (401, 403):
        return f"{error}. The key is the value of the environment variable that --key-variable names"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _named(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Read NAME=VALUE of a repeatable option. Raises BadParameter."""
    for text in texts or ():
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return {name: value for name, _, value in (text.partition("=") for text in texts or ())}


def _fields(named: dict[str, str]) -> Fields:
    try:
        return Fields(**named)
    except TypeError:
        raise typer.BadParameter("name caption=, image=, id= or second=", param_hint="--field") from None


def _options(given: dict[str, Any]) -> GenerateOptions:
    """Make the options of a generation from the command's. Raises BadParameter."""
    values = {name: given[name] for name in GenerateOptions.model_fields.keys() & given.keys()}
    values["kinds"] = None if given["kinds"] is None else among(given["kinds"], get_args(PairKind), "--kinds")
    values["extra"] = json_object(given["extra"], "--extra")
    settings = _named(given["setting"], "--set")
    try:
        return GenerateOptions.model_validate(values | settings)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0])
        option = f"--set {name}" if name in settings else f"--{name.replace('_', '-')}"
        raise typer.BadParameter(message_of(first), param_hint=option) from None


if __name__ == "__main__":
    app()
