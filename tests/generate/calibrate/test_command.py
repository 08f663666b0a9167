"""`fovea calibrate` tries, decides on held-out questions, and writes or publishes what it found."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.generate.calibrate.bench import Bench
from services.generate.calibrate.choice import Plan, bias_tables, cheapest_as_good, choose_calibration, evenly_mixed
from services.generate.calibrate.command import app, decision
from services.generate.calibrate.search import Limits, Score, Tried
from services.generate.data.questions import QuestionSet
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import OFF, TREE_SAVINGS, CalibrationProfile, RowScope, paper_profile, read_profile
from services.jobs.checkpoints import find_checkpoint
from starters.generate.questions import generated_facts, open_unanswerable
from tests.generate.tiny_models import save_tiny, tiny_model, tiny_tokenizer

MIDDLE = (1,)
DATA = ("--data", "generated")
SMALL = ("--documents", "3", "--prompts", "12", "--measured", "4", "--span-rule", "newline", "--row-scope", "last")
PLAN = Plan((0, 1, 2), 12, 4, ("newline",), "tree", ("tree", "single"), Limits(row_scopes=("last",), finalists=2))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny") / "tiny-llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(tiny_model(num_hidden_layers=2), tiny_tokenizer())


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [*DATA, *map(str, arguments)])


def answer(*arguments: str | Path) -> dict[str, Any]:
    """The profile, the last line of a run that succeeds."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    profile: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return profile


class Helped(Bench):
    """A model whose answers are right at the ends, and in the middle wherever calibration reaches `layer`."""

    layer = 1

    def ask(self, profiles: Sequence[CalibrationProfile | None], examples: Any) -> list[list[bool]]:
        return [
            [one.gold != 1 or (profile is not None and self.layer in profile.layers) for one in examples]
            for profile in profiles
        ]


class Shifted(Helped):
    """One where calibration takes from the ends what it gives to the middle."""

    def ask(self, profiles: Sequence[CalibrationProfile | None], examples: Any) -> list[list[bool]]:
        return [
            [(one.gold == 1) == (profile is not None and self.layer in profile.layers) for one in examples]
            for profile in profiles
        ]


def questions() -> QuestionSet:
    return QuestionSet("generated", "", 2, (), lambda text, answers: False)


def test_a_calibration_that_helps_on_held_out_questions_is_on_with_its_gain(model: LanguageModel) -> None:
    steps: list[tuple[str, int]] = []
    choice = choose_calibration(
        Helped(model, questions()), generated_facts(24, 3), PLAN, lambda what, work: steps.append((what, work))
    )
    profile = choice.profile
    assert (profile.enabled, profile.source) == (True, "measured")
    assert 1 in profile.layers
    # what is as good and cheaper is taken
    assert profile.bias == "single"
    gain = {name: value for name, value in profile.gain.items() if name != "num_prompts"}
    assert gain == {
        "vanilla": 0.6667,
        "calibrated": 1.0,
        "middle_vanilla": 0.0,
        "middle_calibrated": 1.0,
        "ends_vanilla": 1.0,
        "ends_calibrated": 1.0,
    }
    assert [tried.profile for tried in choice.held_out] == [None, profile.model_copy(update={"gain": {}})]
    assert [what.split(" ")[0] for what, _ in steps] == [
        "measuring",
        "trying",
        "trying",
        "trying",
        "comparing",
        "deciding",
    ]
    assert all(work > 0 for _, work in steps)


class Eager(Helped):
    """One that refuses what it can't answer, unless calibration makes it answer everything."""

    def ask(self, profiles: Sequence[CalibrationProfile | None], examples: Any) -> list[list[bool]]:
        right = super().ask(profiles, [one for one in examples if one.gold is not None])
        answers = [iter(some) for some in right]
        return [
            [profile is None if one.gold is None else next(some) for one in examples]
            for profile, some in zip(profiles, answers, strict=True)
        ]


def test_a_calibration_that_costs_the_refusals_is_off(model: LanguageModel) -> None:
    bench, examples = Eager(model, questions()), generated_facts(24, 3)
    assert choose_calibration(bench, examples, PLAN).profile.enabled
    choice = choose_calibration(bench, examples, PLAN, unanswerable=open_unanswerable(8, 3))
    assert not choice.profile.enabled
    assert choice.rounds[-1][0].score.unanswerable == 4


def test_every_part_of_the_questions_has_its_share_of_unanswerable_ones() -> None:
    examples, others = generated_facts(12, 3), open_unanswerable(4, 3)
    mixed = evenly_mixed(examples, others)
    assert [one for one in mixed if one.gold is not None] == examples
    assert [one for one in mixed if one.gold is None] == others
    assert [sum(one.gold is None for one in mixed[start : start + 4]) for start in range(0, 16, 4)] == [1, 1, 1, 1]


