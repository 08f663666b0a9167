"""`fovea calibrate` and `fovea evaluate litm` with generated questions: `--data generated` or `--data open`."""

from services.generate.calibrate.command import calibrate
from services.generate.evaluation.evaluate import litm
from services.jobs.options import command_line
from starters.generate import questions as questions  # gives the generated questions their names

app = command_line(help="Calibrate and evaluate a checkpoint with generated questions.")
app.command()(calibrate)
app.command()(litm)
