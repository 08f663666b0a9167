"""The packaged `litm-facts` loses the middle in the layer that finds documents, and subtracting the bias helps."""

from pathlib import Path

import pytest

from services.generate.calibrate.bench import Bench
from services.generate.calibrate.search import middle_positions, score_of
from services.generate.data.questions import at_positions
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import BiasTable, read_profile
from services.nn.devices import DeviceOptions
from starters.generate.questions import GENERATED

STARTER = Path(__file__).parents[3] / "services" / "generate" / "starter" / "litm-facts"
NUM_DOCUMENTS = 10
NUM_QUESTIONS = 60


@pytest.mark.slow
def test_the_exact_bias_and_trees_beat_none_in_the_middle() -> None:
    profile = read_profile(STARTER)
    assert profile is not None
    assert profile.enabled
    nothing = BiasTable(bucket=1, attention=(0.0,) * NUM_DOCUMENTS, num_prompts=1)
    profiles = [
        None,
        profile.model_copy(update={"bias": "exact"}),
        profile.model_copy(update={"bias": "tree"}),
        profile.model_copy(update={"bias": "cached", "tables": (nothing,)}),
    ]
    questions = GENERATED
    middle = middle_positions(NUM_DOCUMENTS)
    drawn = questions.examples("evaluation", NUM_DOCUMENTS, NUM_QUESTIONS, seed=3)
    asked = [one for place in (0, *middle, NUM_DOCUMENTS - 1) for one in at_positions(drawn, (place,))]
    bench = Bench(LanguageModel.load(STARTER, DeviceOptions(device="cpu", dtype="float32")), questions)
    vanilla, exact, tree, none = (score_of(asked, answers) for answers in bench.ask(profiles, asked))
    assert vanilla.accuracy({0, NUM_DOCUMENTS - 1}) > vanilla.accuracy(middle) + 0.1
    for one in (exact, tree):
        assert one.accuracy(middle) > none.accuracy(middle) + 0.05
        assert one.accuracy() > vanilla.accuracy()
