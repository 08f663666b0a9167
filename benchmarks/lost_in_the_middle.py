"""Answers by the position of the gold document: found-in-the-middle beside Ms-PoE, alone and together.

    python -m benchmarks.lost_in_the_middle CHECKPOINT [--data generated] [--positions 0,4,9] [--questions 100]

Every question is asked with its gold document at each position, in every way: the plain model; calibrated by its own
profile and by the paper's; with positions re-scaled (see benchmarks.ms_poe) by the paper's ratios in all layers and
from the third on, and by those of `TRIED` that answered most questions for calibration; and calibrated and re-scaled,
for which the choice is made under the profile. Intervals are of 95 %, by a bootstrap over questions; differences from
the plain model and from the calibrated one are paired.

Cost is that of the first token, one prompt at a time: tokens that run, relative to the prompt's, and CPU time on one
thread, relative to the plain model's in the same round. Positions are re-scaled by turning queries and keys a second
time, which an engine that knows of it would not have to do.

Then nDCG@10 of the documents by the attention that they get and by rel, gold anywhere. With `--ranking`, for long
prompts, this alone, without chosen ratios.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.ms_poe import PAPER, RELEASED, MsPoeModel, Ratios, save_with_own_keys
from benchmarks.ranking_by_attention import ndcg_at_10, rank_of
from benchmarks.record import record, summary
from services.generate.calibrate.bench import Bench, parse_positions
from services.generate.calibration import relevance
from services.generate.data.questions import Example, at_positions, place_gold, question_set
from services.generate.evaluation.protocols import AnswerOptions, answer
from services.generate.generation.bias import DummyOptions, estimated
from services.generate.model.profile import CalibrationProfile, paper_profile, read_profile
from services.nn.devices import DeviceOptions
from starters.generate import questions as questions  # gives the generated questions their names

TRIED = tuple(
    Ratios(*ends, first_layer) for ends in ((0.8, 1.0), (1.0, 1.2), (1.0, 1.5), (1.2, 1.8)) for first_layer in (0, 2)
)
OWN, EVERY_LAYER, LATER_LAYERS, CHOSEN = (
    "the model's own",
    "Ms-PoE, every layer",
    "Ms-PoE, from the third layer",
    "Ms-PoE, chosen",
)
RESAMPLES = 2_000

Answers = NDArray[np.bool_]  # (positions, questions), whether each is right


@dataclass(frozen=True)
class Way:
    """A way to answer: re-scaled positions or the model's own, calibrated or not."""

    ratios: Ratios | None = None
    profile: CalibrationProfile | None = None


@dataclass(frozen=True)
class Choice:
    """Percentages of right answers with the model's own positions and then with each of `TRIED`."""

    shares: tuple[float, ...]

    @property
    def best(self) -> Ratios:
        """The ratios with most right answers; of equal ones, the first."""
        return TRIED[int(np.argmax(self.shares[1:]))]

    def recorded(self) -> dict[str, Any]:
        """Return what the record holds."""
        return {
            "best": asdict(self.best),
            "shares": dict(zip(("none", *map(_name_of, TRIED)), self.shares, strict=True)),
        }


