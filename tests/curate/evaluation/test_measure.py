"""`fovea curate measure …` fills the dissertation's tables from files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.curate.evaluation.humans import Choice, accuracy
from services.curate.evaluation.measure import app, correlation, qualities
from services.curate.model.blind_model import BlindModel
from services.jobs.sugarcrepe import Pair, PairKind, write_pairs
from services.nn.sentence_scores import ScorerKind, SentenceScorer
from tests.published_data import published
from tests.tiny_text_models import write_tiny_grammar

RUNNER = CliRunner()


def measured(*arguments: Any) -> str:
    told = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert told.exit_code == 0, told.output
    return told.output


def numbers(*arguments: Any) -> Any:
    """The JSON of the last line."""
    return json.loads(measured(*arguments).splitlines()[-1])


def refused(*arguments: Any) -> str:
    told = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert told.exit_code == 2
    return " ".join(told.output.replace("│", " ").split())


def pair(kind: PairKind, caption: str, negative: str, number: int = 0) -> Pair:
    return Pair(
        id=f"{kind}-{negative}", kind=kind, filename=f"{number}.jpg", caption=caption, negative_caption=negative
    )


def by_length(kind: ScorerKind = "classifier") -> BlindModel:
    """The score of a text is its length in hundreds."""
    return BlindModel(
        "length", SentenceScorer(kind, 1, lambda text: [0] * len(text), lambda ids: (ids + 1).sum(1) / 100)
    )


def test_two_sets_are_compared_by_form_and_caption_by_caption() -> None:
    ours = [pair("replace_obj", "A dog.", "x" * 30), pair("replace_att", "A cat", "x" * 10), pair("add_obj", "C", "xx")]
    theirs = [
        *(pair("replace_rel", "a dog", "x" * 20), pair("replace_obj", "a  Cat.", "x" * 10), pair("negate", "C", "x")),
        *(pair("replace_obj", "another", "x" * 60), pair("shuffle", "C", "xxxx")),
    ]
    found = {one.form: one for one in qualities(ours, theirs, [by_length()])}
    replaced = found["REPLACE"]
    assert replaced.ours == pytest.approx(20) and replaced.theirs == pytest.approx(30)
    # of the dog ours is longer, of the cat they tie
    assert (replaced.better, replaced.num_compared) == (50.0, 2)
    assert (found["NEGATE / ADD"].better, found["NEGATE / ADD"].num_compared) == (100.0, 1)
    assert (found["SHUFFLE"].ours, found["SHUFFLE"].better) == (None, None)
    assert "SWAP" not in found


def test_a_likelihood_is_told_as_the_mean_probability_of_a_token() -> None:
    (one,) = qualities([pair("swap_obj", "A", "x")], [pair("swap_obj", "A", "xx")], [by_length("likelihood")])
    assert one.ours == pytest.approx(101.005, abs=1e-3) and one.theirs == pytest.approx(102.020, abs=1e-3)


def test_quality_is_told_of_files_by_models_of_folders(tmp_path: Path) -> None:
    write_tiny_grammar(tmp_path / "cola")
    write_pairs(tmp_path / "ours.jsonl", [pair("swap_obj", "a dog", "a cat on the mat")])
    write_pairs(tmp_path / "theirs.jsonl", [pair("swap_att", "a dog", "the cat")])
    (told,) = numbers(
        *("quality", tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl", f"--model=Grammar={tmp_path / 'cola'}"),
        *(f"--cache={tmp_path / 'cache'}", "--device=cpu", f"--output={tmp_path / 'table.md'}"),
    )
    (row,) = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| SWAP")]
    assert row.startswith("| SWAP | Grammar |") and row.endswith("| 1 |")
    assert (told["form"], told["model"], told["num_compared"]) == ("SWAP", "Grammar", 1)
    assert f"| {told['theirs']:.2f} | {told['ours']:.2f} |" in row


def test_pairs_are_counted_as_in_table_4_2() -> None:
    told = measured("counts", published("sugar-crepe/refined"))
    for number in ("1,652", "788", "1,406", "245", "666", "2,062", "692", "7,511"):
        assert number in told
    counted = json.loads(told.splitlines()[-1])
    assert counted["swap_obj"]["num_pairs"] == 245
    assert counted["all"]["num_pairs"] == 7511
    assert counted["all"]["num_images"] < 7511
    assert "negate" not in counted
    first = published("sugar-crepe/swap_obj_paper246.json")
    counted = json.loads(measured("counts", published("sugar-crepe/refined"), "--swap-obj", first).splitlines()[-1])
    assert (counted["swap_obj"]["num_pairs"], counted["all"]["num_pairs"]) == (246, 7512)


def test_peoples_judgements_are_counted_as_in_table_c_3(tmp_path: Path) -> None:
    lines = [("SWAP", "commonsense", "ours")] * 68 + [("SWAP", "commonsense", "tie")] * 28
    lines += [("SWAP", "commonsense", "theirs")] * 4 + [("SWAP", "grammar", "tie")]
    records = [dict(zip(("form", "quality", "better"), line, strict=True)) for line in lines]
    (tmp_path / "judged.jsonl").write_text("\n".join(map(json.dumps, records)))
    told = numbers("humans", tmp_path / "judged.jsonl", f"--output={tmp_path / 'table.md'}")
    assert told["judgements"]["commonsense"] == {"SWAP": {"theirs": 4, "ours": 68, "tie": 28}}
    table = (tmp_path / "table.md").read_text()
    assert "| SWAP | commonsense | 4 | 68 | 28 |" in table and "| SWAP | grammar | 0 | 0 | 1 |" in table
    (tmp_path / "judged.jsonl").write_text('{"form": "SWAP", "quality": "beauty", "better": "ours"}')
    assert "judged.jsonl:1: quality: Input should be 'commonsense' or 'grammar'" in refused(
        "humans", tmp_path / "judged.jsonl"
    )


def test_peoples_choices_are_told_by_type_and_form_with_their_intervals_as_in_tables_4_5_and_4_6(
    tmp_path: Path,
) -> None:
    right = {"replace_obj": 100, "replace_att": 99, "replace_rel": 97, "swap_obj": 99, "swap_att": 100}
    lines = [
        {"id": f"{kind}-{i}", "kind": kind, "is_right": i < num} for kind, num in right.items() for i in range(100)
    ]
    (tmp_path / "sugarcrepe.jsonl").write_text("\n".join(map(json.dumps, lines)))
    told = numbers("humans", tmp_path / "sugarcrepe.jsonl", f"--output={tmp_path / 'table.md'}")["choices"][
        "sugarcrepe"
    ]
    assert {kind: one["accuracy"] for kind, one in told["types"].items()} == right
    assert told["types"]["replace_att"]["interval"] == pytest.approx((94.55, 99.82), abs=0.01)
    assert told["forms"]["replace"]["accuracy"] == pytest.approx(98.67, abs=0.01)
    assert told["forms"]["swap"] == {**told["forms"]["swap"], "accuracy": 99.5, "num_pairs": 200, "num_choices": 200}
    assert told["mean_of_types"] == 99.0
    assert "| sugarcrepe | replace_att | 99.00 | 94.6 to 99.8 | 100 | 100 |" in (tmp_path / "table.md").read_text()
    (tmp_path / "bad.jsonl").write_text(json.dumps({**lines[0], "is_right": "perhaps"}))
    assert "bad.jsonl:1: is_right: Input should be a valid boolean" in refused("humans", tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_text("\n")
    assert "bad.jsonl holds no answers" in refused("humans", tmp_path / "bad.jsonl")


def test_several_people_on_the_same_pairs_do_not_make_an_interval_narrower() -> None:
    def choices(num_people: int, num_right: int) -> list[Choice]:
        names = [f"{i}" for i in range(20) for _ in range(num_people)]
        return [Choice(id=name, kind="swap_obj", is_right=int(name) < num_right) for name in names]

    assert accuracy(choices(5, 16)) == replace(accuracy(choices(1, 16)), num_choices=100)
    # Of two people one is wrong once: between the intervals of 20 and 19 of 20.
    one_wrong = [*choices(1, 20), *choices(1, 19)]
    assert accuracy(one_wrong).accuracy == pytest.approx(97.5)
    both = (accuracy(choices(1, 19)).interval[0], accuracy(choices(1, 20)).interval[1])
    assert accuracy(one_wrong).interval == both


def test_columns_of_results_are_correlated(tmp_path: Path) -> None:
    rows = ["model,imagenet,add_obj,swap_obj", "a,60,80,55", "b,70,85,60", "c,75,95,50", "d,80,97,62"]
    (tmp_path / "results.csv").write_text("\n".join(rows))
    told = measured("correlate", tmp_path / "results.csv", "--x=imagenet", f"--figure={tmp_path / 'figure.svg'}")
    assert "swap_obj: r = 0.26" in (tmp_path / "figure.svg").read_text()
    assert "add_obj" in told and "0.96" in told and "0.26" in told
    (added, swapped) = json.loads(told.splitlines()[-1])
    assert (added["column"], swapped["column"], swapped["num_models"]) == ("add_obj", "swap_obj", 4)
    assert swapped["r"] == pytest.approx(0.26, abs=0.005)
    assert swapped["interval"][0] < swapped["r"] < swapped["interval"][1]
    assert "lacks the columns 'top1'" in refused("correlate", tmp_path / "results.csv", "--x=top1")
    assert "results.csv:2: model: 'a' is not a number" in refused(
        "correlate", tmp_path / "results.csv", "--x=imagenet", "--column=model"
    )
    (tmp_path / "results.csv").write_text("\n".join(rows[:3]))
    assert "at least 3 rows" in refused("correlate", tmp_path / "results.csv", "--x=imagenet")
    (tmp_path / "results.csv").write_text("imagenet,add_obj\n60,1\n70,1\n75,1")
    assert "add_obj: a column of equal numbers" in refused("correlate", tmp_path / "results.csv", "--x=imagenet")


def test_judges_of_an_evaluation_are_correlated_as_far_as_they_have_the_scores(tmp_path: Path) -> None:
    scores = {"a": (60.0, 80.0), "b": (70.0, 85.0), "c": (75.0, 95.0)}
    results = [
        {"judge": judge, "benchmark": benchmark, "scores": {task: value}}
        for judge, pair in scores.items()
        for benchmark, task, value in (("elevater", "imagenet-1k", pair[0]), ("sugarcrepe", "add_obj", pair[1]))
    ]
    blind = {"judge": "Vera", "benchmark": "sugarcrepe", "scores": {"add_obj": 49.42, "swap_obj": 49.19}}
    (tmp_path / "results.json").write_text(json.dumps([blind, *results]))
    measured("correlate", tmp_path / "results.json", "--x=imagenet-1k", f"--output={tmp_path / 'table.md'}")
    assert "| add_obj | 0.93 |" in (tmp_path / "table.md").read_text()
    assert "no judge has scores of top1; there are add_obj, swap_obj, imagenet-1k" in refused(
        "correlate", tmp_path / "results.json", "--x=top1"
    )


def test_a_correlations_interval_is_that_of_the_textbook() -> None:
    x, y = np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.0, 4.0, 16.0, 64.0])
    assert correlation("y", x, y).r == pytest.approx(0.98088, abs=1e-5)
    assert correlation("y", x[:3], y[:3]).interval == (-1.0, 1.0)
    # tanh(artanh 0.98088 ± 1.96)
    assert correlation("y", x, y).interval == pytest.approx((0.3455, 0.9996), abs=1e-4)


def result(judge: str, benchmark: str, **scores: float) -> dict[str, Any]:
    sizes = {"replace_obj": 300, "replace_att": 100, "negate": 50}
    return {"judge": judge, "benchmark": benchmark, "scores": scores, "sizes": {kind: sizes[kind] for kind in scores}}


def test_gains_of_training_are_told_by_form_beside_the_control(tmp_path: Path) -> None:
    results = [
        result("clip", "rules", replace_obj=70.0, replace_att=50.0, negate=61.2),
        result("negclip", "rules", replace_obj=80.0, replace_att=64.0, negate=55.1),
        result("negclip", "refined", replace_att=51.0),
        result("clip", "refined", replace_att=51.5),
    ]
    (tmp_path / "results.json").write_text(json.dumps(results))
    told = numbers("gains", tmp_path / "results.json", "--control=clip", f"--output={tmp_path / 'table.md'}")
    assert [(one["judge"], one["benchmark"], one["form"], one["num_pairs"]) for one in told[:2]] == [
        ("clip", "rules", "replace", 400),
        ("clip", "rules", "negate", 50),
    ]
    gained = {(one["benchmark"], one["form"]): one["gain"] for one in told if one["judge"] == "negclip"}
    assert gained == pytest.approx({("rules", "replace"): 11, ("rules", "negate"): -6.1, ("refined", "replace"): -0.5})
    table = (tmp_path / "table.md").read_text()
    assert "| Model | rules REPLACE | rules NEGATE | refined REPLACE |" in table
    assert "| clip | 65.0 | 61.2 | 51.5 |" in table
    assert "| negclip | **76.0 (+11.0)** | 55.1 (-6.1) | 51.0 (-0.5) |" in table
    assert "| pairs | 400 | 50 | 100 |" in table
    assert "the control 'base' is none of clip, negclip" in refused(
        "gains", tmp_path / "results.json", "--control=base"
    )
    (tmp_path / "results.json").write_text(json.dumps([{**results[0], "scores": {"atomic": 1.0}, "sizes": {}}]))
    assert "none of these results is of pairs: rules" in refused("gains", tmp_path / "results.json", "--control=clip")
    (tmp_path / "results.json").write_text("{}")
    assert "results.json holds no results" in refused("gains", tmp_path / "results.json", "--control=clip")
