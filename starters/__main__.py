"""`python -m starters`: train and judge the checkpoints that Fovea packages."""

import typer

from services.cli.delegation import delegate
from services.cli.signals import end_on_signals

app = typer.Typer(
    rich_markup_mode=None,
    name="starters",
    help="Train and judge the checkpoints that Fovea packages.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
train = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Train a packaged checkpoint, or its base.")
evaluate = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Evaluate a checkpoint on generated data.")
app.add_typer(train, name="train")
app.add_typer(evaluate, name="evaluate")

# embed
delegate(train, "clip", "starters.embed.train_clip", "Train the small CLIP that FocalLens starts from.", "train")
delegate(train, "focallens", "starters.embed.train_focallens", "Tune the small CLIP to follow conditions.", "train")
delegate(train, "llava", "starters.embed.train_llava", "Train the small LLaVA that FocalLens tunes.", "train")
delegate(train, "focallens-mllm", "starters.embed.train_mllm", "Tune the small LLaVA to follow instructions.", "train")

# generate
delegate(train, "reader", "starters.generate.reader.train", "Train a small Llama that answers from documents.", "train")
delegate(train, "litm", "starters.generate.litm.train", "Train a small Llama with positional bias.", "train")
delegate(
    evaluate, "litm", "starters.generate.judging", "Evaluate Found-in-the-middle on generated questions.", "evaluate"
)
delegate(app, "calibrate", "starters.generate.judging", "Calibrate a checkpoint with generated questions.", "evaluate")
delegate(
    app,
    "fit-refusal",
    "starters.generate.reader.answerability",
    "Fit the probability of a trained refusal to a checkpoint's calibration.",
    "evaluate",
)

# predict
delegate(train, "distill", "starters.predict.train", "Train a small T5 on generated rows and rationales.", "train")
delegate(evaluate, "distill", "starters.predict.sweep", "Compare the methods of `train distill`.", "train")

# score
delegate(
    train,
    "clip-scenes",
    "starters.score.training.train",
    "Train a small CLIP on generated scenes and pictures, the base.",
    "train",
)
delegate(
    train,
    "fsc-clip-scenes",
    "starters.score.training.train",
    "Tune the base on scenes, pictures and hard negatives.",
    "train",
)
delegate(
    train,
    "wise-ft-scenes",
    "starters.score.training.train",
    "Interpolate a CLIP before and after tuning, and publish the best.",
    "train",
)
delegate(
    train,
    "align-sizes",
    "starters.score.training.train",
    "Teach a tuned CLIP to say sizes as its image tower sees them.",
    "train",
)

# curate
delegate(train, "blind", "starters.curate.train", "Train a small model that judges sentences by their text.", "train")
delegate(app, "scenes", "starters.curate.scenes", "Draw scenes and write captions of them.", "train")

# all services
delegate(
    app,
    "visitor",
    "starters.visitor.command",
    "Ask a running Fovea what a visitor types and draws first: a held-out suite.",
    "embed",
)


if __name__ == "__main__":
    end_on_signals()
    app(prog_name="python -m starters")
