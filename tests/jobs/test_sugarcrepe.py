"""Pairs of captions as files."""

from pathlib import Path

import pytest

from services.core.text_files import BadFile
from services.jobs.sugarcrepe import Pair, published_pairs, read_pairs, write_pairs, write_published
from tests.published_data import published

PAIRS = [
    Pair(id="a", kind="swap_att", filename="1.jpg", caption="a red hat", negative_caption="a hat, blue"),
    Pair(id="b", kind="negate", filename="2.jpg", caption="Ein Hut", negative_caption="kein Hut", made_by="rules"),
]


def test_pairs_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.jsonl", PAIRS)
    assert read_pairs(tmp_path / "pairs.jsonl") == PAIRS


@pytest.mark.parametrize("sign", ["\u2028", "\u0085", "\x0b", "\r"])
def test_a_caption_may_hold_a_sign_that_ends_lines_elsewhere(tmp_path: Path, sign: str) -> None:
    pairs = [PAIRS[0].model_copy(update={"caption": f"a red{sign}hat"}), PAIRS[1]]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    assert read_pairs(tmp_path / "pairs.jsonl") == pairs


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "1: not JSON .* it seems to be cut off"),
        ('{"id": "a"}', "1: kind: Field required"),
        ('{"id": "a", "kind": "swop", "filename": "1", "caption": "x", "negative_caption": "y"}', "1: kind: "),
        (PAIRS[0].model_dump_json(exclude_none=True)[:-1] + ', "score": 1}', "1: score: "),
        (PAIRS[0].model_dump_json() + "\n" + PAIRS[0].model_dump_json(), "2: id: 'a' was used before"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "pairs.jsonl").write_text(line)
    with pytest.raises(BadFile, match=complaint):
        read_pairs(tmp_path / "pairs.jsonl")


def test_the_published_form_is_read_again_with_all_seven_types(tmp_path: Path) -> None:
    write_published(tmp_path, PAIRS[:1])
    (pair,) = published_pairs(tmp_path)
    assert (pair.kind, pair.caption, pair.negative_caption) == ("swap_att", "a red hat", "a hat, blue")


def test_the_unrefined_pairs_of_the_authors_are_all_read() -> None:
    pairs = published_pairs(published("sugar-crepe/unrefined"))
    assert len(pairs) == 17_478
    assert len({pair.id for pair in pairs}) == len(pairs)