@pytest.mark.parametrize("row_scopes", [("last",), ("last", "tail")])
def test_no_step_of_the_search_exceeds_the_number_of_prompts_that_it_names(
    model: LanguageModel, row_scopes: tuple[RowScope, ...]
) -> None:
    steps: list[list[int]] = []

    class Counted(Helped):
        def ask(self, profiles: Sequence[CalibrationProfile | None], examples: Any) -> list[list[bool]]:
            for _ in profiles:
                self.on_progress(len(examples))
            return super().ask(profiles, examples)

    def begin(what: str, work: int) -> None:
        steps.append([0, work])

    def count(number: int) -> None:
        steps[-1][0] += number

    plan = replace(PLAN, limits=Limits(row_scopes=row_scopes), bias_kinds=("cached", "tree"))
    bench = Counted(model, questions(), on_progress=count)
    choose_calibration(bench, generated_facts(24, 3), plan, begin)
    assert len(steps) > 5
    assert [done for done, _ in steps] == [work for _, work in steps]


@pytest.mark.parametrize(
    ("enabled", "num_prompts", "beginning", "end"),
    [
        (True, 800, "Calibration is on: on 800 held-out questions,", "its mean from 80.00 % to 90.00 %."),
        (False, 800, "Calibration is off: no finalist raised the accuracy", "its mean from 80.00 % to 90.00 %."),
        (True, 8, "Calibration is on: on 8 held-out questions,", "say little: give at least 100 --prompts."),
    ],
)
def test_the_decision_is_told_in_a_sentence_with_its_reason(
    enabled: bool, num_prompts: int, beginning: str, end: str
) -> None:
    gain = {"vanilla": 0.8, "calibrated": 0.9, "middle_vanilla": 0.5, "middle_calibrated": 0.75}
    profile = (paper_profile(2) if enabled else OFF).model_copy(update={"gain": {**gain, "num_prompts": num_prompts}})
    said = decision(profile)
    assert said.startswith(beginning) and said.endswith(end)
    assert "with the gold in the middle went from 50.00 % to 75.00 %" in said


def test_the_decision_tells_what_became_of_the_refusals() -> None:
    gain = {"vanilla": 0.8, "calibrated": 0.9, "middle_vanilla": 0.5, "middle_calibrated": 0.75, "num_prompts": 800}
    refusals = {"refused_vanilla": 0.9, "refused_calibrated": 0.85, "num_unanswerable": 200}
    said = decision(paper_profile(2).model_copy(update={"gain": gain | refusals}))
    assert said.endswith("Of 200 unanswerable questions, 90.00 % were refused without and 85.00 % with it.")


def test_a_calibration_that_only_moves_accuracy_about_is_off_and_says_what_was_measured(model: LanguageModel) -> None:
    choice = choose_calibration(Shifted(model, questions()), generated_facts(24, 3), PLAN)
    assert not choice.profile.enabled
    assert choice.profile.layers == ()
    assert choice.profile.gain["vanilla"] == 0.6667


def test_questions_that_choose_are_not_those_that_decide(model: LanguageModel) -> None:
    asked: list[set[str]] = []

    class Watched(Helped):
        def ask(self, profiles: Sequence[CalibrationProfile | None], examples: Any) -> list[list[bool]]:
            asked.append({one.question for one in examples})
            return super().ask(profiles, examples)

    choose_calibration(Watched(model, questions()), generated_facts(24, 3), PLAN)
    *search, held_out = asked
    assert not held_out & set().union(*search)
    with pytest.raises(ValueError, match="at least two questions"):
        choose_calibration(Watched(model, questions()), generated_facts(1, 3), PLAN)


FACTS = generated_facts(96, 3)


class Lucky(Helped):
    """One where layer 0 alone helps with every question that is searched with and with none that decides; layer 1 alone
    with all but those about pets."""

    def ask(self, profiles: Sequence[CalibrationProfile | None], examples: Any) -> list[list[bool]]:
        searched = {one.question for one in FACTS[:48]}

        def is_right(profile: CalibrationProfile | None, one: Any) -> bool:
            if profile is None or profile.layers == (0, 1) or one.gold != 1:
                return bool(one.gold != 1)
            return one.question in searched if profile.layers == (0,) else "pet" not in one.question

        return [[is_right(profile, one) for one in examples] for profile in profiles]


