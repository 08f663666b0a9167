"""`fovea curate run`: from captions to a published data set, whatever interrupts it."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from services.core.text_files import BadFile
from services.curate.pipeline.command import app
from services.curate.pipeline.publishing import REFINED_AWAY, REFUSED, REJECTED, Accounts, DoesNotAddUp
from services.curate.pipeline.recipe import read_recipe
from services.curate.pipeline.steps import AwaitsReview, read_verdicts, reviewed, run
from services.curate.refinement.loading import load_models
from services.curate.refinement.scores import RefineOptions, score_pairs
from services.jobs.sugarcrepe import Pair, published_pairs, read_pairs
from services.score.negatives.prompting.checks import WRITTEN_KINDS, problem_of
from starters.curate.scenes import written_scenes
from tests.core.child_processes import running
from tests.curate.scene_captions import write_scene_captions
from tests.curate.scripted_model import LASTING, PASSING, ScriptedModel

NUM_SCENES = 500
KILLED_AFTER = 1500  # answers
STOPPED_AFTER = 3000
QUIET = Console(quiet=True)

RULES = """
name = "Scenes by rules"
output = "out"
licence = "MIT"
[captions]
file = "captions.jsonl"
[generate]
method = "rules"
"""
MODEL = """
name = "Scenes"
output = "out"
[captions]
file = "scenes/captions.jsonl"
[generate]
model = "big"
endpoint = "{url}"
concurrency = 16
timeout_s = 2.0
"""
REFINED = '[refine]\nseed = 3\n[review]\nverdicts = "verdicts.jsonl"\n'


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel().beside() as model:
        yield model


def half_of_each_type(pairs: Sequence[Pair], options: RefineOptions) -> list[Pair]:
    """A stand-in for the refinement: as many shorter negatives as longer ones of each type."""
    assert options == RefineOptions(seed=3)
    kept = []
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        longer = [p for p in pairs if p.kind == kind and len(p.negative_caption) > len(p.caption)]
        shorter = [p for p in pairs if p.kind == kind and len(p.negative_caption) < len(p.caption)]
        even = [p for p in pairs if p.kind == kind and len(p.negative_caption) == len(p.caption)]
        number = min(len(longer), len(shorter))
        kept += [*longer[:number], *shorter[:number], *even]
    ids = {pair.id for pair in kept}
    return [pair for pair in pairs if pair.id in ids]


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def scenes_by(model: ScriptedModel, folder: Path, num_scenes: int) -> str:
    """Draw scenes, and return a recipe by which a model writes their negatives."""
    written_scenes(folder / "scenes", num_scenes, seed=0, side=32)
    return MODEL.format(url=model.url)


def carried_out(recipe: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(recipe)])
    return done.exit_code, done.output


@pytest.mark.process
@pytest.mark.slow
def test_500_scenes_by_a_model_that_misbehaves_killed_and_stopped_lose_and_repeat_nothing(
    model: ScriptedModel, tmp_path: Path
) -> None:
    model.misbehaves = 12
    recipe = write(tmp_path, scenes_by(model, tmp_path, NUM_SCENES))
    interrupted(model, recipe, KILLED_AFTER, signal.SIGKILL)
    lines = (tmp_path / "out" / "generated" / "answers.jsonl").read_bytes().splitlines(keepends=True)
    assert KILLED_AFTER - 16 <= len(lines) < STOPPED_AFTER
    interrupted(model, recipe, STOPPED_AFTER, signal.SIGINT)
    for _ in range(4):
        status, output = carried_out(recipe)
        if status == 0:
            break
        assert status == 3 and "without an answer; run the same recipe" in output, output
    assert status == 0, output

    assert set(model.behaviours) == {"good", *PASSING, *LASTING}
    # only what was on its way when it was killed was paid for twice
    twice = [key for key, number in model.answered.items() if number > 1]
    assert len(twice) <= 16 and max(model.answered.values()) <= 2
    pairs = read_pairs(tmp_path / "out" / "published" / "pairs.jsonl")
    assert len({(pair.filename, pair.caption, pair.negative_caption) for pair in pairs}) == len(pairs)
    assert all(problem_of(p.kind, p.caption, p.negative_caption) is None for p in pairs)  # type: ignore[arg-type]
    rejected = (tmp_path / "out" / "generated" / "rejected.jsonl").read_text().splitlines()
    assert len(pairs) + len(rejected) == NUM_SCENES * len(WRITTEN_KINDS)
    assert len(pairs) > 0.5 * NUM_SCENES * len(WRITTEN_KINDS)
    accounts = json.loads((tmp_path / "out" / "accounts.json").read_text())
    assert sum(accounts["made"].values()) == NUM_SCENES * len(WRITTEN_KINDS)
    assert sum(one["number"] for one in accounts["lost"][REJECTED]) == len(rejected)

    # an uninterrupted run of the same recipe publishes the same
    other = tmp_path / "other"
    other.mkdir()
    again = write(other, scenes_by(model, other, NUM_SCENES))
    assert carried_out(again)[0] == 0
    published = Path("out", "published", "pairs.jsonl")
    assert (other / published).read_bytes() == (tmp_path / published).read_bytes()


def interrupted(model: ScriptedModel, recipe: Path, num_answers: int, number: signal.Signals) -> None:
    """Carry out a recipe until the model has given this number of answers."""
    command = [sys.executable, "-m", "services.curate.pipeline.command", str(recipe)]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while model.answered.total() < num_answers:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        process.send_signal(number)
        told = process.communicate(timeout=60)[0]
    assert process.returncode == (-number if number == signal.SIGKILL else 130), told


@pytest.mark.process
def test_every_candidate_is_published_or_lost_at_one_step(model: ScriptedModel, tmp_path: Path) -> None:
    model.misbehaves = 10
    recipe = read_recipe(write(tmp_path, scenes_by(model, tmp_path, 30) + REFINED))
    while True:
        try:
            run(recipe, QUIET, refine=half_of_each_type)
        except AwaitsReview as reason:
            assert "to-review.jsonl" in str(reason)
            break
        except Exception as error:  # the model has not answered everything
            assert "without an answer" in str(error)
    waiting = read_pairs(tmp_path / "out" / "to-review.jsonl")
    refused = {pair.id for pair in waiting[:-3:5]}
    verdicts = [{"id": p.id, "verdict": "false_negative" if p.id in refused else "valid"} for p in waiting[:-3]]
    verdicts += [{"id": waiting[0].id, "verdict": "unclear"}, {"id": "gone", "verdict": "valid"}]
    (tmp_path / "verdicts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in verdicts))

    accounts = run(recipe, QUIET, refine=half_of_each_type)
    pairs = read_pairs(tmp_path / "out" / "published" / "pairs.jsonl")
    lost = {step: accounts.num_lost(step) for step in (REJECTED, REFINED_AWAY, REFUSED)}
    assert accounts.made.total() == 30 * len(WRITTEN_KINDS) == len(pairs) + sum(lost.values())
    assert lost[REFUSED] == len(refused) and lost[REFINED_AWAY] > 0
    assert not refused & {pair.id for pair in pairs}
    # those whom people refused are balanced again
    assert [pair.id for pair in half_of_each_type(pairs, RefineOptions(seed=3))] == [pair.id for pair in pairs]
    table = (tmp_path / "out" / "accounts.md").read_text()
    row = [210, *lost.values(), len(pairs)]
    assert f"| all | {' | '.join(map(str, row))} |" in table
    figure = (tmp_path / "out" / "flow.svg").read_text()
    assert figure.startswith("<svg") and all(step in figure for step in lost)
    card = (tmp_path / "out" / "published" / "README.md").read_text()
    assert "# Scenes" in card and "Captions: captions.jsonl" in card and "big, three steps" in card


def test_a_recipe_by_rules_publishes_all_forms(tmp_path: Path) -> None:
    write_scene_captions(tmp_path / "captions.jsonl", 20)
    status, output = carried_out(write(tmp_path, RULES))
    assert status == 0, output
    folder = tmp_path / "out" / "published"
    pairs = read_pairs(folder / "pairs.jsonl")
    counts = Counter(pair.kind for pair in pairs)
    found = published_pairs(folder)
    assert Counter(pair.kind for pair in found) == Counter({k: n for k, n in counts.items() if k in WRITTEN_KINDS})
    assert f"Warning: few pairs are left of replace_obj ({counts['replace_obj']})" in " ".join(output.split())
    twice = json.loads((folder / "sugarcrepe_pp" / "replace_att.json").read_text())
    own = [pair for pair in pairs if pair.kind == "replace_att"]
    assert [(row["caption"], row["caption2"], row["negative_caption"]) for row in twice] == [
        (pair.caption, pair.second_caption, pair.negative_caption) for pair in own
    ]
    asked = json.loads((folder / "instructions.json").read_text())
    questions = [record["conversations"][0]["value"] for record in asked]
    firsts = Counter(question.index(pair.caption) for question, pair in zip(questions, pairs, strict=True))
    assert len(firsts) > 1  # the true caption is not always the first
    assert carried_out(tmp_path / "recipe.toml")[0] == 0
    assert read_pairs(folder / "pairs.jsonl") == pairs


def test_a_refinement_is_made_again_only_for_other_pairs_or_options(tmp_path: Path) -> None:
    write_scene_captions(tmp_path / "captions.jsonl", 10)
    calls = []

    def refine(pairs: Sequence[Pair], options: RefineOptions) -> Sequence[Pair]:
        calls.append(options)
        return pairs[::2]

    recipe = write(tmp_path, RULES + "[refine]\nseed = 1\n")
    assert run(read_recipe(recipe), QUIET, refine=refine) == run(read_recipe(recipe), QUIET, refine=refine)
    assert calls == [RefineOptions(seed=1)]
    recipe.write_text(recipe.read_text().replace("seed = 1", "seed = 2"))
    run(read_recipe(recipe), QUIET, refine=refine)
    assert calls == [RefineOptions(seed=1), RefineOptions(seed=2)]


@pytest.mark.slow
def test_a_recipe_is_refined_by_the_starters(tmp_path: Path) -> None:
    write_scene_captions(tmp_path / "captions.jsonl", 40)
    cache = f'[refine]\nseed = 1\ncache = "{tmp_path / "scores"}"\ndevice = "cpu"\n'
    status, output = carried_out(write(tmp_path, RULES + cache))
    assert status == 0, output
    pairs = read_pairs(tmp_path / "out" / "published" / "pairs.jsonl")
    assert pairs
    for scored in score_pairs(pairs, load_models(None, device="cpu", cache=tmp_path / "scores")):
        for kind in {pair.kind for pair in pairs}:
            gaps = scored.gaps[[pair.kind == kind for pair in pairs]]
            assert (gaps > 0).sum() == (gaps < 0).sum(), kind


@pytest.mark.process
def test_a_model_of_the_refinement_that_is_not_there_is_told_before_anything_is_paid_for(
    model: ScriptedModel, tmp_path: Path
) -> None:
    text = scenes_by(model, tmp_path, 2) + '[refine]\nmodel = ["x=gone"]'
    status, output = carried_out(write(tmp_path, text))
    assert status == 1 and "gone" in output
    assert not model.sent


@pytest.mark.process
def test_a_recipe_may_publish_without_what_the_model_never_answers(model: ScriptedModel, tmp_path: Path) -> None:
    model.misbehaves = 30
    text = scenes_by(model, tmp_path, 6) + "attempts = 1\n"
    status, output = carried_out(write(tmp_path, text))
    assert status == 3 and "generate.max_unanswered = " in " ".join(output.split())
    model.sent.clear()  # it misbehaves as before
    status, output = carried_out(write(tmp_path, text + "max_unanswered = 0.5\n"))
    assert status == 0, output
    lost = json.loads((tmp_path / "out" / "accounts.json").read_text())["lost"][REJECTED]
    assert sum(one["number"] for one in lost if one["reason"] == "unanswered") > 0


def test_accounts_that_do_not_add_up_are_refused() -> None:
    accounts = Accounts()
    accounts.made.update({"swap_obj": 3})
    accounts.published.update({"swap_obj": 1})
    accounts.lose(REJECTED, [("swap_obj", "unchanged")])
    with pytest.raises(DoesNotAddUp, match="swap_obj: 3 made, 1 published"):
        accounts.check()
    accounts.lose(REFUSED, [("swap_obj", "unclear")])
    accounts.check()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('file = "captions.jsonl"', "", "captions.file: Field required"),
        ('method = "rules"', 'method = "rule"', "generate.method: Input should be 'llm' or 'rules'"),
        ('method = "rules"', 'method = "rules"\nkinds = ["add_obj"]', "kinds: add_obj needs a model"),
        ('output = "out"', 'output = "out"\nseed = 1', "seed: Extra inputs are not permitted"),
        ("[generate]", "[review]\nunreviewed = 'keep'\n[generate]", "review.verdicts: Field required"),
        ("[generate]", "[generate", "recipe.toml: "),
        ("[generate]", "[refine]\nsead = 0\n[generate]", "recipe.toml: refine.sead: Extra inputs are not permitted"),
        ("[generate]", "[refine]\nseed = -1\n[generate]", "recipe.toml: refine.seed: Input should be"),
        ("[generate]", "[refine]\nmodel = ['a=b', 'a=c']\n[generate]", "refine.model: two models are called 'a'"),
        ('output = "out"', 'output = "/proc/x"', "recipe.toml: output: /proc is not writable"),
    ],
)
def test_a_bad_recipe_is_told_with_its_field(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    with pytest.raises(BadFile, match=complaint) as refused:
        read_recipe(write(tmp_path, RULES.replace(old, new)))
    assert "recipe.toml" in str(refused.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"id": "a"}', "verdicts.jsonl:1: verdict: Field required"),
        ('{"id": "a", "verdict": "bad"}', "1: verdict: Input"),
    ],
)
def test_bad_verdicts_are_told_with_their_line(tmp_path: Path, line: str, complaint: str) -> None:
    write_scene_captions(tmp_path / "captions.jsonl", 2)
    (tmp_path / "verdicts.jsonl").write_text(line)
    status, output = carried_out(write(tmp_path, RULES + '[review]\nverdicts = "verdicts.jsonl"\n'))
    assert status == 1 and complaint in " ".join(output.split())


def test_a_reviewers_later_verdict_counts_and_most_of_them_decide(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    given = [
        *(("a", "ann", 2, "valid"), ("a", "ann", 1, "unclear"), ("a", "bob", 1, "valid"), ("a", "cas", 1, "unclear")),
        *(("b", "ann", 1, "valid"), ("b", "bob", 1, "false_negative")),
        ("c", "ann", 1, "unclear"),
    ]
    lines = [
        {"id": id, "reviewer": who, "round": number, "verdict": said, "note": ""} for id, who, number, said in given
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    pairs = [
        Pair(id=id, kind="swap_obj", filename="1.png", caption="a dog", negative_caption=f"a cat {id}") for id in "abcd"
    ]
    found = reviewed(pairs, read_verdicts(path), unreviewed="keep")
    assert [pair.id for pair in found.accepted] == ["a", "d"]
    assert found.refused == {"b": "false_negative", "c": "unclear"}
    assert reviewed(pairs, read_verdicts(path), unreviewed="refuse").refused["d"] == "unreviewed"


def test_pairs_that_await_review_end_the_command_with_a_status_of_its_own(tmp_path: Path) -> None:
    write_scene_captions(tmp_path / "captions.jsonl", 2)
    status, output = carried_out(write(tmp_path, RULES + '[review]\nverdicts = "verdicts.jsonl"\n'))
    assert status == 5 and "pairs await people's verdicts" in " ".join(output.split())
