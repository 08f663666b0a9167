"""Tasks that measure people: which caption is true of the image, and which of two negatives is better."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from services.curate.review.tasks import TASKS, compared
from services.curate.review.verdicts import BadDatabase, VerdictFile
from services.jobs.sugarcrepe import Pair
from tests.curate.review.conftest import Open
from tests.curate.review.reviews import PAIRS

CHOICE, GRAMMAR = TASKS["choice"], TASKS["grammar"]
FALSE = {pair.negative_caption for pair in PAIRS}


def many(kind: str, num: int) -> list[Pair]:
    return [Pair.model_validate({**PAIRS[0].model_dump(), "id": f"{kind}-{i}", "kind": kind}) for i in range(num)]


def turn(client: TestClient, reviewer: str) -> Any:
    return client.get("/review/turn", params={"reviewer": reviewer}).json()


def answer(client: TestClient, reviewer: str, id: str, verdict: str, round: int = 1) -> Any:
    body = {"reviewer": reviewer, "id": id, "verdict": verdict, "round": round}
    return client.post("/review/verdicts", json=body)


def exported(client: TestClient) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.get("/review/verdicts.jsonl").text.splitlines()]


def texts(shown: Any) -> dict[str, str]:
    return {one["role"]: "".join(text for text, _ in one["runs"]) for one in shown["pair"]["texts"]}


def test_whoever_chooses_by_reading_the_captions_is_recorded_as_right_with_the_order_that_was_shown(
    open_review: Open,
) -> None:
    client = open_review(CHOICE.items(PAIRS), task="choice", reviewers_per_pair=1)
    shown, seen = turn(client, "Anna"), {}
    while shown["pair"]:
        both = texts(shown)
        verdict = "second" if both["first"] in FALSE else "first"
        seen[shown["pair"]["id"]] = "negative_caption" if verdict == "second" else "caption"
        assert both.keys() == {"first", "second"}
        assert shown["pair"]["kind"] is None
        shown = answer(client, "Anna", shown["pair"]["id"], verdict).json()
    assert shown["stage"] == "done"
    assert {one["id"]: one["first"] for one in exported(client)} == seen
    assert {one["is_right"] for one in exported(client)} == {True}
    # Drawn for each pair, so that neither place is right for all.
    assert min(Counter(seen.values()).values()) >= 5


def test_whoever_chooses_wrongly_is_recorded_so_with_the_pairs_type(open_review: Open) -> None:
    client = open_review(PAIRS[:1], task="choice", reviewers_per_pair=1)
    wrong = "first" if texts(turn(client, "Anna"))["first"] in FALSE else "second"
    answer(client, "Anna", PAIRS[0].id, wrong)
    (line,) = exported(client)
    assert (line["kind"], line["is_right"], line["verdict"]) == ("replace_obj", False, wrong)


def test_two_negatives_of_a_caption_are_compared_without_their_image_or_their_source(open_review: Open) -> None:
    others = [
        PAIRS[0].model_copy(update={"id": "x", "caption": "a ginger cat looks past the camera", "kind": kind})
        for kind in ("replace_att", "swap_obj")
    ]
    others = [one.model_copy(update={"negative_caption": f"Of {one.kind}."}) for one in others]
    items = compared(PAIRS, others)
    assert [item.id for item in items] == ["chelsea-1", "chelsea-2"]  # of the same form as one of the others
    client = open_review(items[:1], task="grammar", reviewers_per_pair=1)
    shown = turn(client, "Anna")
    assert (shown["pair"]["filename"], shown["pair"]["problem"], shown["pair"]["kind"]) == (None, None, None)
    both = texts(shown)
    assert both.pop("caption") == PAIRS[0].caption
    assert {*both.values()} == {PAIRS[0].negative_caption, "Of replace_att."}
    first = "theirs" if both["first"] == "Of replace_att." else "ours"
    answer(client, "Anna", "chelsea-1", "first")
    (line,) = exported(client)
    assert {name: line[name] for name in ("form", "quality", "better", "first")} == {
        "form": "REPLACE", "quality": "grammar", "better": first, "first": first,
    }  # fmt: skip
    answer(client, "Anna", "chelsea-1", "tie")
    assert exported(client)[0]["better"] == "tie"


def test_a_measurement_has_one_round_and_shows_nobody_what_others_answered(open_review: Open) -> None:
    client = open_review(PAIRS[:1], task="choice")
    answer(client, "Anna", PAIRS[0].id, "first")
    done = answer(client, "Ben", PAIRS[0].id, "second").json()
    assert (done["stage"], done["pair"], done["num_disputed"]) == ("done", None, 0)
    client.get("/review/turn", params={"reviewer": "Ben", "second_round": True})
    refused = answer(client, "Ben", PAIRS[0].id, "first", round=2)
    assert (refused.status_code, refused.json()["error"]["message"]) == (422, "round: This review has one round.")
    assert client.get("/review/summary").json()["verdicts"] == {"first": 1, "second": 1}


@pytest.mark.parametrize(("task", "verdict"), [("choice", "tie"), ("choice", "valid"), ("validity", "first")])
def test_a_verdict_of_another_task_is_refused(open_review: Open, task: str, verdict: str) -> None:
    client = open_review(task=task)
    refused = answer(client, "Anna", PAIRS[0].id, verdict)
    assert refused.status_code == 422
    assert refused.json()["error"]["message"].startswith("verdict: This review's are ")
    assert client.get("/review/about").json() == {"task": task, "reviewers": []}


def test_a_sample_has_as_many_of_each_type_or_form_and_a_larger_one_holds_it() -> None:
    pairs = [*many("replace_obj", 40), *many("replace_att", 40), *many("swap_obj", 3)]
    ten, twenty = ([pair.id for pair in CHOICE.items(pairs, sample=num)] for num in (10, 20))
    assert {*ten} < {*twenty}
    kinds = [pair.kind for pair in CHOICE.items(pairs, sample=10)]
    assert Counter(kinds) == {"replace_obj": 10, "replace_att": 10, "swap_obj": 3}
    assert kinds[:10] != ["replace_obj"] * 10  # types are mixed
    assert Counter(pair.kind[:4] for pair in GRAMMAR.items(pairs, pairs, 10)) == {"repl": 10, "swap": 3}
    assert TASKS["validity"].items(pairs) == pairs


def test_a_database_of_one_task_is_not_taken_for_anothers(tmp_path: Path) -> None:
    VerdictFile(tmp_path / "v.sqlite", PAIRS, GRAMMAR).__exit__()
    with pytest.raises(BadDatabase, match=r"v.sqlite is a database, but one of --task grammar\."):
        VerdictFile(tmp_path / "v.sqlite", PAIRS, TASKS["commonsense"])


def test_verdicts_on_a_comparison_are_not_taken_for_ones_with_other_texts(open_review: Open, tmp_path: Path) -> None:
    items = compared(PAIRS[:1], PAIRS[:1])
    answer(open_review(items, task="grammar"), "Anna", PAIRS[0].id, "tie")
    open_review(items, task="grammar").close()
    other = [item.model_copy(update={"theirs": "Another."}) for item in items]
    with pytest.raises(BadDatabase, match="other captions"):
        open_review(other, task="grammar")
