"""`fovea curate review`: people judge pairs in a browser, or are measured on them."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from fastapi import FastAPI
from pydantic_settings import SettingsConfigDict

from services.core.durable_files import write_durably
from services.core.http.app import AppParts, create_app
from services.core.http.browsers import is_loopback
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.refusals import Refused
from services.core.serving.server import run
from services.core.settings import ProcessSettings
from services.curate.review.review import Review
from services.curate.review.routes import Access, own_page_router, read_or_make_token, review_router, session_router
from services.curate.review.schemas import ImageFolder
from services.curate.review.tasks import TASKS, Task, TaskName
from services.curate.review.verdicts import VerdictFile
from services.jobs.options import command_line, output_file
from services.jobs.sugarcrepe import Pair, load_pairs

DEFAULT_PORT = 8090

app = command_line()


class ReviewSettings(ProcessSettings):
    """Settings of the server, which come from the command line only."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix="FOVEA_CURATE_")
    set_by: ClassVar[Mapping[str, str]] = {
        "port": "--port or FOVEA_CURATE_PORT",
        "allowed_hosts": "--allow-host",
        "allowed_origins": "",
    }

    log_level: str = "warning"  # type: ignore[assignment]
    max_body_bytes: int = 64 * 1024


def create_review_app(settings: ProcessSettings, review: Review, images: ImageFolder, access: Access) -> FastAPI:
    """Create the application. The page may be linked to from elsewhere; all else answers to the page alone."""
    return create_app(
        settings,
        AppParts(
            service="curate",
            title="Review of hard negatives",
            metrics=Metrics("curate"),
            health=Health(),
            routers=[own_page_router(), session_router(access), review_router(review, images, access)],
            linked_paths=frozenset({"/"}),
        ),
    )


@app.command()
def review(
    pairs_file: Annotated[
        Path, typer.Argument(metavar="PAIRS", help="Pairs: JSON lines, or a folder in SugarCrepe's form.", exists=True)
    ],
    *,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the images; nothing else is served.", exists=True, file_okay=False)
    ] = None,
    database: Annotated[
        Path, typer.Option(help="SQLite file of the verdicts, new or to be continued.", callback=output_file)
    ],
    task: Annotated[
        TaskName,
        typer.Option(
            help="validity: is the negative false of the image? choice: which caption is true of it? commonsense, "
            "grammar: which negative is better, ours or the one of --theirs?"
        ),
    ] = "validity",
    theirs: Annotated[
        Path | None,
        typer.Option(help="Pairs of the same captions; for --task commonsense and grammar.", exists=True),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of pairs to draw of each type, or of each form to compare; the same each time.",
            show_default="all",
        ),
    ] = None,
    reviewers_per_pair: Annotated[int, typer.Option(min=1, help="Number of reviewers that judge each pair.")] = 2,
    host: Annotated[str, typer.Option(help="Address to listen on; one of other machines needs --token-file.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, typer.Option(envvar="FOVEA_CURATE_PORT", min=1, max=65535, help="Port to listen on.")
    ] = DEFAULT_PORT,
    token_file: Annotated[
        Path | None, typer.Option(help="File of the token that reviewers need; made if it does not exist.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name by which a proxy reaches this server; needs --token-file. Repeatable."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the verdicts to this file and exit.", callback=output_file)
    ] = None,
) -> None:
    """Serve a page on which reviewers judge pairs by keyboard, each verdict on disk before the next pair is shown."""
    pairs = _items(TASKS[task], pairs_file, theirs, sample)
    with VerdictFile(database, pairs, TASKS[task]) as file:
        review = Review(pairs, file, reviewers_per_pair)
        if export is not None:
            write_durably(export, review.export())
            return
        if images is None and not review.task.compares_sets:
            raise typer.BadParameter("the page needs the folder of the images", param_hint="--images")
        if token_file is None and (allow_host or not is_loopback(host)):
            option, reached = ("--allow-host", ", ".join(allow_host)) if allow_host else ("--host", host)
            raise typer.BadParameter(
                f"whoever reaches {reached} could give verdicts; set --token-file too", param_hint=option
            )
        settings = ReviewSettings(host=host, port=port, allowed_hosts=tuple(allow_host or ()))
        shown = [] if images is None else [pair.filename for pair in pairs]
        folder = ImageFolder(images or Path(), shown)
        token = None if token_file is None else read_or_make_token(token_file)

        def create(used: ReviewSettings) -> FastAPI:
            # The address is bound by now.
            _announce(used, len(pairs), shown, folder, token)
            return create_review_app(used, review, folder, Access(token))

        status = run(create, settings)
    raise typer.Exit(status)


def _items(task: Task, path: Path, theirs: Path | None, sample: int | None) -> list[Pair]:
    if task.compares_sets is (theirs is None):
        told = "needs" if theirs is None else "takes no"
        raise typer.BadParameter(f"--task {task.name} {told} other pairs to compare with", param_hint="--theirs")
    pairs = _read(path, "PAIRS")
    items = task.items(pairs, _read(theirs, "--theirs") if theirs else (), sample)
    if not items:
        raise typer.BadParameter(
            f"no caption of {path} has a negative of the same form in {theirs}", param_hint="--theirs"
        )
    return items


def _read(path: Path, option: str) -> list[Pair]:
    try:
        pairs = load_pairs(path)
    except Refused as bad:
        raise typer.BadParameter(str(bad), param_hint=option) from None
    if not pairs:
        raise typer.BadParameter(f"{path} holds no pair", param_hint=option)
    return pairs


def _announce(
    settings: ReviewSettings, num_pairs: int, filenames: list[str], images: ImageFolder, token: str | None
) -> None:
    problems = {name: problem for name in filenames if (problem := images.problem(name))}
    if problems:
        counted = "1 image" if len(problems) == 1 else f"{len(problems)} images"
        typer.echo(f"{counted} can't be shown. {next(iter(problems.values()))}", err=True)
    name = socket.gethostname() if settings.host in ("0.0.0.0", "::") else settings.host
    authority = f"[{name}]:{settings.port}" if ":" in name else f"{name}:{settings.port}"
    fragment = "" if token is None else f"#token={token}"
    typer.echo(f"Review {num_pairs} pairs at http://{authority}/{fragment} (Ctrl-C ends)")
