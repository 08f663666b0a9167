"""Fit of what a profile says of a trained refusal, to its calibration.

`python -m starters fit-refusal` adds it to a checkpoint that `python -m starters calibrate` has calibrated: the
probability that the documents answer if the answer is calibrated, and that a document answers by its relevance alone.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from services.core.refusals import Refused
from services.generate.calibrate.bench import Bench
from services.generate.calibrate.fits import fit_logistic, fitted_relevance
from services.generate.data.questions import Example, Unanswerable, at_positions
from services.generate.generation.prompt_calibration import refusal_log_odds
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import PROFILE_FILE, CalibrationProfile, LogisticFit, read_profile, write_profile
from services.jobs.checkpoints import Device
from services.jobs.options import command_line
from services.jobs.progress import standard_bars
from services.nn.devices import DeviceOptions
from starters.generate.questions import OPEN

# of the profile's tables too
NUM_SHARED = 100
NUM_FITTED = 400
# of the questions, as in the reader's training
SHARE_UNANSWERABLE = 0.3
# questions of the training have other seeds, those of the search the first of their part
SEED = 7_000


app = command_line()


@app.command("fit-refusal")
def fit_refusal(
    checkpoint: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The checkpoint's folder.")],
    documents: Annotated[int, typer.Option(min=2, help="Documents per question.")] = 10,
    device: Device = "auto",
) -> None:
    """Fit what the checkpoint's profile says about its trained refusal to its calibration, on generated questions."""
    profile = read_profile(checkpoint)
    if profile is None or profile.answerability is None:
        raise Refused(f"{checkpoint} has no {PROFILE_FILE} with a trained refusal")
    bench = Bench(LanguageModel.load(checkpoint, DeviceOptions(device=device)), OPEN)
    # of few and of many documents, for the fit is to hold for both
    some = [
        one
        for count in (documents, -(-documents // 3))
        for one in at_positions(OPEN.examples("calibration", count, NUM_SHARED), range(count))
    ]
    with standard_bars().bar("relevance of a document", total=2 * len(some)) as bar:
        watched = replace(bench, on_progress=bar.advance)
        relevance = fitted_relevance(watched, some, profile)
        bar.begin("probability that the documents answer", NUM_FITTED)
        fit = fitted_with_calibration(watched, profile, profile.answerability.token_id, documents)
    refusal = profile.answerability.model_copy(update={"calibrated": fit})
    write_profile(profile.model_copy(update={"answerability": refusal, "relevance": relevance}), checkpoint)


def fitted_with_calibration(
    bench: Bench, profile: CalibrationProfile, token_id: int, num_documents: int
) -> LogisticFit | None:
    """Fit t and o of σ((o − logit p) / t) by likelihood, p the probability of the refusal's first token (Platt, 1999).

    Half of the questions have `num_documents` documents, half a third as many, for the fit is to hold for both. None
    for a profile that is off.
    """
    if not profile.enabled:
        return None
    odds, is_answerable = [], []
    for number, count in enumerate((num_documents, -(-num_documents // 3))):
        num_refused = round(SHARE_UNANSWERABLE * NUM_FITTED / 2)
        some = bench.questions.examples("calibration", count, NUM_FITTED // 2 - num_refused, SEED + number)
        asked: list[Example | Unanswerable] = [
            *at_positions(some, range(count)),
            *bench.questions.unanswerable("calibration", count, num_refused, SEED + number),
        ]
        for one, logits in zip(asked, bench.first_logits(asked, profile), strict=True):
            odds.append(refusal_log_odds(logits, token_id))
            is_answerable.append(one.gold is not None)
    temperature, offset = fit_logistic(-torch.stack(odds), torch.tensor(is_answerable))
    return LogisticFit(temperature=temperature, offset=offset)
