"""Cases made by hand: a folder with `cases.jsonl` and the images that it names.

Each line is `{"service": …, "request": …, "right": …}`:

| service | request | right |
| --- | --- | --- |
| embed | `images` (files) and one `condition` | the file that is nearest to the first |
| score | `image` (a file) and `captions` | the caption |
| generate | as `/generate`, or as chat with `messages` | a text, a list of texts, or null for a refusal |
| predict | `task` and one of `inputs` | a label or a number |
"""

import base64
import json
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from services.core.printable import printable
from services.core.refusals import Refused
from services.jobs.tables import MISSING
from starters.visitor.questions import SERVICES, Asked, Question, Service
from starters.visitor.results import ALL_CASES, CASES_SEED, Result

FILE = "cases.jsonl"


class BadCase(Refused):
    """A case that can't be asked; the message names the line."""


@dataclass(frozen=True)
class Case:
    """A line of the file."""

    line: int
    service: Service
    question: Question


def read_cases(folder: Path) -> list[Case]:
    """Read the cases of a folder. Raises BadCase, and OSError for a missing file."""
    cases = []
    for number, line in enumerate((folder / FILE).read_text(encoding="utf-8-sig").splitlines(), start=1):
        if line.strip():
            try:
                cases.append(_read(line, number, folder))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                reason = f"{error} is missing" if isinstance(error, KeyError) else error
                raise BadCase(f"{folder / FILE}, line {number}: {reason}") from None
    if not cases:
        raise BadCase(f"{folder / FILE} holds no cases")
    return cases


def _read(line: str, number: int, folder: Path) -> Case:
    entry = json.loads(line)
    if unknown := sorted(entry.keys() - {"service", "request", "right"}):
        raise ValueError(f"unknown field {unknown[0]!r}")
    service, request, right = entry["service"], entry["request"], entry["right"]
    if service not in _QUESTIONS:
        raise ValueError(f"service: {service!r} is not one of {', '.join(SERVICES)}")
    return Case(number, service, _QUESTIONS[service](request, right, folder))


def _embed(request: Mapping[str, Any], right: Any, folder: Path) -> Question:
    images = list(request["images"])
    if right not in images[1:]:
        raise ValueError(f"right: {right!r} is not one of the images after the first")
    body = {**request, "images": [_data_uri(folder / name) for name in images]}
    return Question("nearest", body, images.index(right, 1), tuple(range(1, len(images))))


def _score(request: Mapping[str, Any], right: Any, folder: Path) -> Question:
    captions = list(request["captions"])
    if right not in captions:
        raise ValueError(f"right: {right!r} is not one of the captions")
    body = {**request, "image": _data_uri(folder / request["image"])}
    return Question("caption", body, captions.index(right), tuple(range(len(captions))))


def _generate(request: Mapping[str, Any], right: Any, _folder: Path) -> Question:
    texts = [] if right is None else [right] if isinstance(right, str) else right
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("right: must be a text, a list of texts or null")
    if "messages" not in request and "query" not in request:
        raise ValueError("request: has neither 'query' nor 'messages'")
    return Question("chat" if "messages" in request else "answer", request, tuple(texts))


def _predict(request: Mapping[str, Any], right: Any, _folder: Path) -> Question:
    if len(request["inputs"]) != 1:
        raise ValueError("request.inputs: must hold one input")
    if isinstance(right, bool) or not isinstance(right, str | int | float):
        raise ValueError("right: must be a label or a number")
    return Question("label" if isinstance(right, str) else "number", request, right)


_QUESTIONS = {"embed": _embed, "score": _score, "generate": _generate, "predict": _predict}


def _data_uri(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise ValueError(f"{path.name} is not named as an image")
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def case_results(run: str, cases: Sequence[Case], asked: Sequence[Asked]) -> list[Result]:
    """Count how many cases of each service are right."""
    results = []
    for service in SERVICES:
        own = [one for case, one in zip(cases, asked, strict=True) if case.service == service]
        if own:
            right = sum(one.is_right for one in own)
            models = list(dict.fromkeys(one.reply.model for one in own if one.reply.model is not None))
            settings = {"right": right, "cases": len(own), "models": models}
            scores = {ALL_CASES: {CASES_SEED: round(100 * right / len(own), 2)}}
            results.append(Result(run, "cases", service, scores, chances={}, settings=settings))
    return results


def case_report(cases: Sequence[Case], asked: Sequence[Asked]) -> RichTable:
    """Make a table of all cases for a terminal: what was asked, answered and right."""
    table = RichTable("line", "service", "asked", "answered", "right", "")
    for case, one in zip(cases, asked, strict=True):
        question = case.question
        shown = [_shown(question, one.reply.given), _shown(question, question.right)]
        table.add_row(str(case.line), case.service, printable(_asked(question)), *map(printable, shown),
                      "✓" if one.is_right else "✗")  # fmt: skip
    return table


def _asked(question: Question) -> str:
    body = question.body
    match question.form:
        case "nearest":
            return str(body["condition"])
        case "caption":
            return " / ".join(body["captions"])
        case "answer":
            return str(body["query"])
        case "chat":
            return str(body["messages"][-1]["content"])
        case _:
            return " ".join(map(str, body["inputs"][0].values()))


def _shown(question: Question, value: Any) -> str:
    if value is None:
        return MISSING
    match question.form:
        case "caption":
            return str(question.body["captions"][value])
        case "nearest":
            return f"image {value}"
        case _:
            return " / ".join(value) or "a refusal" if isinstance(value, tuple) else str(value)
