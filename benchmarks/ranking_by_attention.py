"""nDCG@10 of rankings by attention: estimates of the bias, and layers or heads; and what each costs.

python -m benchmarks.ranking_by_attention CHECKPOINT [--data generated] [--artificial-bias 4] [--name litm-facts]

Layers and heads are chosen on the data's questions for calibration and judged on others; gold documents are anywhere.
For each estimate of the bias: all layers; the run of layers with the best recall; the heads by QRHead's score and by
CoRe's. `none` subtracts nothing.
`question` is the content-free question in every place of the prompt, which takes a second prefill, whereas `query`
replaces only the one after the documents. Documents of NaturalQuestions' oracle file come with the passages of other
questions that are most similar to the question by TF-IDF.
"""

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.artificial_bias import save_with_bias
from benchmarks.record import record, summary
from services.generate.calibrate.bench import Bench, in_batches, prefilled
from services.generate.calibrate.search import (
    Measured,
    RelSetting,
    middle_positions,
    rank_heads,
    rank_rel_settings,
    rel_setting,
)
from services.generate.calibration import relevance
from services.generate.data.questions import Example, Part, QuestionSet, at_positions, question_set
from services.generate.evaluation.protocols import similarities
from services.generate.generation.bias import EstimateKind
from services.generate.generation.ranking import rank, run_rankings
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import OFF, CalibrationProfile
from services.generate.prompts.ranking import RankMethod, prepare_ranking
from services.generate.prompts.templates import CONTENT_FREE, Document
from services.jobs.options import among
from services.nn.devices import DeviceOptions

KINDS: tuple[EstimateKind, ...] = ("exact", "tree", "single", "query")
ALONE: tuple[RankMethod, ...] = ("query_likelihood", "relevance_prompt")
NONE, QUESTION = "none", "question"
# layers of no choice, and heads, which let the estimate end earlier
TIMED = ("all layers", "heads, CoRe")


@dataclass(frozen=True)
class Comparison:
    """nDCG@10 by estimate and source, and the sources."""

    ndcg: dict[str, dict[str, float]]
    sources: dict[str, dict[str, RelSetting]]


def ndcg_at_10(ranks: Sequence[int]) -> float:
    """The mean over questions of 1 / log2(1 + rank) of the only relevant document, 0 after the tenth."""
    return statistics.fmean(1 / math.log2(1 + rank) if rank <= 10 else 0.0 for rank in ranks)


def rank_of(scores: Tensor, gold: int) -> int:
    """The gold document's rank from 1 by scores (K,); of equal ones it is the last."""
    return int((scores >= scores[gold]).sum())


def measure(bench: Bench, examples: Sequence[Example], kinds: Sequence[EstimateKind]) -> dict[str, list[Measured]]:
    """Measure the examples with every estimate of the bias, and with none."""
    found: dict[str, list[Measured]] = {name: [] for name in (NONE, *kinds)}
    prompts = bench.prompts(examples, "newline")
    for places in in_batches(prompts, 1, bench.max_cached_tokens):
        with prefilled(bench.model, [prompts[place] for place in places], 1) as batch:
            biases: dict[str, list[Tensor]] = {NONE: [torch.zeros_like(one) for one in batch.attention]}
            biases |= {kind: [one.attention for one in batch.estimate(kind)] for kind in kinds}
            for name, of_batch in biases.items():
                found[name] += [
                    Measured(attention, bias, examples[place].gold)
                    for place, attention, bias in zip(places, batch.attention, of_batch, strict=True)
                ]
    without = [replace(one, question=CONTENT_FREE.strip()) for one in examples]
    unasked = list(bench.attention(without, "newline"))
    return {**found, QUESTION: [replace(one, bias=bias) for one, bias in zip(found[NONE], unasked, strict=True)]}


