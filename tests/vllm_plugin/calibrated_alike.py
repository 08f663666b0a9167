"""A small search for a calibration, by either engine."""

from services.generate.calibrate.bench import AnyBench
from services.generate.calibrate.choice import Plan, choose_calibration
from services.generate.calibrate.search import Limits
from services.generate.model.profile import CalibrationProfile

NUM_DOCUMENTS = 10


def settings_chosen(bench: AnyBench, num_prompts: int = 6) -> CalibrationProfile:
    """The profile that a search with a few questions chooses."""
    plan = Plan(
        positions=(0, 4, 9),
        num_prompts=num_prompts,
        num_measured=6,
        span_rules=("newline",),
        search_bias="single",
        bias_kinds=("exact", "single"),
        limits=Limits(rel_settings=1, row_scopes=("last",), rel_scopes=("mean",)),
    )
    examples = bench.questions.examples("calibration", NUM_DOCUMENTS, 2 * num_prompts, 0)
    return choose_calibration(bench, examples, plan).profile
