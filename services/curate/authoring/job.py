"""Generation as one step: from captions to the files of kept and rejected hard negatives."""

import asyncio
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from services.core.durable_files import write_durably
from services.core.openai_client import Api, Endpoint, Patience
from services.core.refusals import Refused
from services.curate.authoring.candidates import Candidate, Outcome, Rejected, separated, write_outcomes
from services.curate.authoring.generation import Progress, Teacher, candidates_of, generate
from services.curate.data.captions import Caption
from services.jobs.inquiry import Tokens
from services.jobs.progress import Bars, counted
from services.jobs.sugarcrepe import Pair, PairKind
from services.score.negatives.prompting.checks import WRITTEN_KINDS, WrittenKind
from services.score.negatives.prompting.prompt_files import load_prompts
from services.score.negatives.prompting.writer import Requests, Steps, Style, Writer

SUMMARY = "summary.json"
# Seconds for an answer of a sentence or a few, also from a model that thinks first.
TIMEOUT_S = 120.0
RULE_KINDS: tuple[PairKind, ...] = (
    *("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att"),
    *("negate", "shuffle"),
)  # fmt: skip


class GenerateOptions(BaseModel):
    """Options of a generation: what the command's options and a recipe's table `generate` say.

    Raises ValidationError for unknown names and values out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["llm", "rules"] = "llm"
    kinds: tuple[PairKind, ...] | None = Field(None, min_length=1)
    per_kind: int = Field(1, ge=1, le=100)

    endpoint: str = "http://127.0.0.1:8080/v1"
    model: str | None = None
    api: Api = "chat"
    key_variable: str | None = None
    steps: Steps = "three"
    prompts: Path | None = None
    temperature: float = Field(0.0, ge=0, le=2)
    proposing_temperature: float = Field(1.5, ge=0, le=2)
    max_tokens: int = Field(256, ge=1)
    extra: dict[str, Any] = Field(default_factory=dict)
    concurrency: int = Field(8, ge=1)
    attempts: int = Field(Patience.attempts, ge=1)
    timeout_s: float = Field(TIMEOUT_S, gt=0)
    price_in: float | None = Field(None, ge=0)
    price_out: float | None = Field(None, ge=0)
    max_unusable: float = Field(0.9, ge=0, le=1)
    max_unanswered: float = Field(0.0, ge=0, le=1)

    wordnet: Path | None = None
    negation: Literal["plain", "crepe"] = "plain"
    seed: int = Field(0, ge=0)

    def written_kinds(self) -> tuple[WrittenKind, ...]:
        """Return the types for a model. Raises ValueError for one that only rules make."""
        if self.kinds is None:
            return WRITTEN_KINDS
        if unknown := [kind for kind in self.kinds if kind not in WRITTEN_KINDS]:
            raise ValueError(f"kinds: {unknown[0]} is made by rules alone; a model writes {', '.join(WRITTEN_KINDS)}")
        return tuple(kind for kind in WRITTEN_KINDS if kind in self.kinds)

    def rule_kinds(self) -> tuple[PairKind, ...]:
        """Return the types for the rules. Raises ValueError for one that they do not make."""
        if self.kinds is None:
            return RULE_KINDS
        if unknown := [kind for kind in self.kinds if kind not in RULE_KINDS]:
            raise ValueError(f"kinds: {unknown[0]} needs a model; the rules make {', '.join(RULE_KINDS)}")
        return tuple(kind for kind in RULE_KINDS if kind in self.kinds)

    def writer(self) -> Writer:
        """Make the writer with the prompts. Raises BadFile."""
        style = Style(self.steps, self.temperature, self.proposing_temperature)
        return Writer(load_prompts(self.prompts, self.written_kinds()), style)

    def teacher(self, environment: Mapping[str, str] = os.environ) -> Teacher:
        """Make the teacher; its key comes from the environment. Raises ValueError without a model or that key."""
        if self.model is None:
            raise ValueError(
                "model: give the name of the endpoint's model (--model), or choose the rules (--method rules)"
            )
        key = None
        if self.key_variable is not None and not (key := environment.get(self.key_variable)):
            raise Refused(f"{self.key_variable} is not set")
        return Teacher(
            Endpoint(self.endpoint, self.api, key),
            Requests(self.model, self.api, self.max_tokens, self.extra),
            Patience(self.attempts, self.timeout_s),
            self.concurrency,
        )


@dataclass(frozen=True)
class Generated:
    """The result of a generation: pairs and rejected candidates in the captions' order, and what it took."""

    pairs: list[Pair]
    rejected: list[Rejected]
    progress: Progress
    max_unanswered: float = 0.0

    @property
    def num_candidates(self) -> int:
        return len(self.pairs) + len(self.rejected)

    @property
    def num_unanswered(self) -> int:
        return sum(one.reason == "unanswered" for one in self.rejected)

    @property
    def lacks_answers(self) -> bool:
        """Whether more candidates have no answer than may be rejected for it."""
        return self.num_unanswered > self.max_unanswered * self.num_candidates

    def told_unanswered(self, what: str) -> str:
        """Tell how many candidates have no answer, and how to go on; `what` is to be run again."""
        number = self.num_unanswered
        least = math.ceil(1000 * number / self.num_candidates) / 1000
        return (
            f"{counted(number, 'candidate')} of {self.num_candidates:,} without an answer; run the same {what} to ask"
            f" again, or let them count as rejected with --max-unanswered {least:g} (in a recipe"
            f" generate.max_unanswered = {least:g})"
        )


