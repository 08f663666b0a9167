"""Log of an endpoint's answers, one JSON object per line: a killed run continues without asking again.

A line counts once it is on disk. An incomplete line that a crash leaves at the end of the file is cut off.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from services.jobs.inquiry.record_file import OutputError, append_durably, locked_file
from services.score.evaluation.judges import CannotJudge


class LoggedAnswer(BaseModel):
    """An answer and its question: `question` is a digest of the request's body; the rest is for people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str
    task: str
    record: str
    order: str
    model: str
    answer: str


class AnswerLog:
    """Answers by their questions. Without a file, the log is only in memory."""

    def __init__(self, descriptor: int | None, answers: dict[str, str]) -> None:
        self._descriptor = descriptor
        self._answers = answers

    @classmethod
    @contextmanager
    def opened(cls, path: Path | None) -> Iterator[Self]:
        """Open the log in a file, or create it if there is none.

        Raises CannotJudge if another process writes to it, or it contains anything else.
        """
        if path is None:
            yield cls(None, {})
            return
        with ExitStack() as held:
            try:
                descriptor = held.enter_context(locked_file(path, "evaluation"))
            except OutputError as error:
                raise CannotJudge(str(error)) from error
            answers, num_bytes = _parsed(path)
            os.ftruncate(descriptor, num_bytes)
            yield cls(descriptor, answers)

    def find(self, question: str) -> str | None:
        """The recorded answer, if there is one."""
        return self._answers.get(question)

    def keep(self, answer: LoggedAnswer) -> None:
        """Write an answer; it is on disk when this returns. Raises CannotJudge."""
        self._answers[answer.question] = answer.answer
        if self._descriptor is None:
            return
        try:
            append_durably(self._descriptor, answer.model_dump_json().encode() + b"\n")
        except OSError as error:
            raise CannotJudge(f"answers can't be saved: {error.strerror}") from error


def _parsed(path: Path) -> tuple[dict[str, str], int]:
    """Parse the answers of a file, and count the bytes that hold them."""
    answers, num_bytes = {}, 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            logged = LoggedAnswer.model_validate_json(line)
        except ValidationError as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            raise CannotJudge(f"{path}, line {number}: not a saved answer") from error
        if not line.endswith(b"\n"):
            break
        answers[logged.question] = logged.answer
        num_bytes += len(line)
    return answers, num_bytes
