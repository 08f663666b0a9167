"""WordNet's replacements of a word: its opposites, and words of the same or a neighbouring category.

Follows SugarCrepe's replacements as drawn by the released code of FSC-CLIP: antonyms, co-hyponyms (other kinds of the
same parent) and cousin co-hyponyms (kinds of the parent's siblings), weighted by their frequencies in WordNet's tagged
texts. Adjectives are not in such a tree and are looked up through the nouns derived from them. Differences to that
code: the weight includes the share of the word's sense in its use; names and insulting words are left out, and so are
the word's own synonyms, hypernyms and hyponyms in any sense, with which the caption would remain true. Left out are
also rare senses, words that occur in no tagged text where there are enough others, and of verbs the cousins and those
with a particle.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from zlib import crc32

from services.score.negatives.inflection import inflected
from services.score.negatives.lexicon import Candidates
from services.score.negatives.wordnet import Pos, Synset, WordNet

# number of replacements of a word that are kept, the most frequent ones; below, sizes of the caches
MAX_CANDIDATES = 64
_KEPT_WORDS = 8_192
_KEPT_NOTIONS = 2_048
_KEPT_JUDGEMENTS = 32_768
# rarer senses of a word are unlikely in captions
_MAX_SENSES = 6
# some senses have thousands of hyponyms: no more than this are used
_MAX_KINDS = 2_000
# above this depth in the tree of nouns the categories are too general: a person and a place would be cousins
_MIN_DEPTH = 5
# an opposite is certainly not true; a cousin may be
_ANTONYM_WEIGHT = 10
# parts of WordNet's definitions of insults and of words that do not occur in captions
_INDECENT = (
    *("offensive", "disparag", "derogat", "slur", "obscen", "vulgar", "contemptuous", "insult", "profan", "stupid"),
    *("sexual", "genital", "prostitut", "copulat", "excre", "feces", "urin", "semen", "intercourse", "term of abuse"),
    *("racial", "ethnic", "slave", "dislike", "lacks good judgment", "foolish"),
)
# words that are not in any tagged text are rare
_RARE_WEIGHT = 0.05
# and are used only where fewer others than this can replace a word
_MIN_USUAL = 5
# share of a word's uses below which a sense of it is unlikely in captions
_MIN_SHARE = 0.1
_PLAIN = re.compile(r"[a-z]+(?:[_-][a-z]+)?")
_POS: dict[str, Pos] = {
    **dict.fromkeys(("NN", "NNS"), "n"),
    **dict.fromkeys(("VB", "VBD", "VBG", "VBN", "VBP", "VBZ"), "v"),
    **{"JJ": "a", "RB": "r"},
}


class WordNetLexicon:
    """Replacements of nouns, verbs, adjectives and adverbs, in the form of the word to be replaced."""

    def __init__(self, wordnet: WordNet) -> None:
        self.wordnet = wordnet
        self.candidates = lru_cache(_KEPT_WORDS)(self._candidates)
        self._kinds = lru_cache(_KEPT_NOTIONS)(self._words_below)
        self._is_decent = lru_cache(_KEPT_JUDGEMENTS)(self._is_decent_word)

    def __reduce__(self) -> tuple[type["WordNetLexicon"], tuple[WordNet]]:
        return WordNetLexicon, (self.wordnet,)

    def _candidates(self, word: str, tag: str) -> Candidates:
        pos = _POS.get(tag)
        if pos is None:
            return ()
        senses = self.wordnet.synsets(word.replace(" ", "_"), pos)[:_MAX_SENSES]
        forms = self.wordnet.base_forms(word.replace(" ", "_"), pos)
        # senses are ordered by frequency, even if no text was tagged with any
        counts = [
            0.5**place + sum(self._counts(sense).get(form, 0) for form in forms) for place, sense in enumerate(senses)
        ]
        weights: defaultdict[str, float] = defaultdict(float)
        for sense, count in zip(senses, counts, strict=True):
            share = count / sum(counts)
            if share < _MIN_SHARE:
                continue
            for lemma, times in self._cousins(sense):
                weights[lemma] += times * share
            for lemma, times in self._antonyms(sense):
                weights[lemma] += _ANTONYM_WEIGHT * times * share
        for lemma in self._still_true(senses):
            weights.pop(lemma, None)
        if pos == "v":  # with a particle a verb is of another construction
            weights = defaultdict(float, {lemma: weight for lemma, weight in weights.items() if "_" not in lemma})
        best = sorted(weights.items(), key=lambda item: (-item[1], crc32(item[0].encode())))
        if tag == "NN":
            best = [item for item in best if not self._is_plural(item[0])]
        usual = [item for item in best if item[0] in self.wordnet.met_lemmas]
        chosen = usual if len(usual) >= _MIN_USUAL else best
        decent = islice((item for item in chosen if self._is_decent(item[0], pos)), MAX_CANDIDATES)
        return tuple((self._inflected(lemma, tag, pos), weight) for lemma, weight in decent)

    def _inflected(self, lemma: str, tag: str, pos: Pos) -> str:
        """Inflect a lemma; whether its consonant is doubled is taken from WordNet's list of exceptions."""
        endings = {"VBG": "ing", "VBD": "ed", "VBN": "ed"}
        for form in self.wordnet.irregular_forms(lemma, pos):
            if tag in endings and form.endswith(endings[tag]):
                return form
        if tag == "NNS" and self._is_plural(lemma):
            return lemma.replace("_", " ")
        return inflected(lemma.replace("_", " "), tag)

    def _is_plural(self, lemma: str) -> bool:
        """Whether a noun of the dictionary is a plural, such as `stairs`: it ends in s, and is a noun without it."""
        last = lemma.rpartition("_")[2]
        return last.endswith("s") and last[:-1] in self.wordnet.base_forms(last, "n")

    def _counts(self, sense: Synset) -> dict[str, int]:
        """Count the occurrences of each word of a sense in that sense."""
        return {lemma: self.wordnet.count(sense, place) for place, lemma in enumerate(sense.lemmas)}

    def _antonyms(self, sense: Synset) -> Iterator[tuple[str, int]]:
        """Yield antonyms of a sense's words; for an adjective similar to another, also that one's antonyms."""
        heads = self.wordnet.related(sense, "&") if sense.is_satellite else ()
        for one in (sense, *heads):
            for other, place in self.wordnet.related_lemmas(one, "!"):
                yield other.lemmas[place], max(1, self.wordnet.count(other, place))

    def _cousins(self, sense: Synset) -> Iterable[tuple[str, float]]:
        """Find words of the senses below parents and grandparents; for adjectives, those derived from such words."""
        related = [other for other, _ in self.wordnet.related_lemmas(sense, "+")] if sense.pos == "a" else [sense]
        notions = dict.fromkeys(
            (tree.pos, notion.offset, steps)
            for tree in related
            if tree.pos != "a"
            for notion, steps in self._notions(tree)
        )
        return dict(pair for notion in notions for pair in self._kinds(*notion, sense.pos)).items()

    def _least(self, lemma: str) -> float:
        return 1 if lemma in self.wordnet.met_lemmas else _RARE_WEIGHT

    def _notions(self, sense: Synset) -> Iterator[tuple[Synset, int]]:
        """Yield grandparents, two steps above the sense; for parents whose own parents are too general, the parent.

        Those of verbs always are: their trees have few levels, and at the top `act` and `change`, below which any two
        verbs are true together.
        """
        for parent in self.wordnet.related(sense, "@"):
            above = list(self.wordnet.related(parent, "@"))
            if sense.pos == "v":
                yield from [(parent, 1)] if above else []
            else:
                yield from [(up, 2) for up in above if self._depth(up) >= _MIN_DEPTH] or [(parent, 1)]

    def _depth(self, sense: Synset) -> int:
        """Count the steps to the root along the first hypernyms."""
        steps = 0
        while above := next(self.wordnet.related(sense, "@", "@i"), None):
            sense, steps = above, steps + 1
        return steps

    def _words_below(self, pos: Pos, offset: int, steps: int, wanted: Pos) -> tuple[tuple[str, float], ...]:
        """Count uses of the words of the senses `steps` below a notion, or of adjectives derived from these."""
        found: dict[str, float] = {}
        for sense in self._below(self.wordnet.synset(pos, offset), steps):
            pairs: Iterable[tuple[Synset, int]] = ((sense, place) for place in range(len(sense.lemmas)))
            if wanted != pos:
                pairs = [pair for pair in self.wordnet.related_lemmas(sense, "+") if pair[0].pos == wanted]
            for one, place in pairs:
                lemma = one.lemmas[place]
                if _PLAIN.fullmatch(lemma):
                    found[lemma] = max(self._least(lemma), self.wordnet.count(one, place), found.get(lemma, 0))
        return tuple(found.items())

    def _below(self, notion: Synset, steps: int) -> list[Synset]:
        kinds = [notion]
        for _ in range(steps):
            kinds = list(islice((kind for one in kinds for kind in self.wordnet.related(one, "~")), _MAX_KINDS))
        return kinds

    def _still_true(self, senses: Iterable[Synset]) -> set[str]:
        """Collect synonyms, hypernyms at all levels and direct hyponyms of the senses."""
        texts: set[str] = set()
        for sense in senses:
            ring, seen = [sense], {sense.offset}
            while ring:
                texts.update(lemma for one in ring for lemma in one.lemmas)
                ring = [up for low in ring for up in self.wordnet.related(low, "@") if up.offset not in seen]
                seen.update(up.offset for up in ring)
            texts.update(lemma for kind in self.wordnet.related(sense, "~") for lemma in kind.lemmas)
        return texts

    def _is_decent_word(self, lemma: str, pos: Pos) -> bool:
        """Tell whether none of the lemma's senses is an insult or about topics that do not occur in captions."""
        glosses = [self.wordnet.gloss(sense) for sense in self.wordnet.synsets_of_lemma(lemma, pos)]
        return not any(part in gloss for gloss in glosses for part in _INDECENT)
