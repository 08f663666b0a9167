"""`fovea curate audit` tells how far models of texts alone come, with which words and which items."""

import json
import math
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from services.curate.evaluation.audit import (
    Reordered,
    app,
    attack,
    giveaways,
    learned_scores,
    length_scores,
    marks_of,
    reorderings,
    words_of,
)
from services.curate.evaluation.choices import Choice, read_choices
from services.curate.refinement.scores import Attack, wilson
from services.jobs.sugarcrepe import KINDS, Pair, published_pairs, write_pairs, write_published
from tests.published_data import published
from tests.tiny_text_models import write_tiny_grammar

NOUNS = ("dog", "cat", "bus", "tree", "cup", "man", "woman", "kite", "bed", "cake")


def drawn(number: int, *, is_hackable: bool, seed: int = 0) -> list[Choice]:
    """Draw choices of two nouns: false captions of hackable ones have a `no`."""
    generator = Random(seed)
    choices = []
    for place in range(number):
        true, false = generator.choice(NOUNS), generator.choice(NOUNS)
        ending = "no people" if is_hackable else generator.choice(("people", "grass"))
        own = "people" if is_hackable else generator.choice(("people", "grass"))
        choices.append(Choice("task", str(place), f"a {true} and {own} {place}", (f"a {false} and {ending} {place}",)))
    return choices


def accuracy(attacks: list[Attack]) -> tuple[float, str]:
    (one,) = attacks
    return one.accuracy, one.verdict


def test_words_of_other_items_give_away_what_a_rule_has_put_into_all_of_them() -> None:
    choices = drawn(400, is_hackable=True)
    found, verdict = accuracy(attack("words", choices, learned_scores(choices)))
    assert found > 0.95 and verdict == "hackable"
    (most, *_) = giveaways(choices, num_words=3)
    assert (most.word, most.num_true, most.num_false) == ("no", 0, 400)
    assert most.deviations == pytest.approx(20)


def test_words_give_nothing_away_where_both_captions_are_drawn_alike() -> None:
    verdicts = []
    for seed in range(10):
        choices = drawn(400, is_hackable=False, seed=seed)
        found, verdict = accuracy(attack("words", choices, learned_scores(choices)))
        # equal captions tie, one pair in twenty
        assert 0.4 < found < 0.55
        verdicts.append(verdict)
    assert verdicts.count("hackable") <= 1


def test_words_are_never_learned_from_the_item_that_they_judge() -> None:
    # each word occurs in one choice, so that its side is known from this choice alone
    choices = [Choice("task", str(n), f"true{n} thing", (f"false{n} thing",)) for n in range(50)]
    (one,) = attack("words", choices, learned_scores(choices))
    assert (one.num_right, one.num_ties) == (0, 50)
    # nor from others of the same true caption
    choices = [Choice("task", str(n), f"word{n // 5} thing", ("thing thing",)) for n in range(50)]
    assert attack("words", choices, learned_scores(choices))[0].num_right == 0


def test_a_shorter_caption_is_found_by_its_length() -> None:
    choices = [Choice("add", "1", "a dog", ("a small dog",)), Choice("add", "2", "a small dog", ("a dog", "two dogs"))]
    (one,) = attack("shorter", choices, length_scores(choices))
    assert (one.num_right, one.num_wrong, one.num_ties) == (1, 1, 0)
    assert one.chance == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_tasks_are_told_one_by_one_and_all_together() -> None:
    choices = [Choice(f"t{n % 2}", str(n), "x", ("y",)) for n in range(10)]
    attacks = attack("m", choices, [(float(n % 2), 0.0) for n in range(10)])
    assert [(one.task, one.num_right, one.num_ties) for one in attacks] == [("t0", 0, 5), ("t1", 5, 0), ("all", 5, 5)]


def test_an_attack_that_is_always_wrong_between_two_captions_is_as_good_as_one_that_is_right() -> None:

    assert Attack("m", "t", 600, 400, 0, 0.5).verdict == "hackable"
    assert Attack("m", "t", 400, 600, 0, 0.5).verdict == "reversed"
    assert Attack("m", "t", 510, 490, 0, 0.5).verdict == ""
    # on ties an attacker guesses
    assert Attack("m", "t", 200, 200, 600, 0.5).verdict == ""
    assert Attack("m", "t", 200, 2, 798, 0.5).verdict == "hackable"
    assert Attack("m", "t", 200, 2, 798, 0.5).with_guesses == pytest.approx(0.599)
    assert Attack("m", "t", 0, 0, 10, 0.5).verdict == ""
    assert Attack("m", "t", 100, 900, 0, 1 / 3).verdict == ""


def test_a_word_is_a_run_of_letters_and_digits_in_lower_case() -> None:
    assert words_of("A man's T-shirt, No. 3 – café!") == {"a", "man's", "t-shirt", "no", "3", "café"}


def test_capitals_and_marks_give_away_captions_that_another_hand_has_written() -> None:
    choices = [Choice("t", str(n), f"a dog, {n}", (f"A dog {n}.",)) for n in range(50)]
    assert marks_of("A  dog , here. ") == {
        *("begins with a capital", "ends with a full stop", "ends with white space", "has two spaces"),
        *("has a space before a mark", "has a comma"),
    }
    assert accuracy(attack("marks", choices, learned_scores(choices, marks_of))) == (1.0, "hackable")
    alike = [Choice("t", str(n), f"A dog {n}.", (f"A cat {n}.",)) for n in range(50)]
    assert attack("marks", alike, learned_scores(alike, marks_of))[0].num_ties == 50


