"""The review of a set of pairs: whose turn a pair is, what each reviewer sees next, and what has come of it.

In the first round each pair goes to as many reviewers as asked, who see nothing of each other's verdicts. Once every
pair has its verdicts, the second round shows pairs with different verdicts first, then those that all found unclear,
with the earlier verdicts and notes; a task that measures people has no second round. Agreement beyond chance is
Cohen's kappa of two reviewers, Fleiss' of more:

J. Cohen, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement 20 (1960).
J. L. Fleiss, "Measuring nominal scale agreement among many raters", Psychological Bulletin 76 (1971).
"""

import json
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from services.core.errors import Conflict, InvalidField, NotFound
from services.core.printable import json_line
from services.curate.review.tasks import VerdictName
from services.curate.review.verdicts import Round, Verdict, VerdictFile
from services.jobs.sugarcrepe import Pair

Statistic = Literal["Cohen's kappa", "Fleiss' kappa"]


class UndefinedKappa(ValueError):
    """A kappa that has no value; the message says why."""


@dataclass(frozen=True)
class Agreement:
    """Agreement over `num_pairs` pairs. Where `kappa` is None, `reason` says why it is undefined.

    `observed` is the share of agreeing pairs of verdicts, which chance alone makes high where most are the same.
    """

    statistic: Statistic | None
    kappa: float | None
    observed: float | None
    num_pairs: int
    reason: str | None = None


def agreement(verdicts: Mapping[str, Mapping[str, str]], num_reviewers: int) -> Agreement:
    """Return the agreement of verdicts by pair and reviewer, of whom each pair has `num_reviewers`.

    With two reviewers in all it is Cohen's kappa over the pairs of both. With more it is Fleiss' kappa over the pairs
    that have all of their verdicts; who gave them may differ from pair to pair, and only the first `num_reviewers`
    count.
    """
    reviewers = sorted({reviewer for given in verdicts.values() for reviewer in given})
    if len(reviewers) < 2:
        return Agreement(None, None, None, 0, "fewer than two reviewers have given verdicts")
    if len(reviewers) == 2:
        of_both = [[given[name] for name in reviewers] for given in verdicts.values() if len(given) == 2]
        return _measured("Cohen's kappa", of_both)
    if num_reviewers < 2:
        return Agreement(None, None, None, 0, "each pair is judged by one reviewer")
    complete = [list(given.values())[:num_reviewers] for given in verdicts.values() if len(given) >= num_reviewers]
    return _measured("Fleiss' kappa", complete)


def cohen_kappa(verdicts: Sequence[tuple[str, str]]) -> float:
    r"""Return :math:`(p_o - p_e) / (1 - p_e)` of two reviewers' verdicts on the same pairs, at most 1.

    :math:`p_o` is the share of pairs on which they agree, and :math:`p_e` what two reviewers with their shares of each
    verdict would agree on by chance. Raises UndefinedKappa for no pairs, and where :math:`p_e` is 1.
    """
    _check_any(verdicts)
    num_pairs = len(verdicts)
    first, second = (Counter(both[place] for both in verdicts) for place in (0, 1))
    expected = sum(first[name] * second[name] for name in first) / num_pairs**2
    return _beyond_chance(_observed(verdicts), expected)


def fleiss_kappa(verdicts: Sequence[Sequence[str]]) -> float:
    r"""Return :math:`(\bar P - \bar P_e) / (1 - \bar P_e)` of equally many verdicts on each pair, at most 1.

    :math:`\bar P` is the mean share of agreeing pairs of verdicts, and :math:`\bar P_e` the sum of the squared shares
    of each verdict. Raises UndefinedKappa for no pairs, for a single verdict on each, and where :math:`\bar P_e` is 1.
    """
    _check_any(verdicts)
    if len(verdicts[0]) < 2:
        raise UndefinedKappa("each pair has a single verdict")
    counts = Counter(name for given in verdicts for name in given)
    expected = sum(count**2 for count in counts.values()) / counts.total() ** 2
    return _beyond_chance(_observed(verdicts), expected)


def _measured(statistic: Statistic, table: Sequence[Sequence[str]]) -> Agreement:
    observed = _observed(table) if table else None
    try:
        is_cohens = statistic == "Cohen's kappa"
        kappa = cohen_kappa([(first, second) for first, second in table]) if is_cohens else fleiss_kappa(table)
    except UndefinedKappa as undefined:
        return Agreement(statistic, None, observed, len(table), str(undefined))
    return Agreement(statistic, kappa, observed, len(table))


def _observed(verdicts: Sequence[Sequence[str]]) -> float:
    """Return the mean share of agreeing pairs of verdicts."""
    shares = []
    for given in verdicts:
        num = len(given)
        shares.append(sum(count * (count - 1) for count in Counter(given).values()) / (num * (num - 1)))
    return sum(shares) / len(shares)