@dataclass(frozen=True)
class Workbench:
    """One model, and what it is asked."""

    bench: Bench
    model: MsPoeModel
    num_documents: int
    positions: tuple[int, ...]

    def answers(self, ways: Sequence[Way], examples: Sequence[Example]) -> list[list[bool]]:
        """Return for each way which examples are answered right; ways with equal ratios share their prefills."""
        right: list[list[bool]] = [[] for _ in ways]
        for ratios in dict.fromkeys(way.ratios for way in ways):
            places = [place for place, way in enumerate(ways) if way.ratios == ratios]
            self.model.ratios = ratios
            found = self.bench.ask([ways[place].profile for place in places], examples)
            for place, of_way in zip(places, found, strict=True):
                right[place] = of_way
        return right

    def by_position(self, ways: Sequence[Way], examples: Sequence[Example]) -> list[Answers]:
        """Ask every example with its gold document at each position."""
        placed = [place_gold(example, place) for place in self.positions for example in examples]
        return [np.array(right).reshape(len(self.positions), -1) for right in self.answers(ways, placed)]

    def choose(self, profiles: Sequence[CalibrationProfile | None], examples: Sequence[Example]) -> list[Choice]:
        """Choose ratios for each profile."""
        ways = [Way(ratios, profile) for profile in profiles for ratios in (None, *TRIED)]
        shares = [100 * statistics.fmean(right) for right in self.answers(ways, examples)]
        each = len(ways) // len(profiles)
        return [Choice(tuple(shares[start : start + each])) for start in range(0, len(shares), each)]

    def cost(self, ways: Mapping[str, Way], examples: Sequence[Example]) -> dict[str, dict[str, Any]]:
        """Measure the first token by every way in turn, one prompt a round, after a round that does not count."""
        options = AnswerOptions(max_tokens=1)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        tokens: dict[str, list[float]] = {name: [] for name in ways}
        for number, prompt in enumerate(self.bench.prompts(examples, "newline")):
            for name, way in ways.items():
                self.model.ratios = way.ratios
                before, began = self.model.num_computed, time.process_time()
                answer(self.model, [prompt], options, way.profile)
                if number:
                    seconds[name].append(time.process_time() - began)
                    tokens[name].append((self.model.num_computed - before) / len(prompt.input_ids))
        plain = next(iter(ways))
        return {
            name: {
                "prefills": statistics.fmean(tokens[name]),
                "over_plain": summary([one / other for one, other in zip(seconds[name], seconds[plain], strict=True)]),
            }
            for name in ways
        }

    def rankings(
        self, ratios: Ratios | None, profile: CalibrationProfile, examples: Sequence[Example]
    ) -> dict[str, list[float]]:
        """Return each example's nDCG@10 by attention and by rel, of all layers and of those of the profile."""
        self.model.ratios = ratios
        kind, options = estimated(profile.bias), DummyOptions(profile.dummy)
        found: dict[str, list[float]] = {}
        for one in self.bench.measure(examples, profile.span_rule, kind, options):
            for source, layers in (("all layers", None), ("the profile's", profile.rel_layers)):
                for name, bias in (("attention", torch.zeros_like(one.bias)), ("rel", one.bias)):
                    rank = rank_of(relevance(one.attention, bias, layers=layers), one.gold)
                    found.setdefault(f"{name}, {source}", []).append(ndcg_at_10([rank]))
        return found


def _name_of(ratios: Ratios) -> str:
    return f"{ratios.least} to {ratios.greatest} from layer {ratios.first_layer}"


def resampled(num_questions: int) -> NDArray[np.int64]:
    """Draw the questions of each resample of the bootstrap, the same for every way: (R, questions)."""
    return np.random.default_rng(0).integers(num_questions, size=(RESAMPLES, num_questions))


def interval(values: NDArray[np.float64]) -> list[float]:
    """Return the bounds of the middle 95 % of values of the resamples."""
    return [round(float(bound), 4) for bound in np.percentile(values, (2.5, 97.5))]


def scores(right: Answers, plain: Answers, calibrated: Answers) -> dict[str, Any]:
    """Summarise a way's answers in percent, with intervals, and its differences from two others.

    `worst_place` counts the positions from 0.
    """
    drawn = resampled(right.shape[1])
    each, other, third = (100 * one.mean(axis=0) for one in (right, plain, calibrated))
    difference = 100 * (right.astype(float) - plain)
    by_position = 100 * right.mean(axis=1)
    return {
        "by_position": [round(float(share), 2) for share in by_position],
        "mean": round(float(each.mean()), 2),
        "mean_interval": interval(each[drawn].mean(axis=1)),
        "over_plain": round(float((each - other).mean()), 2),
        "over_plain_interval": interval((each - other)[drawn].mean(axis=1)),
        "over_plain_by_position": [interval(one[drawn].mean(axis=1)) for one in difference],
        "over_calibrated": round(float((each - third).mean()), 2),
        "over_calibrated_interval": interval((each - third)[drawn].mean(axis=1)),
        "worst_place": int(by_position.argmin()),
        "worst": round(float(by_position.min()), 2),
        "worst_interval": interval(100 * right[:, drawn].mean(axis=2).min(axis=0)),
    }


