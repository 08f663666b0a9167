"""Generation of hard negatives by a language model: many captions, concurrently.

A model's answers are on disk, by what was asked: no request is paid for twice, whatever ended the job before.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict
from rich.console import Console

from services.core.openai_client import Endpoint, EndpointClient, EndpointError, Patience
from services.curate.authoring.candidates import Candidate, Outcome
from services.curate.data.captions import Caption
from services.jobs.inquiry import (
    MAX_FAILURES_IN_A_ROW,
    Identified,
    Inquiry,
    OutputError,
    RecordFile,
    Tokens,
    attended,
    digest_of,
)
from services.jobs.progress import Bar, Bars
from services.score.negatives.prompting.checks import FORM_OF, WRITTEN_KINDS, WrittenKind
from services.score.negatives.prompting.writer import Chat, Reply, Requests, Writer

ANSWERS = "answers.jsonl"
# Candidates needed to judge a model before all are done.
MIN_JUDGED = 20
# Characters of an answer that are shown.
MAX_SHOWN = 300
# Answers that are not in the form of the demonstrations.
UNUSABLE = ("unreadable", "truncated")


class UnusableAnswers(Exception):
    """Too large a share of the answers is not in the form that was asked for; the message can be shown to users."""


class Answered(Identified):
    """An answer; `id` is the digest of the request and the number of its draw."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None

    @property
    def reply(self) -> Reply:
        return Reply(self.text, self.finish_reason == "length")


class KeptAnswers:
    """Answers of an endpoint: `ask` returns those that are on disk, and asks for the others and writes them there.

    Of equal requests at the same time, one is sent.
    """

    def __init__(
        self,
        client: EndpointClient,
        requests: Requests,
        file: RecordFile[Answered],
        on_answer: Callable[[Answered], None],
    ) -> None:
        self._client = client
        self._requests = requests
        self._file = file
        self._on_answer = on_answer
        self._known: dict[str, Reply] = {one.id: one.reply for one in file.found}
        self._locks: dict[str, asyncio.Lock] = {}

    async def ask(self, chat: Chat) -> Reply:
        """Return the reply to a chat. Raises EndpointError and OutputError."""
        body = self._requests.body(chat)
        key = digest_of({"body": body, "draw": chat.draw})
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._known:
                answer = await self._client.ask(body)
                told = {name: getattr(answer, name) for name in Answered.model_fields if name != "id"}
                record = Answered(id=key, **told)
                await self._file.append(record)
                self._on_answer(record)
                self._known[key] = record.reply
        self._locks.pop(key, None)  # whoever waits for it has it
        return self._known[key]


@dataclass(frozen=True)
class Teacher:
    """The model that writes, and how patiently it is asked."""

    endpoint: Endpoint
    requests: Requests
    patience: Patience = field(default_factory=Patience)
    concurrency: int = 8


@dataclass
class Progress:
    """Counts of a run's candidates, and the tokens of all answers on disk."""

    tokens: Tokens = field(default_factory=Tokens)
    num_kept: int = 0
    num_done: int = 0
    num_unusable: int = 0
    max_unusable: float = 1.0
    unusable: str = ""  # the last such answer

    def add(self, outcome: Outcome) -> None:
        """Count an outcome. Raises UnusableAnswers for too many unusable answers among at least MIN_JUDGED."""
        self.num_done += 1
        self.num_kept += outcome.reason is None
        if outcome.reason in UNUSABLE:
            self.num_unusable += 1
            self.unusable = outcome.text
        if self.num_done >= MIN_JUDGED:
            self.check()

    def check(self) -> None:
        """Raises UnusableAnswers for too large a share of unusable answers."""
        if self.num_unusable > self.max_unusable * self.num_done:
            raise UnusableAnswers(
                f"{self.num_unusable} of {self.num_done} answers are not in the form of the demonstrations, a larger"
                f" share than max_unusable {self.max_unusable:g}. The last one says: {self.unusable[:MAX_SHOWN]!r}"
            )

    def told(self) -> str:
        return f"{self.num_kept} of {self.num_done} kept · {self.tokens.told()}"