def sources(measured: Sequence[Measured]) -> dict[str, RelSetting]:
    """Choose what enters rel: all layers, the best run of them, heads by either score."""
    every = tuple(range(measured[0].attention.shape[0]))
    (qr,), (core,) = (rank_heads(measured, "newline", [score]) for score in ("qr", "core"))
    return {
        "all layers": rel_setting(measured, "newline", every),
        "layers": rank_rel_settings(measured, "newline")[0],
        "heads, QRHead": qr,
        "heads, CoRe": core,
    }


def compare(
    bench: Bench, chosen_on: Sequence[Example], judged_on: Sequence[Example], kinds: Sequence[EstimateKind]
) -> Comparison:
    """Rank the second questions by sources that were chosen on the first."""
    own, other = (measure(bench, some, kinds) for some in (chosen_on, judged_on))
    comparison = Comparison({}, {})
    for kind, measured in own.items():
        chosen = sources(measured)
        comparison.sources[kind] = chosen
        comparison.ndcg[kind] = {
            name: ndcg_at_10([rank_of(_rel(one, source), one.gold) for one in other[kind]])
            for name, source in chosen.items()
        }
    return comparison


def alone(model: LanguageModel, examples: Sequence[Example]) -> dict[str, float]:
    """Return nDCG@10 of the methods that read each document on its own, and of TF-IDF."""
    found: dict[str, float] = {}
    for method in ALONE:
        jobs = [
            prepare_ranking(model.tokenizer, model.config.max_model_len, one.question, one.documents, method)
            for one in examples
        ]
        rankings = itertools.chain.from_iterable(run_rankings(model, jobs[i : i + 32]) for i in range(0, len(jobs), 32))
        ranks = [
            rank_of(torch.tensor(ranking.scores), one.gold) for ranking, one in zip(rankings, examples, strict=True)
        ]
        found[method] = ndcg_at_10(ranks)
    lexical = [rank_of(torch.tensor(similarities(one.question, _texts(one.documents))), one.gold) for one in examples]
    return {**found, "TF-IDF": ndcg_at_10(lexical)}