def run_generation(captions: Sequence[Caption], options: GenerateOptions, folder: Path, console: Console) -> Generated:
    """Make the hard negatives of captions and write their files into the folder, continuing what is there.

    Raises what `generate` raises, ValueError and OSError.
    """
    progress = Progress(Tokens(options.price_in, options.price_out), max_unusable=options.max_unusable)
    if options.method == "rules":
        outcomes = _by_rules(captions, options, console, progress)
    else:
        candidates = candidates_of(captions, options.written_kinds(), options.per_kind)
        work = generate(candidates, options.writer(), options.teacher(), folder, console, progress)
        outcomes = asyncio.run(work)
    pairs, rejected = separated(outcomes)
    write_outcomes(folder, pairs, rejected)
    write_durably(folder / SUMMARY, [json.dumps(_summary(len(captions), pairs, rejected, progress), indent=1).encode()])
    return Generated(pairs, rejected, progress, options.max_unanswered)


def _by_rules(
    captions: Sequence[Caption], options: GenerateOptions, console: Console, progress: Progress
) -> list[Outcome]:
    from services.curate.authoring.rules import installed_rules  # needs a tagger, which a model does not

    candidates = [
        Candidate(caption, kind, draw)
        for caption in captions
        for kind in options.rule_kinds()
        for draw in range(options.per_kind)
    ]
    rules = installed_rules(options.wordnet, options.negation)
    outcomes = []
    with Bars(console).bar("Negatives", total=len(candidates)) as bar:
        for one in candidates:
            outcomes.append(rules.make(one, options.seed))
            progress.add(outcomes[-1])
            bar.advance()
    return outcomes


def _summary(
    num_captions: int, pairs: Sequence[Pair], rejected: Sequence[Rejected], progress: Progress
) -> dict[str, Any]:
    """Numbers of candidates by type and fate, of tokens, and their cost."""
    by_kind: dict[str, dict[str, int]] = {}
    for one in pairs:
        counts = by_kind.setdefault(one.kind, {})
        counts["kept"] = counts.get("kept", 0) + 1
    for other in rejected:
        counts = by_kind.setdefault(other.kind, {})
        counts[other.reason] = counts.get(other.reason, 0) + 1
    tokens = progress.tokens
    return {
        "captions": num_captions,
        "candidates": len(pairs) + len(rejected),
        "kept": len(pairs),
        "by_kind": by_kind,
        "prompt_tokens": tokens.prompt_tokens,
        "completion_tokens": tokens.completion_tokens,
        "cost": tokens.cost,
    }