def _beyond_chance(observed: float, expected: float) -> float:
    if expected == 1:
        raise UndefinedKappa("all verdicts are the same, so that chance would agree as well")
    return (observed - expected) / (1 - expected)


def _check_any(verdicts: Sequence[Sequence[str]]) -> None:
    if not verdicts:
        raise UndefinedKappa("no pair has all of its verdicts yet")


# A pair that a reviewer was shown is kept for them for so long.
HELD_S = 30 * 60
MAX_NAME_LENGTH = 64

# `pair`: one to judge. `waiting`: the first round needs verdicts, but of others. `between`: the second round may begin.
Stage = Literal["pair", "waiting", "between", "done"]


@dataclass(frozen=True)
class Turn:
    """A reviewer's next pair, or why there is none.

    `num_judged` counts the reviewer's verdicts of this round, `num_left` the pairs that are still theirs to judge and
    `num_complete` those that have all their verdicts of the first round. `earlier` are the verdicts so far on a pair of
    the second round, and `withdrawn` is the reviewer's own that was just undone.
    """

    stage: Stage
    round: Round
    num_judged: int
    num_left: int
    num_complete: int
    num_disputed: int
    can_undo: bool
    pair: Pair | None = None
    earlier: Sequence[Verdict] = ()
    withdrawn: Verdict | None = None


@dataclass(frozen=True)
class Summary:
    """Progress and agreement of the first round, and the number of pairs whose latest verdicts differ."""

    num_complete: int
    num_judged: Mapping[str, int]
    verdicts: Mapping[str, int]
    agreement: Agreement
    num_disputed: int


