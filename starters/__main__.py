"""`python -m starters`: train and judge the checkpoints that Fovea packages."""

import typer

from services.cli.signals import end_on_signals

app = typer.Typer(
    rich_markup_mode=None,
    name="starters",
    help="Train and judge the checkpoints that Fovea packages.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
train = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Train a packaged checkpoint, or its base.")
app.add_typer(train, name="train")

# embed

# generate

# predict

# score

# curate

# all services


if __name__ == "__main__":
    end_on_signals()
    app(prog_name="python -m starters")
