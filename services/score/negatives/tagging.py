"""Penn tags of a caption's words: the most frequent tag in a lexicon, a guess from the ending, then context rules.

The lexicon is the one in the TextBlob package (94,000 words of Brill's tagger with their most frequent tags). It is
read as a file, because importing the package imports NLTK and SciPy, which takes seconds and 90 MB.
"""

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.score.negatives.inflection import verb_form

PUNCTUATION_TAGS = frozenset((".", ",", ":", "``", "''", "(", ")", "-LRB-", "-RRB-", "HYPH", "NFP"))
# Marks that may stand between an article and its word; a straight quotation mark is tagged as a closing one.
OPENING_TAGS = frozenset(("``", "''", "(", "-LRB-"))
_MARKS = {
    **dict.fromkeys(".!?", "."),
    **dict.fromkeys(";:-–—…", ":"),
    **dict.fromkeys("([{", "("),
    **dict.fromkeys(")]}", ")"),
    **dict.fromkeys("\"”’'»", "''"),
    **dict.fromkeys("“„‘«`", "``"),
    ",": ",",
    "&": "CC",
    "#": "SYM",
    "$": "SYM",
    "%": "NN",
    "*": "SYM",
    "+": "SYM",
    "/": "SYM",
    "=": "SYM",
    "@": "SYM",
}
_CLITICS = {"'s": "POS", "n't": "RB", "'re": "VBP", "'ve": "VBP", "'ll": "MD", "'d": "MD", "'m": "VBP"}
# Words of captions that are missing from the lexicon, or have other tags there because it is based on newspapers.
_OWN_TEXT = """
hydrant:NN oven:NN tub:NN donut:NN bathtub:NN christmas:NNP remote:NN sheep:NNS deer:NNS sunglasses:NNS skiis:NNS
bear:NN bears:NNS sink:NN sinks:NNS monitor:NN curb:NN smartphone:NN selfie:NN hotdog:NN teddy:NN giraffe:NN zebra:NN
skateboard:NN surfboard:NN snowboard:NN skateboarding:VBG snowboarding:VBG surfing:VBG skiing:VBG flatbed:NN mirror:NN
mirrors:NNS sprinkles:NNS pepperoni:NN macaroni:NN pasta:NN parked:VBN topped:VBN circle:NN circles:NNS square:NN
squares:NNS triangle:NN triangles:NNS star:NN stars:NNS cross:NN crosses:NNS ring:NN rings:NNS cube:NN cubes:NNS
diamond:NN heart:NN striped:JJ checkered:JJ dotted:JJ spotted:JJ lime:JJ navy:JJ lavender:JJ cyan:JJ teal:JJ beige:JJ
ski:NN giant:JJ front:NN top:NN bottom:NN back:NN left:VBN next:JJ motorbike:NN kite:NN kites:NNS frisbee:NN
tracks:NNS leaves:NNS geese:NNS oxen:NNS bikes:NNS zebras:NNS utensils:NNS stand:NN stop:NN match:NN light:NN
nearby:JJ overhead:JJ plain:JJ snowy:JJ fenced:JJ wooded:JJ tiled:JJ flowered:JJ sized:JJ haired:JJ colored:JJ
drinking:VBG cooking:VBG petting:VBG reading:VBG eating:VBG skating:VBG hiking:VBG fishing:VBG bathing:VBG set:NN
"""
# Actions of people and animals in pictures. In newspapers these words are usually nouns.
_ACTS_TEXT = """
attempt bark bow camp chat cheer climb cook crawl cross crowd cry cut dance dive drift drink drive fight fish float fly
gather glow graze grin hang hike hug jump kick kiss laugh lay lean leap look march mill paddle pass pet play point pose
post pull push race relax rest ride roll run rush scramble share shine show sit skate ski sleep smile sniff splash
stand stare step stick stretch surf surround swim swing talk tie toss touch trot use visit wade wait walk wander wash
watch wave wind work yawn
"""
# -ing words that stand before a noun like nouns
_GERUNDS = frozenset(("living", "dining", "parking", "cutting", "wedding", "baking", "swimming", "washing", "shopping"))
_BE = frozenset(("is", "are", "was", "were", "be", "been", "being", "am", "'s", "'re"))
_PLACE_WORDS = frozenset(("to", "left", "right", "close", "next", "past", "up", "down", "off", "out", "away"))
_NOMINAL = ("NN", "NNS", "NNP", "NNPS")
_BEFORE_NOUN = frozenset(("DT", "JJ", "JJR", "JJS", "PRP$", "CD", "POS", "PDT"))
ACTS = frozenset(_ACTS_TEXT.split())
_ACTS_S = frozenset(verb_form(verb, "VBZ") for verb in ACTS)


class Tagger:
    """Tags the words of one caption at a time."""

    def __init__(self, lexicon: Mapping[str, str]) -> None:
        self._lexicon = {**lexicon, **dict(entry.split(":") for entry in _OWN_TEXT.split())}

    def tags(self, words: Sequence[str]) -> list[str]:
        """Return a tag for each word of a caption."""
        letters = [word for word in words if word[:1].isalpha()]
        # in titles and all-capital captions, a capital does not indicate a name
        names = 2 * sum(word[:1].isupper() for word in letters) <= len(letters)
        starts = True
        tags = []
        for word in words:
            tag = self._usual(word, may_be_name=names and not starts)
            tags.append(tag)
            starts = tag == "." or (starts and tag in PUNCTUATION_TAGS)
        return _by_neighbours([word.lower().replace("’", "'") for word in words], tags)

    def _usual(self, word: str, *, may_be_name: bool) -> str:
        if word in _MARKS or not any(map(str.isalnum, word)):
            return _MARKS.get(word) or ("." if word[:1] == "." else "SYM")
        lowered = word.lower().replace("’", "'")
        if lowered in _CLITICS:
            return _CLITICS[lowered]
        is_shouted = word.isupper() and lowered in self._lexicon
        if may_be_name and word[:1].isupper() and len(word) > 1 and not is_shouted:
            return self._lexicon.get(word) or "NNP"
        found, named = self._lexicon.get(lowered), self._lexicon.get(word.capitalize())
        if found is None and named is None:
            return _by_ending(lowered)
        tag = found or named or ""
        if tag.startswith("NNP") and not (found is None and word[:1].isupper()):
            return "NNS" if _is_plural(lowered) else "NN"  # a name in newspapers, but not written as one
        return tag


