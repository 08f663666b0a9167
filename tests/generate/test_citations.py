"""Citations: an answer's sentences, and how they share their attention among documents."""

import pytest

from services.generate.citations import attention_shares, sentences


def texts(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", []),
        ("quiet otter", ["quiet otter"]),
        ("It was built in 1931. Ada kept it! Who else?", ["It was built in 1931.", "Ada kept it!", "Who else?"]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("- the harbour\n\n - the island", ["- the harbour", "- the island"]),
        ("灯台守はエイダ。港は島にある。", ["灯台守はエイダ。", "港は島にある。"]),
        (
            "Dr. Ada J. Stone kept 3.5 of them, e.g. the old one.",
            ["Dr. Ada J. Stone kept 3.5 of them, e.g. the old one."],
        ),
        ("No one knows ... or so they say.", ["No one knows ... or so they say."]),
    ],
)
def test_a_text_has_the_sentences_that_a_reader_sees(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


@pytest.mark.parametrize("text", ["." * 100_000, " " * 100_000, "\n" * 100_000, '."' * 50_000, "a.\n " * 30_000])
def test_no_text_takes_long_to_be_split(text: str) -> None:
    assert len(texts(text)) <= 30_000


def test_documents_share_what_a_sentence_pays_them_above_the_bias_of_their_places() -> None:
    attention = [(0.5, 0.2, 0.1), (0.3, 0.4, 0.1)]
    assert attention_shares(attention, (0.1, 0.2, 0.3)) == pytest.approx([0.75, 0.25, 0.0])


def test_nothing_is_shared_where_nothing_is_above_the_bias() -> None:
    assert attention_shares([(0.1, 0.2)], (0.1, 0.3)) == [0.0, 0.0]
    assert attention_shares([], (0.1, 0.3)) == [0.0, 0.0]