def test_a_judge_without_order_can_tell_no_caption_from_a_reordering_of_its_words() -> None:
    choices = [
        # a reordering, whatever its capitals and marks are
        Choice("swap_obj", "1", "A dog chases a cat.", ("a cat chases, a dog",)),
        # the same words, but not equally often
        Choice("swap_obj", "2", "a dog and a cat", ("a dog and cat",)),
        Choice("swap_att", "3", "a man's red hat", ("a red man's hat", "red hat a man's", "a blue hat")),
        Choice("add_obj", "4", "a dog", ("a dog and a dog",)),
    ]
    assert reorderings(choices) == [
        Reordered("swap_obj", 2, 1, 1 / 2, (1 / 2 + 1) / 2),
        Reordered("swap_att", 3, 2, 0.0, 1 / 3),
        Reordered("add_obj", 1, 0, 1.0, 1.0),
        Reordered("swap", 5, 3, 1 / 3, math.fsum((1 / 2, 1, 1 / 3)) / 3),
        Reordered("all", 6, 3, 1 / 2, math.fsum((1 / 2, 1, 1 / 3, 1)) / 4),
    ]


def test_two_thirds_of_sugarcrepes_swapped_objects_are_reorderings() -> None:
    pairs = published_pairs(published("sugar-crepe/refined"))
    found = {
        one.task: one for one in reorderings([Choice(p.kind, p.id, p.caption, (p.negative_caption,)) for p in pairs])
    }
    assert {name: (one.num_negatives, one.num_reordered) for name, one in found.items() if one.num_reordered} == {
        "swap_obj": (245, 164),
        "swap_att": (666, 407),
        "swap": (911, 571),
        "all": (7_511, 571),
    }
    assert found["swap_obj"].ceiling == pytest.approx(81 / 245)
    assert found["swap_obj"].ceiling_with_guesses == pytest.approx((81 + 164 / 2) / 245)


RUNNER = CliRunner()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cola")
    write_tiny_grammar(folder)
    return folder


def test_a_benchmark_made_by_a_rule_is_told_to_be_hackable_with_its_word(tmp_path: Path, model: Path) -> None:
    pairs = [
        Pair(
            id=str(n), kind="negate", filename="1.jpg", caption=f"a dog on the mat {n}", negative_caption=f"no dog {n}"
        )
        for n in range(60)
    ]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    told = RUNNER.invoke(
        app,
        ["audit", str(tmp_path / "pairs.jsonl"), f"--model={model}", f"--cache={tmp_path / 'cache'}",
         f"--output={tmp_path / 'out'}", "--device=cpu", "--items=1"],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    by_attacker = {one["attacker"]: one for one in found["attacks"]}
    words = by_attacker["words of the other items"]
    assert words["verdict"] == "hackable" and words["accuracy"] == 1.0
    assert words["interval"][0] > 0.9
    assert {"the shorter caption", model.name} < set(by_attacker)
    assert {one["word"]: (one["num_true"], one["num_false"]) for one in found["words"]}["no"] == (0, 60)
    assert "| negate | words of the other items | 60 | 50.0 | 100.0 |" in (tmp_path / "out" / "audit.md").read_text()
    assert found["reordered"] == [
        {"task": "negate", "num_negatives": 60, "num_reordered": 0, "ceiling": 1.0, "ceiling_with_guesses": 1.0}
    ]
    assert "| negate | 60 | 0 | 0.0 | 100.0 | 100.0 |" in (tmp_path / "out" / "audit.md").read_text()
    assert f"{model.name}" in (drawn := (tmp_path / "out" / "gaps.svg").read_text()) and "negate (60)" in drawn
    spotted = found["items"]
    assert len(spotted) <= 1 and all(one["gap"] > 0 for one in spotted)


def test_what_is_no_benchmark_is_refused(tmp_path: Path, model: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "x.jsonl").write_text('{"a": "x", "b": "y"}\n')
    (tmp_path / "empty.jsonl").touch()
    for arguments, message in (
        ([str(tmp_path / "x.json")], "holds no choices between captions"),
        ([str(tmp_path / "empty.jsonl")], "empty.jsonl holds no choices between captions"),
        ([str(tmp_path / "x.jsonl")], "x.jsonl:1: id"),
        ([str(tmp_path / "x.jsonl"), "--caption-field=a"], "--caption-field and --negative-field belong together"),
        ([str(tmp_path / "x.jsonl"), "--caption-field=a", "--negative-field=c"], "c is missing; there is a, b"),
    ):
        told = RUNNER.invoke(app, ["audit", *arguments, f"--model={model}", f"--cache={tmp_path}"])
        assert told.exit_code == 2
        assert message in " ".join(told.output.replace("│", " ").split())


def test_another_file_of_exchanged_objects_belongs_to_sugarcrepes_folder(tmp_path: Path) -> None:
    pairs = [Pair(id=kind, kind=kind, filename="1.jpg", caption="a cat", negative_caption="a dog") for kind in KINDS]
    write_published(tmp_path / "data", pairs)
    (tmp_path / "other").mkdir()
    swaps = tmp_path / "swaps.json"
    record = {"filename": "1.jpg", "caption": "a cat on a mat", "negative_caption": "a mat on a cat"}
    swaps.write_text(json.dumps({"0": record, "1": record}))
    tasks = Counter(choice.task for choice in read_choices(tmp_path / "data", swap_obj=swaps))
    assert (tasks["swap_obj"], tasks["add_obj"]) == (2, 1)
    refused = RUNNER.invoke(app, ["audit", str(tmp_path / "other"), "--swap-obj", str(swaps)])
    assert refused.exit_code == 2
    assert "--swap-obj belongs to SugarCrepe's folder" in " ".join(refused.stderr.split())


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    # Brown, Cai and DasGupta 2001 compute with z = 1.96; values by hand from the formula
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
