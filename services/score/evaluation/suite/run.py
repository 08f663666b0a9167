"""One resumable run of the suite: what is there is evaluated, what is finished is kept, what is missing is named."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from services.jobs.published_data import MissingData
from services.score.evaluation.embeddings import Embedder
from services.score.evaluation.results import RESULT_FILES, Result
from services.score.evaluation.suite.parts import PARTS, Part


@dataclass
class Outcome:
    """The results of a run, and the parts, by name, that were evaluated now, before, or not, with the reason."""

    results: list[Result] = field(default_factory=list)
    evaluated: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def run_suite(
    load: Callable[[], Embedder],
    *,
    judge: str,
    data: Path,
    settings: Mapping[str, Any],
    save: Path | None = None,
    names: Sequence[str] = tuple(PARTS),
    limit: int | None = None,
    tell: Callable[[str], None] = print,
) -> Outcome:
    """Evaluate the parts of these names and save each when it is finished.

    The model is loaded when the first part needs it, so that a run with nothing left to do loads none. A part is
    finished if `save` has all of its scores by this judge, with these settings. Raises CannotJudge and OSError; what
    was evaluated before is saved.
    """
    outcome = Outcome()
    embedder: Embedder | None = None
    wanted = {**settings, "limit": limit}
    saved = RESULT_FILES.load([save]) if save is not None and save.is_file() else []
    own = [one for one in saved if one.judge == judge and is_of(one, wanted)]
    for name in names:
        part = PARTS[name]
        if is_finished(part, own):
            outcome.kept.append(name)
            continue
        try:
            evaluate = part.prepare(data, limit)
            embedder = embedder or load()
            result = evaluate(embedder)
        except MissingData as error:
            outcome.missing[name] = str(error)
            tell(f"{name}: {error}")
            continue
        found = replace(result, judge=judge, settings={**result.settings, **wanted})
        outcome.evaluated.append(name)
        outcome.results.append(found)
        if save is not None:
            RESULT_FILES.save([found], save)
        tell(f"{name}: {', '.join(f'{task} {score:.1f}' for task, score in found.scores.items())}")
    outcome.results = RESULT_FILES.merge([*own, *outcome.results])
    return outcome


def is_of(result: Result, settings: Mapping[str, Any]) -> bool:
    """Tell whether a result has these settings; it may have others, such as notes on its own data."""
    return all(result.settings.get(name) == value for name, value in settings.items())


def is_finished(part: Part, results: Sequence[Result]) -> bool:
    """Tell whether results have all scores of a part."""
    own = {name for result in results if result.benchmark == part.benchmark for name in result.scores}
    return own >= set(part.scores)


def fingerprint(model: Path | str) -> str:
    """Compute what tells a checkpoint from others: a digest of its files, or open_clip's name of it."""
    if isinstance(model, str):
        name, _, pretrained = model.partition(":")
        return f"{name}:{_digest([Path(pretrained)])}" if Path(pretrained).is_file() else model
    return _digest(sorted(path for path in model.rglob("*") if path.is_file()) if model.is_dir() else [model])


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(path.name.encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
