"""The order in which reviewers get a pair, in both rounds, over HTTP."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.curate.review.conftest import Open
from tests.curate.review.reviews import PAIRS

FIRST, SECOND, THIRD = (pair.id for pair in PAIRS[:3])


def turn(client: TestClient, reviewer: str, **query: Any) -> tuple[str, str | None]:
    """The stage and the id of the pair that a reviewer sees."""
    return seen(client.get("/review/turn", params={"reviewer": reviewer, **query}))


def judge(client: TestClient, reviewer: str, id: str, verdict: str = "valid", **fields: Any) -> tuple[str, str | None]:
    body = {"reviewer": reviewer, "id": id, "verdict": verdict, "round": 1, **fields}
    return seen(client.post("/review/verdicts", json=body))


def undo(client: TestClient, reviewer: str, round: int = 1) -> tuple[str, str | None]:
    return seen(client.post("/review/undo", json={"reviewer": reviewer, "round": round}))


def seen(response: Any) -> tuple[str, str | None]:
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["stage"], answer["pair"] and answer["pair"]["id"]


def exported(client: TestClient) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.get("/review/verdicts.jsonl").text.splitlines()]


def judge_all(client: TestClient, reviewer: str, *verdicts: str) -> tuple[str, str | None]:
    for pair, verdict in zip(PAIRS, verdicts, strict=False):
        last = judge(client, reviewer, pair.id, verdict)
    return last


def test_each_pair_goes_to_as_many_reviewers_as_asked_and_to_nobody_twice(open_review: Open) -> None:
    client = open_review()
    assert judge_all(client, "Anna", "valid", "valid", "valid") == ("waiting", None)
    assert judge(client, "Ben", FIRST) == ("pair", SECOND)
    assert turn(client, "Carl") == ("pair", THIRD)  # Ben is shown the second
    assert judge(client, "Ben", SECOND) == ("waiting", None)  # Carl is shown the third
    assert judge(client, "Carl", THIRD) == ("done", None)


def test_a_pair_that_is_shown_to_enough_reviewers_waits_for_them_half_an_hour(open_review: Open) -> None:
    now = 0.0
    client = open_review(PAIRS[:1], reviewers_per_pair=1, clock=lambda: now)
    assert turn(client, "Anna") == ("pair", FIRST)
    now = 1799.0
    assert turn(client, "Ben") == ("waiting", None)
    now = 1800.0
    assert turn(client, "Ben") == ("pair", FIRST)
    assert judge(client, "Ben", FIRST) == ("done", None)
    late = client.post("/review/verdicts", json={"reviewer": "Anna", "id": FIRST, "verdict": "valid", "round": 1})
    assert (late.status_code, "needs no further verdict" in late.json()["error"]["message"]) == (409, True)


def test_a_pair_left_for_later_comes_back_after_the_others(open_review: Open) -> None:
    client = open_review()
    assert turn(client, "Anna", after=FIRST) == ("pair", SECOND)
    assert judge(client, "Anna", SECOND) == ("pair", THIRD)
    assert judge(client, "Anna", THIRD) == ("pair", FIRST)


def test_undo_goes_back_a_verdict_at_a_time_and_gives_the_note_back(open_review: Open) -> None:
    client = open_review()
    judge(client, "Anna", FIRST, note=" is it? ")
    judge(client, "Ben", FIRST)
    judge(client, "Anna", SECOND)
    assert undo(client, "Anna") == ("pair", SECOND)
    answer = client.post("/review/undo", json={"reviewer": "Anna", "round": 1}).json()
    assert (answer["pair"]["id"], answer["pair"]["note"], answer["can_undo"]) == (FIRST, "is it?", False)
    assert client.post("/review/undo", json={"reviewer": "Anna", "round": 1}).status_code == 409
    assert [one["reviewer"] for one in exported(client)] == ["Ben"]


def test_the_same_verdict_again_counts_once_and_another_replaces_it(open_review: Open) -> None:
    client = open_review()
    for verdict in ("valid", "valid", "unclear"):
        assert judge(client, "Anna", FIRST, verdict) == ("pair", SECOND)
    assert [(one["id"], one["verdict"]) for one in exported(client)] == [(FIRST, "unclear")]


def test_a_name_in_other_letters_is_the_same_reviewer(open_review: Open) -> None:
    client = open_review()
    judge(client, "Jürgen  Ä", FIRST)
    assert turn(client, " JU\u0308RGEN ä") == ("pair", SECOND)
    assert client.get("/review/about").json() == {"task": "validity", "reviewers": ["Jürgen Ä"]}


def test_the_first_round_shows_nothing_of_others_verdicts(open_review: Open) -> None:
    client = open_review()
    judge(client, "Anna", FIRST, "false_negative", note="secret")
    assert "secret" not in client.get("/review/turn", params={"reviewer": "Ben"}).text


def test_the_second_round_shows_disagreements_first_then_what_all_found_unclear(open_review: Open) -> None:
    client = open_review(PAIRS[:4])
    judge_all(client, "Anna", "unclear", "valid", "valid", "valid")
    assert judge_all(client, "Ben", "unclear", "false_negative", "valid", "unclear") == ("between", None)
    assert turn(client, "Ben", second_round=True) == ("pair", SECOND)
    fourth = PAIRS[3].id
    assert turn(client, "Ben", second_round=True, after=SECOND) == ("pair", fourth)
    assert turn(client, "Ben", second_round=True, after=fourth) == ("pair", FIRST)
    assert judge(client, "Ben", SECOND, "valid", round=2) == ("pair", fourth)
    # Anna need not look at the second any more, on which both agree now.
    assert turn(client, "Anna", second_round=True) == ("pair", fourth)
    assert judge(client, "Anna", fourth, "valid", round=2) == ("pair", FIRST)
    assert judge(client, "Anna", FIRST, "valid", round=2) == ("done", None)
    # Not Ben's last: that one was of the second pair.
    assert undo(client, "Ben", 2) == ("pair", SECOND)


def test_the_second_round_shows_the_verdicts_so_far_with_their_notes(open_review: Open) -> None:
    client = open_review(PAIRS[:1])
    judge(client, "Anna", FIRST, "valid", note="a dog")
    judge(client, "Ben", FIRST, "unclear")
    answer = client.get("/review/turn", params={"reviewer": "Carl", "second_round": True}).json()
    assert answer["pair"]["earlier"] == [
        {"reviewer": "Anna", "verdict": "valid", "round": 1, "note": "a dog"},
        {"reviewer": "Ben", "verdict": "unclear", "round": 1, "note": ""},
    ]


def test_the_last_verdict_of_the_first_round_can_be_undone_until_the_second_begins(open_review: Open) -> None:
    client = open_review(PAIRS[:1])
    judge(client, "Anna", FIRST, "valid")
    assert judge(client, "Ben", FIRST, "unclear") == ("between", None)
    assert undo(client, "Ben") == ("pair", FIRST)
    judge(client, "Ben", FIRST, "unclear")
    assert turn(client, "Ben", second_round=True) == ("pair", FIRST)
    assert client.post("/review/undo", json={"reviewer": "Ben", "round": 2}).status_code == 409


def test_agreement_is_of_the_first_round_and_disagreements_are_of_the_latest_verdicts(open_review: Open) -> None:
    client = open_review(PAIRS[:2])
    judge_all(client, "Anna", "valid", "valid")
    judge_all(client, "Ben", "valid", "unclear")
    before = client.get("/review/summary").json()
    assert (before["agreement"]["statistic"], before["agreement"]["kappa"]) == ("Cohen's kappa", 0.0)
    assert (before["num_complete"], before["num_disputed"]) == (2, 1)
    judge(client, "Ben", SECOND, "valid", round=2)
    after = client.get("/review/summary").json()
    assert after == {**before, "num_disputed": 0}
    assert after["verdicts"] == {"valid": 3, "false_negative": 0, "unclear": 1}
    assert after["reviewers"] == [{"name": "Anna", "num_judged": 2}, {"name": "Ben", "num_judged": 2}]


def test_the_export_has_a_line_for_each_pair_reviewer_and_round(open_review: Open) -> None:
    client = open_review(PAIRS[:1])
    judge(client, "Ben", FIRST, "unclear", note="„ja“")
    judge(client, "Anna", FIRST, "valid")
    judge(client, "Ben", FIRST, "valid", round=2)
    lines = exported(client)
    assert [(one["id"], one["reviewer"], one["verdict"], one["round"], one["note"]) for one in lines] == [
        (FIRST, "Anna", "valid", 1, ""),
        (FIRST, "Ben", "unclear", 1, "„ja“"),
        (FIRST, "Ben", "valid", 2, ""),
    ]
    assert all(one["judged_at"].endswith("+00:00") and len(one) == 6 for one in lines)


def test_more_reviewers_than_before_open_the_first_round_again(open_review: Open) -> None:
    client = open_review(PAIRS[:1], reviewers_per_pair=1)
    assert judge(client, "Anna", FIRST) == ("done", None)
    client = open_review(PAIRS[:1], reviewers_per_pair=2)
    assert turn(client, "Anna") == ("waiting", None)
    assert turn(client, "Ben") == ("pair", FIRST)


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        ({"id": "nosuch"}, 404, "There is no pair 'nosuch'."),
        ({"verdict": "maybe"}, 422, "verdict: "),
        ({"round": 3}, 422, "round: "),
        ({"reviewer": " "}, 422, "reviewer: A name has 1 to 64 printable characters."),
        ({"reviewer": "a\u202eb"}, 422, "reviewer: "),
        ({"reviewer": "x" * 65}, 422, "reviewer: "),
        ({"note": "x" * 2001}, 422, "note: "),
        ({"note": "\ud800"}, 422, "note: "),
        ({"id": "\ud800"}, 404, "There is no pair "),
        ({"verdikt": "valid"}, 422, "verdikt: "),
    ],
)
def test_a_bad_verdict_is_refused_by_its_field(
    open_review: Open, body: dict[str, Any], status: int, complaint: str
) -> None:
    client = open_review()
    sent = json.dumps({"reviewer": "Anna", "id": FIRST, "verdict": "valid", "round": 1, **body})
    response = client.post("/review/verdicts", content=sent, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["message"][: len(complaint)]) == (status, complaint)
    assert exported(client) == []


@pytest.mark.parametrize("seed", range(4))
def test_whatever_three_reviewers_do_each_pair_gets_two_verdicts_of_different_people(
    open_review: Open, seed: int
) -> None:
    drawn = random.Random(seed)
    client = open_review(PAIRS[:8])
    pairs = {name: turn(client, name)[1] for name in ("Anna", "Ben", "Carl")}
    while any(pairs.values()):
        name = drawn.choice([*pairs])
        shown, action = pairs[name], drawn.choice(["judge", "judge", "judge", "next", "undo"])
        if action == "undo" and client.get("/review/turn", params={"reviewer": name}).json()["can_undo"]:
            pairs[name] = undo(client, name)[1]
        elif action == "judge" and shown is not None:
            pairs[name] = judge(client, name, shown, drawn.choice(["valid", "unclear"]))[1]
        else:
            pairs[name] = turn(client, name, **({"after": shown} if shown else {}))[1]
        judges = Counter(one["id"] for one in exported(client))
        assert max(judges.values(), default=0) <= 2
    assert judges == {pair.id: 2 for pair in PAIRS[:8]}
