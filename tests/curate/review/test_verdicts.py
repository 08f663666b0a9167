"""The database of verdicts: what it refuses, and that a kill between any two writes loses nothing."""

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.curate.review.verdicts import BadDatabase, Verdict, VerdictFile
from services.jobs.sugarcrepe import Pair
from tests.curate.review.reviews import ENVIRONMENT, PAIRS

GIVEN = [
    Verdict(id=PAIRS[0].id, reviewer="Anna", verdict="valid", note="ja", judged_at="2026-11-25T10:00:00+00:00"),
    Verdict(id=PAIRS[1].id, reviewer="Anna", verdict="unclear", round=2, judged_at="2026-11-25T10:00:01+00:00"),
]


def stored(path: Path, pairs: list[Pair] = PAIRS) -> list[Verdict]:
    with VerdictFile(path, pairs) as file:
        return [*file.verdicts.values()]


def test_verdicts_are_read_in_the_order_in_which_they_were_given(tmp_path: Path) -> None:
    with VerdictFile(tmp_path / "new" / "v.sqlite", PAIRS) as file:
        for verdict in (*GIVEN, GIVEN[0].model_copy(update={"verdict": "unclear"})):
            file.put(verdict)
    assert [(one.id, one.verdict) for one in stored(tmp_path / "new" / "v.sqlite")] == [
        (GIVEN[1].id, "unclear"),
        (GIVEN[0].id, "unclear"),
    ]


def test_a_withdrawn_verdict_is_gone(tmp_path: Path) -> None:
    with VerdictFile(tmp_path / "v.sqlite", PAIRS) as file:
        for verdict in GIVEN:
            file.put(verdict)
        file.remove(GIVEN[0])
    assert stored(tmp_path / "v.sqlite") == GIVEN[1:]


def test_a_copy_of_the_file_alone_has_every_verdict_while_it_is_open(tmp_path: Path) -> None:
    with VerdictFile(tmp_path / "v.sqlite", PAIRS) as file:
        for number, verdict in enumerate(GIVEN, 1):
            file.put(verdict)
            (tmp_path / "copy.sqlite").write_bytes((tmp_path / "v.sqlite").read_bytes())
            assert stored(tmp_path / "copy.sqlite") == GIVEN[:number]


@pytest.mark.process
def test_verdicts_that_were_acknowledged_survive_a_kill_at_once(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from services.curate.review.verdicts import Verdict, VerdictFile
from tests.curate.review.reviews import PAIRS
file = VerdictFile(Path({str(tmp_path / "v.sqlite")!r}), PAIRS)
for pair in PAIRS:
    file.put(Verdict(id=pair.id, reviewer="Anna", verdict="valid", judged_at="now"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [one.id for one in stored(tmp_path / "v.sqlite")] == [pair.id for pair in PAIRS]


def test_a_second_process_is_refused_while_the_first_has_the_file(tmp_path: Path) -> None:
    assert stored(tmp_path / "v.sqlite") == []
    with VerdictFile(tmp_path / "v.sqlite", PAIRS), pytest.raises(BadDatabase, match="is in use by another process"):
        VerdictFile(tmp_path / "v.sqlite", PAIRS)


def other_captions(pair: Pair) -> list[Pair]:
    return [pair.model_copy(update={"negative_caption": "Another."}), *PAIRS[1:]]


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [(PAIRS[1:], "has no pair of that id"), (other_captions(PAIRS[0]), "has other captions for it")],
)
def test_verdicts_on_other_pairs_are_not_taken_for_these(tmp_path: Path, pairs: list[Pair], complaint: str) -> None:
    with VerdictFile(tmp_path / "v.sqlite", PAIRS) as file:
        file.put(GIVEN[0])
    with pytest.raises(BadDatabase, match=f"a verdict on 'chelsea-1', but the file of pairs {complaint}"):
        VerdictFile(tmp_path / "v.sqlite", pairs)
    assert stored(tmp_path / "v.sqlite") == GIVEN[:1]  # it is closed and unharmed


def test_pairs_may_be_added_to_those_that_are_judged(tmp_path: Path) -> None:
    with VerdictFile(tmp_path / "v.sqlite", PAIRS[:1]) as file:
        file.put(GIVEN[0])
    assert stored(tmp_path / "v.sqlite", PAIRS) == GIVEN[:1]


def make_foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE verdicts (id TEXT)")
    connection.close()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: path.write_text(json.dumps({"id": 1}) * 100), "can't be opened as a database"),
        (lambda path: path.mkdir(), "can't be opened as a database"),
        (make_foreign, "not one of verdicts"),
    ],
)
def test_another_file_is_refused_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], object], complaint: str
) -> None:
    path = tmp_path / "other"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(BadDatabase, match=complaint):
        VerdictFile(path, PAIRS)
    assert (path.read_bytes() if path.is_file() else None) == before