def test_a_setting_that_helps_is_found_behind_many_alike_that_were_lucky(model: LanguageModel) -> None:
    choice = choose_calibration(Lucky(model, questions()), FACTS, replace(PLAN, num_prompts=48))
    best = choice.rounds[-1][1].profile
    assert best is not None
    assert best.layers == (0,)
    assert choice.profile.layers == (1,)


def test_the_same_questions_lead_to_the_same_choice(model: LanguageModel) -> None:
    plan = replace(PLAN, num_prompts=48)
    first, second = (choose_calibration(Lucky(model, questions()), FACTS, plan) for _ in range(2))
    assert first.profile == second.profile
    for one, other in zip(first.rounds, second.rounds, strict=True):
        assert [(tried.profile, tried.score) for tried in one] == [(tried.profile, tried.score) for tried in other]


def score(*shares: float) -> Score:
    return Score({k: round(100 * share) for k, share in enumerate(shares)}, dict.fromkeys(range(len(shares)), 100))


@pytest.mark.parametrize(
    ("thrifty", "is_chosen"), [((0.9, 0.79, 0.9), True), ((0.9, 0.78, 0.9), False), ((0.86, 0.8, 0.9), False)]
)
def test_the_savings_of_tree_are_taken_where_they_lose_no_more_than_a_point(
    thrifty: tuple[float, ...], is_chosen: bool
) -> None:
    tree = CalibrationProfile(enabled=True, bias="tree", layers=(0,), rel_layers=(0,))
    tried = [
        Tried(None, score(0.9, 0.5, 0.9)),
        Tried(tree.model_copy(update={"bias": "exact"}), score(0.9, 0.8, 0.9)),
        Tried(tree, score(0.9, 0.8, 0.9)),
        Tried(tree.model_copy(update=TREE_SAVINGS), score(*thrifty)),
    ]
    chosen = cheapest_as_good(tried, MIDDLE)
    assert (chosen.bias, chosen.dummy_tokens is not None) == ("tree", is_chosen)


@pytest.mark.parametrize(
    ("single", "query", "chosen"),
    [
        ((0.9, 0.79, 0.9), (0.9, 0.7, 0.9), "single"),
        ((0.9, 0.7, 0.9), (0.9, 0.7, 0.9), "tree"),
        ((0.9, 0.8, 0.9), (0.9, 0.79, 0.9), "query"),
    ],
)
def test_a_cheaper_estimate_is_taken_where_it_loses_no_more_than_a_point(
    single: tuple[float, ...], query: tuple[float, ...], chosen: str
) -> None:
    def tried(bias: str, *shares: float) -> Tried:
        fields = {"enabled": True, "bias": bias, "layers": (0,), "rel_layers": (0,)}
        return Tried(CalibrationProfile.model_validate(fields), score(*shares))

    others = [tried("exact", 0.9, 0.8, 0.9), tried("tree", 0.9, 0.8, 0.9), tried("single", *single)]
    others.append(tried("query", *query))
    assert cheapest_as_good([Tried(None, score(0.9, 0.5, 0.9)), *others], MIDDLE).bias == chosen
    with pytest.raises(ValueError, match="no estimate"):
        cheapest_as_good([Tried(None, score(0.9))], MIDDLE)


def test_the_middle_is_the_position_nearest_to_it_that_is_asked() -> None:
    assert Plan((0, 4, 9), 1, 1, (), "tree", (), Limits()).middle(10) == (4,)
    assert Plan((0, 9), 1, 1, (), "tree", (), Limits()).middle(10) == (0, 9)
    assert Plan(tuple(range(10)), 1, 1, (), "tree", (), Limits()).middle(10) == (4, 5)


def test_tables_of_the_cached_bias_are_means_over_prompts_of_a_length(model: LanguageModel) -> None:
    bench = Bench(model, questions())
    profile = CalibrationProfile(enabled=True, layers=(1,), rel_layers=(1,))
    examples = generated_facts(30, 3)
    tables = list(bias_tables(bench, examples, (0, 1, 2), profile))
    assert sum(table.num_prompts for table in tables) <= 30
    assert [table.bucket for table in tables] == sorted({table.bucket for table in tables})
    for table in tables:
        assert table.num_documents == 3
        assert all(0 < attention < 1 for attention in table.attention)
    (alone,) = bias_tables(bench, examples[:1], (0,), profile)
    (measured,) = bench.measure(examples[:1], "newline", "tree")
    assert alone.attention == pytest.approx(measured.bias[1].mean(dim=0).tolist())
    (of_heads,) = bias_tables(bench, examples[:1], (0,), profile.changed({"rel_heads": ((1, 0), (1, 3))}))
    assert of_heads.attention == pytest.approx(measured.bias[1, [0, 3]].mean(dim=0).tolist())