class Review:
    """The pairs and their verdicts. Safe to call from several threads; `clock` counts seconds."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        file: VerdictFile,
        reviewers_per_pair: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task = file.task
        self.pairs = {pair.id: pair for pair in pairs}
        self.reviewers_per_pair = reviewers_per_pair
        self.places = {id: place for place, id in enumerate(self.pairs)}
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        # The pair that each reviewer was shown last, and when.
        self._shown: dict[str, tuple[str, float]] = {}

    def turn(self, reviewer: str, *, after: str | None = None, begins_second_round: bool = False) -> Turn:
        """Return the reviewer's next pair: the first, or the one that follows `after` in turn."""
        with self._lock:
            return self._turn(self._known_spelling(reviewer), after, begins_second_round=begins_second_round)

    def judge(self, reviewer: str, id: str, round: Round, verdict: VerdictName, note: str) -> Turn:
        """Record a verdict, in place of an earlier one of this reviewer and round, and return the next turn.

        Raises NotFound for an unknown pair, InvalidField for a verdict or a round that the task does not have, and
        Conflict for a pair of the first round that has its verdicts of others.
        """
        with self._lock:
            if id not in self.pairs:
                raise NotFound(f"There is no pair {id!r}.")
            if verdict not in self.task.verdicts:
                raise InvalidField(f"verdict: This review's are {', '.join(self.task.verdicts)}.", param="verdict")
            if round == 2 and self.task.is_blind:
                raise InvalidField("round: This review has one round.", param="round")
            reviewer = self._known_spelling(reviewer)
            given = self._file.of_round(1).get(id, {})
            if round == 1 and reviewer not in given and len(given) >= self.reviewers_per_pair:
                raise Conflict(f"Others have judged the pair {id!r} meanwhile; it needs no further verdict.")
            now = datetime.now(UTC).isoformat(timespec="seconds")
            first = next(iter(self.task.order(self.pairs[id])), None)
            told = {"note": note.strip(), "judged_at": now, "first": first}
            self._file.put(Verdict(id=id, reviewer=reviewer, verdict=verdict, round=round, **told))
            return self._turn(reviewer, id, begins_second_round=round == 2)

    def undo(self, reviewer: str, round: Round) -> Turn:
        """Withdraw the reviewer's last verdict of a round and show its pair again. Raises Conflict if there is none."""
        with self._lock:
            reviewer = self._known_spelling(reviewer)
            last = self._last(reviewer, round)
            if last is None:
                raise Conflict("There is no verdict to undo in this round.")
            self._file.remove(last)
            return self._turn(reviewer, None, begins_second_round=round == 2, withdrawn=last)

    def summary(self) -> Summary:
        with self._lock:
            first, latest = self._file.of_round(1), self._latest()
            names = {id: {who: one.verdict for who, one in given.items()} for id, given in first.items()}
            return Summary(
                self._num_complete(first),
                Counter(who for given in names.values() for who in given),
                Counter(verdict for given in names.values() for verdict in given.values()),
                agreement(names, self.reviewers_per_pair),
                sum(map(_is_disputed, latest.values())),
            )

    def export(self) -> Iterable[bytes]:
        """Yield all verdicts as JSON lines, by pair, reviewer and round."""
        with self._lock:
            found = list(self._file.verdicts.values())
        for one in sorted(found, key=lambda one: (self.places[one.id], one.reviewer, one.round)):
            told = self.task.told(self.pairs[one.id], one.verdict, one.first)
            yield json_line(json.dumps({**one.model_dump(exclude_none=True), **told}, ensure_ascii=False))

    def reviewers(self) -> list[str]:
        with self._lock:
            return sorted({reviewer for _, _, reviewer in self._file.verdicts})

    def _turn(
        self, reviewer: str, after: str | None, *, begins_second_round: bool, withdrawn: Verdict | None = None
    ) -> Turn:
        first = self._file.of_round(1)
        num_complete = self._num_complete(first)
        is_over = num_complete == len(self.pairs)
        has_second = is_over and not self.task.is_blind
        latest = self._latest() if has_second else {}
        is_second = has_second and (begins_second_round or self._last(reviewer, 2) is not None)
        round: Round = 2 if is_second else 1

        def order(id: str) -> tuple[bool, int]:
            return _is_unclear(latest.get(id, {})), self.places[id]

        left = self._left_of_second(reviewer, latest) if has_second else self._left_of_first(reviewer, first)
        left.sort(key=order)
        pair = None
        if left and is_second == has_second:
            stage: Stage = "pair"
            following = (id for id in left if after in self.pairs and order(id) > order(after))
            is_back = withdrawn is not None and withdrawn.id in left
            pair = self.pairs[withdrawn.id if withdrawn and is_back else next(following, left[0])]
            self._shown[reviewer] = (pair.id, self._clock())
        else:
            stage = "between" if left else "done" if is_over else "waiting"
            self._shown.pop(reviewer, None)
        return Turn(
            stage,
            round,
            num_judged=sum(who == reviewer and of == round for of, _, who in self._file.verdicts),
            num_left=len(left),
            num_complete=num_complete,
            num_disputed=sum(map(_is_disputed, latest.values())),
            can_undo=self._last(reviewer, round) is not None,
            pair=pair,
            earlier=[*latest[pair.id].values()] if pair and is_second else (),
            withdrawn=withdrawn,
        )

    def _left_of_first(self, reviewer: str, given: Mapping[str, Mapping[str, Verdict]]) -> list[str]:
        """Return the pairs that need a verdict of this reviewer; one that another is shown counts as judged by them."""
        now = self._clock()
        held = Counter(
            id
            for who, (id, shown) in self._shown.items()
            if who != reviewer and now - shown < HELD_S and who not in given.get(id, {})
        )
        return [
            id
            for id in self.pairs
            if reviewer not in given.get(id, {}) and len(given.get(id, {})) + held[id] < self.reviewers_per_pair
        ]

    def _left_of_second(self, reviewer: str, latest: Mapping[str, Mapping[str, Verdict]]) -> list[str]:
        """Return the pairs with different or only unclear verdicts that the reviewer has not judged a second time."""
        return [
            id
            for id, given in latest.items()
            if (_is_disputed(given) or _is_unclear(given)) and (2, id, reviewer) not in self._file.verdicts
        ]

    def _latest(self) -> dict[str, dict[str, Verdict]]:
        """Return by pair and reviewer the verdict of the second round, or else that of the first."""
        latest = {id: {**given} for id, given in self._file.of_round(1).items()}
        for id, given in self._file.of_round(2).items():
            latest.setdefault(id, {}).update(given)
        return latest

    def _last(self, reviewer: str, round: Round) -> Verdict | None:
        given = reversed(self._file.verdicts.values())
        return next((one for one in given if one.reviewer == reviewer and one.round == round), None)

    def _num_complete(self, first: Mapping[str, Mapping[str, Verdict]]) -> int:
        return sum(len(given) >= self.reviewers_per_pair for given in first.values())

    def _known_spelling(self, reviewer: str) -> str:
        """Return the name as it was first written: nobody judges a pair twice for a capital letter."""
        known = {name.casefold(): name for _, _, name in reversed(self._file.verdicts)}
        return known.get(reviewer.casefold(), reviewer)


def reviewer_name(given: str) -> str:
    """Return a name with its spaces and its accents in one form. Raises InvalidField for one that can't be shown."""
    name = " ".join(unicodedata.normalize("NFC", given).split())
    if not 1 <= len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidField(f"reviewer: A name has 1 to {MAX_NAME_LENGTH} printable characters.", param="reviewer")
    return name


def _is_disputed(given: Mapping[str, Verdict]) -> bool:
    return len({one.verdict for one in given.values()}) > 1


def _is_unclear(given: Mapping[str, Verdict]) -> bool:
    return {one.verdict for one in given.values()} == {"unclear"}
