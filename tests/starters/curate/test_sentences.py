"""Sentences are read from text files and JSON lines."""

import gzip
from pathlib import Path

import pytest

from services.core.refusals import Refused
from starters.curate.sentences import read_sentences


def test_distinct_sentences_of_a_caption_s_length_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"A  dog runs.\n\nToo short\nA dog runs.\n{'long ' * 50}\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("Zwei Hunde — laufen\n".encode()))
    assert read_sentences([tmp_path / "a.txt", tmp_path / "b.txt.gz"], ()) == ["A dog runs.", "Zwei Hunde — laufen"]


def test_fields_of_json_lines_are_read_and_faults_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"premise": "A dog runs.", "hypothesis": "An animal runs."}\n\n{"premise": "A cat is here."}\n')
    assert read_sentences([path], ["premise", "hypothesis"]) == ["A dog runs.", "An animal runs.", "A cat is here."]
    with pytest.raises(Refused, match=r"a.jsonl:1: no text in text"):
        read_sentences([path], ["text"])
    path.write_text("A dog runs.")
    with pytest.raises(Refused, match=r"a.jsonl:1: not JSON"):
        read_sentences([path], ["text"])
    path.write_text("Too short")
    with pytest.raises(Refused, match="no sentence of 3 words or more"):
        read_sentences([path], ())