def test_heads_are_sources_of_relevance_where_scores_for_them_are_given(model: LanguageModel) -> None:
    bench, examples = Helped(model, questions()), generated_facts(60, 3)
    limits = replace(PLAN.limits, rel_settings=9)
    plan = replace(PLAN, num_measured=30, limits=limits)
    assert not any(setting.heads for setting in choose_calibration(bench, examples, plan).rel_settings)
    choice = choose_calibration(bench, examples, replace(plan, limits=replace(limits, head_scores=("core", "qr"))))
    of_heads = {setting.heads for setting in choice.rel_settings if setting.heads}
    assert 1 <= len(of_heads) <= 2
    tried = {one.profile.rel_heads for one in choice.rounds[0] if one.profile is not None}
    assert tried >= {()}
    assert tried - {()} <= of_heads
    assert tried - {()}
    assert choice.profile.enabled
    merits = [setting.merit for setting in choice.rel_settings]
    assert merits == sorted(merits, reverse=True)


@pytest.mark.slow
def test_the_scores_of_heads_and_the_estimate_by_a_question_are_chosen_by_options(
    checkpoint: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "record.json"
    answer(checkpoint, *SMALL, "--heads", "qr", "--bias", "query", "--save", saved)
    record = json.loads(saved.read_text())
    assert sum(bool(setting["heads"]) for setting in record["rel_settings"]) == 1
    assert {one["profile"]["bias"] for one in record["estimates"][1:]} <= {"query"}


@pytest.mark.slow
def test_a_profile_is_written_beside_the_checkpoint_and_recorded(checkpoint: Path, tmp_path: Path) -> None:
    saved = tmp_path / "records" / "record.json"
    profile = answer(checkpoint, *SMALL, "--output", tmp_path, "--save", saved)
    written = read_profile(tmp_path)
    assert written is not None
    assert written.model_dump(mode="json") == profile
    # random weights answer nothing right, so nothing can help
    assert not written.enabled
    assert written.gain["vanilla"] == written.gain["calibrated"] == 0
    record = json.loads(saved.read_text())
    assert record["profile"] == profile
    assert record["checkpoint"] == "tiny-llama"
    assert len(record["rel_settings"]) == 6
    assert len(record["rounds"][0]) > 50
    assert record["held_out"][0]["profile"] is None


@pytest.mark.slow
def test_a_published_version_has_the_profile_among_its_files_and_its_gain_in_the_manifest(
    checkpoint: Path, tmp_path: Path
) -> None:
    url = f"file://{tmp_path / 'store'}"
    store = Store.open(url)
    info = CheckpointInfo(kind="causal-lm", training={"steps": 3}, seed=7, metrics={"accuracy": 0.5}, licence="MIT")
    first = store.publish("tiny", checkpoint, info)
    answer("tiny@latest", *SMALL, "--publish", "tiny", "--alias", "calibrated", "--store-url", url)
    version = store.resolve("tiny", "calibrated")
    manifest = store.manifest("tiny", version)
    assert version != store.resolve("tiny")
    assert manifest.files.keys() == store.manifest("tiny", first.id).files.keys() | {"calibration.json"}
    assert (manifest.base, manifest.seed, manifest.training) == (f"tiny@{first.id}", 7, {"steps": 3})
    assert manifest.metrics["accuracy"] == 0.5
    assert manifest.metrics["calibration"]["enabled"] is False  # type: ignore[index, call-overload]
    source = find_checkpoint("tiny@calibrated", url)
    assert source.label == f"tiny@{version}"
    assert read_profile(source.directory) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "CHECKPOINT: there is no model 'nothing' in "),
        (["CHECKPOINT", "--data", "nowhere.csv"], "--data: nowhere.csv does not exist"),
        (
            ["CHECKPOINT", "--positions", "0,3", "--documents", "3"],
            "--positions: the positions of 3 documents are 0 to 2",
        ),
        (["CHECKPOINT", "--positions", "first"], "--positions: 'first' is not a comma-separated list of whole numbers"),
        (["CHECKPOINT", "--bias", "tree,guess"], "--bias: 'guess' is not one of exact, tree, single, query, cached"),
        (["CHECKPOINT", "--heads", "all"], "--heads: 'all' is not one of core, qr"),
        (["CHECKPOINT", "--span-rule", "both"], "--span-rule: 'both' is not one of newline, text"),
        (["."], "CHECKPOINT: "),
    ],
)
def test_what_is_missing_or_unknown_is_told_without_a_traceback(
    arguments: list[str], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    given = [str(checkpoint) if one == "CHECKPOINT" else one for one in arguments]
    result = run(*given, "--output", str(tmp_path / "out"), "--store-url", f"file://{tmp_path / 'store'}")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
