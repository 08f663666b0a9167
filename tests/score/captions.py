"""Captions that people wrote, and unnatural ones."""

import ast
import csv
import json
from pathlib import Path

from hypothesis import strategies as st

from tests.published_data import published

GOLDEN_FILE = Path(__file__).parents[1] / "goldens" / "fsc_text_negatives.json"

HOSTILE = {
    "empty": "",
    "blank": " \n\t ",
    "one letter": "a",
    "endless word": "x" * 1_000_000,
    "endless text": "a dog on a mat " * 70_000,
    "commas": "," * 10_000,
    "contractions": "n't" * 5_000,
    "apostrophes": "a'" * 5_000,
    "hyphens": "a-" * 5_000,
    "numbers": "1.2:3/" * 5_000,
    "emoji": "a 🐕 on a 🛹 👨‍👩‍👧‍👦 in 🇫🇷 🏳️‍🌈 next to a 🐈",
    "right to left": "كلب صغير على يسار قطة كبيرة ‏ שלום עולם",
    "combining": "कुत्ता बिल्ली के पास e\u0301 a\u0308\u0323",
    "lone surrogates": "a \ud800 dog left of a \udfff cat \ud800\ud800",
    "new lines": "\n\na dog\n\non\r\na\u2028mat\x00\x1b[31m and a cat\n",
    "fullwidth": "ａ ｄｏｇ on a ﬁsh",
    "only punctuation": "... --- !!! ??? ' \" ( [ {",
    "same words": "dog dog dog dog dog dog",
    "all relations": "left of right of above below on top of " * 50,
}

# mostly words that the rules know, in any order, with all kinds of white space and marks between
_WORDS_TEXT = """
a an the two three A Two small red Blue dog dogs cat circle squares umbrella man woman riding is are was sits sit
parked on in left right of above next to behind front with and very quickly that there ’s n't don't it his 3 1.5
, . ! " ' - ( ) 🐕 é ﷺ TABLE I Paris background photo couple
"""
WORDS = [*_WORDS_TEXT.split(), "", "\n", "\t"]
captions = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join) | st.text(max_size=60)


def aro_negatives() -> dict[str, list[str]]:
    """Captions of COCO with the NegCLIP negatives that ARO's authors made of each."""
    with published("aro/valid_neg_clip.tsv").open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t")
        return {row["title"]: ast.literal_eval(row["neg_caption"]) for row in rows}


def sugarcrepe_captions() -> list[str]:
    """The true captions of SugarCrepe."""
    texts = []
    for file in sorted(published("sugar-crepe/refined").glob("*.json")):
        texts += [record["caption"] for record in json.loads(file.read_text(encoding="utf-8")).values()]
    return list(dict.fromkeys(texts))