def candidates_of(
    captions: Sequence[Caption], kinds: Sequence[WrittenKind] = WRITTEN_KINDS, per_kind: int = 1
) -> list[Candidate]:
    """List what is to be made, in the captions' order.

    A swap is made once per caption: at temperature 0 the model finds one.
    """
    return [
        Candidate(caption, kind, draw)
        for caption in captions
        for kind in kinds
        for draw in range(1 if FORM_OF[kind] == "swap" else per_kind)
    ]


async def generate(
    candidates: Sequence[Candidate],
    writer: Writer,
    teacher: Teacher,
    folder: Path,
    console: Console,
    progress: Progress,
) -> list[Outcome]:
    """Write the negatives of all candidates; answers go to the folder's answer file, and are read from there.

    Candidates that the endpoint refuses, or has not answered, are rejected as such, and asked about by the next run.
    Raises EndpointError, OutputError, UnusableAnswers and Interrupted; all answers until then are on disk.
    """
    with (
        RecordFile.opened(folder / ANSWERS, Answered, "generation", lambda found, num_torn_bytes: None) as file,
        Bars(console).bar("Negatives", total=len(candidates)) as bar,
    ):
        for record in file.found:
            progress.tokens.add(record.prompt_tokens, record.completion_tokens)

        def on_answer(record: Answered) -> None:
            progress.tokens.add(record.prompt_tokens, record.completion_tokens)
            bar.advance(0, progress.told())

        async with EndpointClient(teacher.endpoint, teacher.patience) as client:
            answers = KeptAnswers(client, teacher.requests, file, on_answer)
            work = _Generation(writer, answers, teacher.requests.model, progress, bar)
            inquiry = Inquiry(client, work.write, work.fail, ends=(OutputError, UnusableAnswers))
            with attended(inquiry, console):
                await inquiry.run(candidates, teacher.concurrency)
    _check_refusals(list(work.outcomes.values()))
    progress.check()
    return [work.outcomes[one.id] for one in candidates]


class _Generation:
    """The outcomes of a run so far, by the candidates' ids."""

    def __init__(self, writer: Writer, answers: KeptAnswers, model: str, progress: Progress, bar: Bar) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._writer = writer
        self._answers = answers
        self._made_by = f"{model}, {writer.style.steps} step{'s' if writer.style.steps == 'three' else ''}"
        self._progress = progress
        self._bar = bar
        self._refused: set[str] = set()  # ids of captions
        self._has_answers = False

    async def write(self, one: Candidate) -> None:
        """Write a candidate's negative.

        A caption may well be refused in all types; if several are before any has an answer, it is no fault of theirs:
        raises EndpointError, as for a request without an answer.
        """
        try:
            written = await self._writer.write(one.caption.text, _written(one), self._answers.ask, one.draw)
        except EndpointError as error:
            if not error.is_refusal:
                raise
            self._keep(Outcome(one, str(error), self._made_by, "refused"))
            self._refused.add(one.caption.id)
            if not self._has_answers and len(self._refused) >= MAX_FAILURES_IN_A_ROW:
                told = f"the first {len(self._refused)} captions are rejected; last error: {error}"
                raise EndpointError(told, is_about_all=True) from None
        else:
            self._has_answers = True
            self._keep(Outcome(one, written.text, self._made_by, written.problem))

    def fail(self, one: Candidate, error: EndpointError) -> None:
        """Note that a candidate has no answer."""
        self._keep(Outcome(one, str(error), self._made_by, "unanswered"))

    def _keep(self, outcome: Outcome) -> None:
        self.outcomes[outcome.candidate.id] = outcome
        self._progress.add(outcome)
        self._bar.advance(1, self._progress.told())


def _written(candidate: Candidate) -> WrittenKind:
    kinds: dict[str, WrittenKind] = {kind: kind for kind in WRITTEN_KINDS}
    return kinds[candidate.kind]


def _check_refusals(outcomes: Sequence[Outcome]) -> None:
    """Raises EndpointError if the endpoint has refused everything for one reason: that is no caption's fault."""
    texts = {one.text for one in outcomes}
    if len(texts) == 1 and all(one.reason == "refused" for one in outcomes):
        raise EndpointError(f"every request was rejected for the same reason, {texts.pop()}")
