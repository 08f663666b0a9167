"""`fovea curate run`: from captions to a published data set, by a recipe."""

from pathlib import Path
from typing import Annotated

import stamina
import typer
from rich.console import Console

from services.core.logs import log_warnings_to_stderr
from services.core.printable import printable
from services.curate.authoring.command import EXIT_UNANSWERED, generation_errors
from services.curate.pipeline.recipe import read_recipe
from services.curate.pipeline.steps import AwaitsReview, Unanswered
from services.curate.pipeline.steps import run as run_steps
from services.jobs.options import command_line

COMMAND = "fovea curate run"
EXIT_AWAITS_REVIEW = 5

app = command_line()


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A recipe, as a TOML file.")],
) -> None:
    """Carry out a recipe: generate, check, refine, review, publish. Run again, it continues where it stopped.

    Exit status: 0 if the data set is published, 3 if some requests have no answer, 4 if too many answers can't be used,
    5 if people's verdicts are awaited, 1 if the command failed.
    """
    log_warnings_to_stderr()
    stamina.instrumentation.set_on_retry_hooks(())  # a line for each retry would break the progress bar
    console = Console(stderr=True, highlight=False)
    with generation_errors(COMMAND, console):
        try:
            read = read_recipe(recipe)
            if read.refine is not None:
                read.refine.models()  # refuses what is not there before anything is paid for
            accounts = run_steps(read, console)
        except (Unanswered, AwaitsReview) as reason:
            status = EXIT_UNANSWERED if isinstance(reason, Unanswered) else EXIT_AWAITS_REVIEW
            console.print(f"{COMMAND}: {printable(str(reason))}", markup=False, soft_wrap=True)
            raise typer.Exit(status) from None
    tables = Console(width=120, highlight=False)
    tables.print(accounts.table().to_rich())
    tables.print(accounts.reasons().to_rich())


if __name__ == "__main__":
    app()