def textblob_lexicon() -> dict[str, str]:
    """Words and their most frequent tags, from the installed TextBlob package. Raises ModuleNotFoundError."""
    package = importlib.util.find_spec("textblob")
    if package is None or package.submodule_search_locations is None:
        raise ModuleNotFoundError("hard negatives need a tagger: pip install textblob (or spacy with en_core_web_sm)")
    return _lexicon(Path(package.submodule_search_locations[0]) / "en" / "en-lexicon.txt")


@functools.cache
def _lexicon(file: Path) -> dict[str, str]:
    rows = (line.split(" ", 2) for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith(";;;"))
    return {row[0]: row[1] for row in rows if len(row) > 1}


def _is_plural(word: str) -> bool:
    return word.endswith("s") and not word.endswith(("ss", "us", "is"))


def _by_ending(word: str) -> str:
    """Guess the tag of a word that is in no lexicon."""
    if word[0].isdigit():
        return "CD"
    if "-" in word or word.endswith(("able", "ible", "ful", "less", "ous", "ish", "ive", "tic", "al")):
        return "JJ"
    for ending, tag in (("ing", "VBG"), ("ly", "RB"), ("ed", "VBN")):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return tag
    return "NNS" if _is_plural(word) else "NN"


def _by_neighbours(words: Sequence[str], tags: list[str]) -> list[str]:
    """Change the usual tags where neighbouring words require it, from left to right."""
    for place, word in enumerate(words):
        tag = tags[place]
        before = tags[place - 1] if place else ""
        after = tags[place + 1] if place + 1 < len(tags) else ""
        word_before = words[place - 1] if place else ""
        word_after = words[place + 1] if place + 1 < len(words) else ""
        if word in _PLACE_WORDS:
            tags[place] = _place_word(word, tag, before, after, word_after)
        elif tag.startswith("V") or tag == "MD":
            tags[place] = _verb(word, tag, before, after, tags[place - 2] if place > 1 else "")
        elif tag in _NOMINAL:
            tags[place] = _noun(word, tag, before, after, word_before)
        elif tag in ("JJ", "RB") and before in ("DT", "PRP$") and word != "other":
            # "in the dark", "an orange on a plate"
            goes_on = after in _NOMINAL or after in _BEFORE_NOUN or after.startswith(("V", "RB", "CC", ","))
            tags[place] = tag if goes_on else "NN"
        elif word == "that" and tag == "IN":
            tags[place] = "WDT" if before in _NOMINAL else "DT" if before in ("", "IN") else tag
        elif tag == "POS" and before in ("PRP", "EX", "WP", "WDT"):
            tags[place] = "VBZ"
    return tags


def _place_word(word: str, tag: str, before: str, after: str, word_after: str) -> str:
    opens_noun = after in _BEFORE_NOUN or after in _NOMINAL or after == "PRP"
    if word == "to":
        return "IN" if opens_noun else "TO"
    if word in ("left", "right"):
        if before in ("DT", "PRP$"):
            return "JJ" if after in _NOMINAL else "NN"
        return "RB" if word_after == "of" else tag
    if word in ("close", "next"):
        if word_after == "to":
            return "RB"
        return "NN" if word == "close" and before == "DT" else "JJ" if opens_noun else "RB"
    if word == "past":
        return "IN" if after in ("DT", "PRP$") else tag
    return "IN" if opens_noun else "RP" if tag in ("RB", "RP", "IN") else tag


def _verb(word: str, tag: str, before: str, after: str, before_that: str) -> str:
    in_phrase = before in _BEFORE_NOUN or before == "IN"
    # "a glass stand": the verb of a single thing would end in s
    is_second = before == "NN" and after not in ("DT", "PRP$", "IN", "TO", "RB") and before_that != "CC"
    if tag in ("VB", "VBP", "MD") and (in_phrase or (tag != "MD" and is_second)) and word not in _BE:
        return "NN"
    if tag == "VBZ" and in_phrase and before != "IN" and word not in _BE and word not in ("has", "does"):
        return "NNS"
    if tag == "VBG" and after in _NOMINAL and (before in _BEFORE_NOUN or word in _GERUNDS):
        return "NN" if word in _GERUNDS else "VBG"
    if tag in ("VBN", "VBD") and before in _BEFORE_NOUN and after in _NOMINAL:
        return "JJ"
    return tag


def _noun(word: str, tag: str, before: str, after: str, word_before: str) -> str:
    follows = after in ("DT", "PRP$")
    if tag == "NN" and word.endswith("ing") and (word_before in _BE or (before in _NOMINAL and follows)):
        return "VBG"
    # "a man rides a horse": a plural would not be followed by an article
    if tag == "NNS" and before in ("NN", "NNP", "PRP") and (follows or (word in _ACTS_S and after not in _NOMINAL)):
        return "VBZ"
    if tag == "NN" and before in ("NNS", "PRP", "WP", "WDT") and word in ACTS and after not in _NOMINAL:
        return "VBP"
    return tag