def ndcg(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the mean nDCG@10 of each source with its interval."""
    return {
        name: {"mean": round(statistics.fmean(values), 4), "interval": interval(_means(values))}
        for name, values in found.items()
    }


def _means(values: Sequence[float]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = np.array(values)[resampled(len(values))].mean(axis=1)
    return means


def show(result: Mapping[str, Any]) -> None:
    """Print the answers with their cost, and the rankings."""
    console = Console(width=200)
    if "answers" in result:
        table = Table(
            "way", "by position", "mean", "over plain", "worst", "prefills", "time", title="right, in percent"
        )
        for name, row in result["answers"].items():
            low, high = row["mean_interval"]
            least, most = row["over_plain_interval"]
            cost = result["cost"][name]
            table.add_row(
                name,
                " ".join(f"{share:.0f}" for share in row["by_position"]),
                f"{row['mean']:.1f} ({low:.1f} to {high:.1f})",
                f"{row['over_plain']:+.1f} ({least:+.1f} to {most:+.1f})",
                f"{row['worst']:.1f} at {result['positions'][row['worst_place']] + 1}",
                f"{cost['prefills']:.2f}",
                f"{cost['over_plain']['median']:.2f}",
            )
        console.print(table)
    rankings = Table("positions", *next(iter(result["ndcg"].values())), title="nDCG@10")
    for name, row in result["ndcg"].items():
        cells = (f"{one['mean']:.3f} ({one['interval'][0]:.3f} to {one['interval'][1]:.3f})" for one in row.values())
        rankings.add_row(name, *cells)
    console.print(rankings)


def measured(desk: Workbench, profile: CalibrationProfile, options: argparse.Namespace) -> dict[str, Any]:
    """Choose ratios on questions for calibration, then answer and rank others."""
    questions = desk.bench.questions
    asked = questions.examples("evaluation", desk.num_documents, options.questions, options.seed)
    anywhere = at_positions(asked, range(desk.num_documents))
    positions: dict[str, Ratios | None] = {OWN: None, EVERY_LAYER: PAPER, LATER_LAYERS: RELEASED}
    if options.ranking:
        return {"ndcg": {name: ndcg(desk.rankings(one, profile, anywhere)) for name, one in positions.items()}}
    choosing = questions.examples("calibration", desk.num_documents, options.chosen_on, options.seed)
    alone, beside = desk.choose((None, profile), at_positions(choosing, range(desk.num_documents)))
    positions[CHOSEN] = alone.best
    ways = {
        "plain": Way(),
        "calibrated, its profile": Way(None, profile),
        "calibrated, the paper's profile": Way(None, paper_profile(desk.bench.num_layers)),
        **{name: Way(ratios) for name, ratios in positions.items() if ratios is not None},
        f"calibrated, {LATER_LAYERS}": Way(RELEASED, profile),
        f"calibrated, {CHOSEN}": Way(beside.best, profile),
    }
    right = desk.by_position(list(ways.values()), asked)
    return {
        "positions": desk.positions,
        "chosen_on": len(choosing),
        "chosen": {"alone": alone.recorded(), "beside": beside.recorded()},
        "answers": {name: scores(of_way, *right[:2]) for name, of_way in zip(ways, right, strict=True)},
        "cost": desk.cost(ways, list(itertools.islice(itertools.cycle(anywhere), options.timed + 1))),
        "ndcg": {name: ndcg(desk.rankings(one, profile, anywhere)) for name, one in positions.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="with a profile")
    parser.add_argument("--data", default="generated", help="as for python -m starters evaluate litm")
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--positions", default="0,4,9", help="of the gold document, from 0, as in 0,4,9")
    parser.add_argument("--questions", type=int, default=100, help="each is asked at every position")
    parser.add_argument("--chosen-on", type=int, default=100, help="questions, each at one position")
    parser.add_argument("--timed", type=int, default=20, help="questions, at least 1, that the time is measured on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranking", action="store_true", help="nothing but rankings")
    parser.add_argument("--name", help="of the model in the record; the checkpoint's folder by default")
    options = parser.parse_args()
    profile = read_profile(options.checkpoint)
    if profile is None or not profile.enabled:
        parser.error(f"{options.checkpoint} has no profile that calibrates: fovea calibrate makes one")
    positions = parse_positions(options.positions, options.documents)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "checkpoint"
        save_with_own_keys(options.checkpoint, target)
        model = MsPoeModel.load(target, DeviceOptions(device="cpu"))
        assert isinstance(model, MsPoeModel)
        torch.set_num_threads(1)
        bench = Bench(model, question_set(options.data), max_cached_tokens=16_384)
        result = measured(Workbench(bench, model, options.documents, positions), profile, options)
    show(result)
    asked = bench.questions.examples("evaluation", options.documents, options.questions, options.seed)
    record(
        "lost_in_the_middle",
        {
            "model": options.name or options.checkpoint.name,
            "data": bench.questions.name,
            "documents": options.documents,
            "seed": options.seed,
            "questions": len(asked),
            "tokens": round(statistics.fmean(len(one.input_ids) for one in bench.prompts(asked[:50], "newline"))),
            "profile": profile.model_dump(mode="json", exclude={"gain", "tables", "answerability"}),
            **result,
        },
    )


if __name__ == "__main__":
    main()
