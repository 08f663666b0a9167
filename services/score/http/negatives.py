"""Hard negatives of a request's captions, by rules or by a language model."""

from collections.abc import Sequence
from typing import TypeVar

from services.core.errors import InvalidField, TooLarge, check_count
from services.core.exchange import RequestContext
from services.score.call import CallLimits, Caption, captions_of
from services.score.http.schemas import AnyKind, Negative, NegativesAnswer, NegativesRequest, RejectedNegative
from services.score.negatives.hard_negatives import KINDS, PAPER_KINDS, Kind
from services.score.negatives.prompting.checks import WRITTEN_KINDS, WrittenKind
from services.score.negatives.written_negatives import NegativeWriter, WrittenNegative
from services.score.service import ScoreService

KindT = TypeVar("KindT", bound=str)


async def make_negatives(
    service: ScoreService, body: NegativesRequest, context: RequestContext
) -> list[NegativesAnswer]:
    """Answer for each caption, in order.

    Raises InvalidField for a blank caption, for neither or both of `caption` and `captions`, for a kind of the other
    method, and without a configured model; TooLarge for too many captions and for a long one; and what the makers of
    negatives raise.
    """
    captions = _captions(body)
    _check(captions, service.limits)
    texts = [caption.text for caption in captions]
    if body.method == "llm":
        written = await _writer(service).write(texts, _written_kinds(body), body.seed, context.timing)
        return [_answer(text, some) for text, some in zip(texts, written, strict=True)]
    kinds = _rule_kinds(body)
    answers = []
    for text in texts:
        made = await service.negatives.make(text, kinds, body.seed, context.timing)
        found = [Negative(kind=kind, text=negative) for kind, negative in made.items() if negative is not None]
        answers.append(NegativesAnswer(caption=text, negatives=found))
    return answers


def _writer(service: ScoreService) -> NegativeWriter:
    if service.writer is None:
        raise InvalidField(
            "method: No language model is configured. Set FOVEA_SCORE_TEACHER_URL and FOVEA_SCORE_TEACHER_MODEL to the"
            ' address and the name of one, or use the method "rules".',
            param="method",
        )
    return service.writer


def _check(captions: Sequence[Caption], limits: CallLimits) -> None:
    check_count("captions", len(captions), limits.max_negative_captions)
    limit = limits.max_negative_characters
    for caption in captions:
        text, param = caption.text, caption.param
        if not text.strip():
            raise InvalidField(f"{param}: The text is empty.", param=param)
        if len(text) > limit:
            raise TooLarge(f"{param}: The text has {len(text)} characters; the limit is {limit}.", param=param)


def _captions(body: NegativesRequest) -> list[Caption]:
    if (body.caption is None) == (body.captions is None):
        told = "is missing" if body.caption is None else "and captions exclude each other"
        raise InvalidField(f"caption: The field {told}.", param="caption")
    return captions_of(body.captions) if body.captions is not None else [Caption(body.caption or "", "caption")]


def _rule_kinds(body: NegativesRequest) -> list[Kind]:
    known: dict[str, Kind] = {kind: kind for kind in KINDS}
    return _known(body.kinds or PAPER_KINDS, known, "rules")


def _written_kinds(body: NegativesRequest) -> list[WrittenKind]:
    known: dict[str, WrittenKind] = {kind: kind for kind in WRITTEN_KINDS}
    return _known(body.kinds or WRITTEN_KINDS, known, "llm")


def _known(kinds: Sequence[AnyKind], known: dict[str, KindT], method: str) -> list[KindT]:
    """Return the kinds of a method. Raises InvalidField for one of the other."""
    for index, kind in enumerate(kinds):
        if kind not in known:
            message = f'The method "{method}" makes {", ".join(known)}, and not {kind}.'
            raise InvalidField(f"kinds.{index}: {message}", param=f"kinds.{index}")
    return [known[kind] for kind in dict.fromkeys(kinds)]


def _answer(caption: str, written: Sequence[WrittenNegative]) -> NegativesAnswer:
    found = [Negative(kind=one.kind, text=one.text) for one in written if one.reason is None]
    rejected = [
        RejectedNegative(kind=one.kind, reason=one.reason, text=one.text) for one in written if one.reason is not None
    ]
    return NegativesAnswer(caption=caption, negatives=found, rejected=rejected)