def milliseconds(model: LanguageModel, comparison: Comparison, examples: Sequence[Example]) -> dict[str, Any]:
    """Measure the CPU milliseconds of each way in turn, one question at a time, after a round that does not count."""
    ways: dict[str, tuple[RankMethod, CalibrationProfile]] = {
        method: (method, OFF) for method in ("attention", *ALONE)
    } | {
        f"{kind}, {name}": ("calibrated", _profile(source, kind))
        for kind in KINDS
        if kind in comparison.sources
        for name, source in comparison.sources[kind].items()
        if name in TIMED
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for number, one in enumerate(examples):
        for name, (method, profile) in ways.items():
            began = time.process_time()
            rank(model, one.question, one.documents, method, profile)
            if number:
                samples[name].append(1000 * (time.process_time() - began))
    return {name: summary(values) for name, values in samples.items()}


def with_similar_documents(examples: Sequence[Example], num_documents: int, count: int) -> list[Example]:
    """Replace the first examples' other documents by those gold ones that TF-IDF finds most similar to the question."""
    pool = list(dict.fromkeys(one.documents[one.gold] for one in examples))
    texts = _texts(pool)
    return [_with_similar(one, pool, texts, num_documents) for one in examples[:count]]


def _with_similar(one: Example, pool: Sequence[Document], texts: Sequence[str], num_documents: int) -> Example:
    gold = one.documents[one.gold]
    cosines = similarities(one.question, texts)
    nearest = sorted(range(len(pool)), key=lambda place: -cosines[place])
    # another passage of the gold one's article may answer as well
    others = [pool[place] for place in nearest if pool[place].title != gold.title or not gold.title]
    others = [document for document in others if document != gold][: num_documents - 1]
    return replace(one, documents=(gold, *others), gold=0)


def _rel(one: Measured, source: RelSetting) -> Tensor:
    return relevance(one.attention, one.bias, layers=source.layers, heads=source.heads)


def _profile(source: RelSetting, kind: EstimateKind) -> CalibrationProfile:
    return OFF.model_copy(update={"bias": kind, "rel_layers": source.layers, "rel_heads": source.heads})


def _texts(documents: Sequence[Document]) -> list[str]:
    return [f"{document.title} {document.text}" for document in documents]


def show(title: str, comparison: Comparison, others: Mapping[str, float]) -> None:
    """Print nDCG@10 by estimate and source, and what the sources are."""
    table = Table("bias", *next(iter(comparison.ndcg.values())), title=title)
    for kind, row in comparison.ndcg.items():
        cells = []
        for name, value in row.items():
            source = comparison.sources[kind][name]
            heads = " ".join(f"{layer}.{head}" for layer, head in source.heads)
            cells.append(f"{value:.3f} ({heads or ' '.join(map(str, source.layers))})")
        table.add_row(kind, *cells)
    console = Console(width=200)
    console.print(table)
    console.print(others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", default="generated", help="as for python -m starters evaluate litm")
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--questions", type=int, default=200, help="to choose with, and as many to rank")
    parser.add_argument("--timed", type=int, default=15, help="questions, at least 2, that the time is measured on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--middle", action="store_true", help="choose with gold documents in the middle alone")
    parser.add_argument("--artificial-bias", type=float, default=0.0, help="added to the logits of documents at ends")
    parser.add_argument("--similar", action="store_true", help="documents that are similar to the question")
    parser.add_argument("--estimates", default=",".join(KINDS), help="some of them, for long prompts")
    parser.add_argument("--name", help="of the model in the record; the checkpoint's folder by default")
    options = parser.parse_args()
    kinds = among(options.estimates, KINDS, "--estimates")
    torch.set_num_threads(1)
    questions = question_set(options.data)
    with tempfile.TemporaryDirectory() as folder:
        model = LanguageModel.load(options.checkpoint, DeviceOptions(device="cpu"))
        bench = Bench(model, questions, max_cached_tokens=16_384)
        chosen_on, judged_on = (_placed(questions, part, options) for part in ("calibration", "evaluation"))
        if options.artificial_bias:
            target = Path(folder) / "biased"
            prompts = bench.prompts(chosen_on[:40], "newline")
            layer = model.config.num_layers // 2
            save_with_bias(options.checkpoint, target, model.tokenizer, prompts, layer, options.artificial_bias)
            model = LanguageModel.load(target, DeviceOptions(device="cpu"))
            bench = replace(bench, model=model)
        comparison, others = compare(bench, chosen_on, judged_on, kinds), alone(model, judged_on)
        show(f"{options.checkpoint}, {options.data}, seed {options.seed}", comparison, others)
        took = milliseconds(model, comparison, judged_on[: options.timed + 1])
    record(
        "ranking_by_attention",
        {
            "model": options.name or options.checkpoint.name,
            "artificial_bias": options.artificial_bias,
            "data": questions.name,
            "documents": options.documents,
            "similar": options.similar,
            "chosen_in_the_middle": options.middle,
            "seed": options.seed,
            "questions": len(judged_on),
            "tokens": round(statistics.fmean(len(one.input_ids) for one in bench.prompts(judged_on[:50], "newline"))),
            "ndcg": comparison.ndcg,
            "sources": {
                kind: {name: source.heads or source.layers for name, source in row.items()}
                for kind, row in comparison.sources.items()
            },
            "alone": others,
            "cpu_ms": took,
        },
    )


def _placed(questions: QuestionSet, part: Part, options: argparse.Namespace) -> list[Example]:
    """Questions of a part: for calibration with gold in the middle, for evaluation anywhere."""
    count = None if options.similar else options.questions
    examples = questions.examples(part, options.documents, count, options.seed)
    if options.similar:
        examples = with_similar_documents(examples, options.documents, options.questions)
    is_middle = part == "calibration" and options.middle
    return at_positions(examples, middle_positions(options.documents) if is_middle else range(options.documents))


if __name__ == "__main__":
    main()
