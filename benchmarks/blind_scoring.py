"""Captions a second that a blind model scores: in batches of equal lengths, and by transformers text by text.

python -m benchmarks.blind_scoring [--pairs 1000] [--rounds 3] [--model blind-plausibility …]

The captions are SugarCrepe's where its files are in `shared/data`, generated scenes otherwise; each pair is two texts.
The alternative is what one writes first: a loop that tokenises a text and calls the model. Times are processor times of
one thread. No cache is used.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.record import record, summary
from services.jobs.sugarcrepe import published_pairs
from services.nn.loading import quiet_loading, transformers
from services.nn.sentence_scores import load_scorer
from tests.published_data import FOLDER

STARTERS = Path(__file__).parents[1] / "services" / "curate" / "starter"
MODELS = ("blind-plausibility", "blind-grammar")
SUGARCREPE = FOLDER / "sugar-crepe" / "refined"


def texts_of(num_pairs: int) -> list[str]:
    """Return both captions of pairs, in a random order of the pairs."""
    if SUGARCREPE.is_dir():
        pairs = random.Random(0).sample(published_pairs(SUGARCREPE), num_pairs)
        return [text for pair in pairs for text in (pair.caption, pair.negative_caption)]
    draw = random.Random(0)
    words = ("a", "the", "red", "small", "dog", "cat", "on", "in", "front", "of", "mat", "tree", "two", "riding")
    return [" ".join(draw.choices(words, k=draw.randint(5, 18))) for _ in range(2 * num_pairs)]


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@torch.inference_mode()
def in_a_loop(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[float]:
    """Score one text after the other by transformers alone."""
    return [model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0, 1].item() for text in texts]


def measure(directory: Path, texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Measure both ways on the same texts, in turn, and how far their scores differ at most."""
    scorer = load_scorer(directory)
    with quiet_loading():
        model = transformers().AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
        tokenizer = transformers().AutoTokenizer.from_pretrained(directory)
    loop = partial(in_a_loop, model.eval(), tokenizer, texts)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(len(texts) / 2 / seconds(partial(scorer.scores, texts)))
        theirs.append(len(texts) / 2 / seconds(loop))
    difference = max(abs(one - other) for one, other in zip(scorer.scores(texts), loop(), strict=True))
    return {
        "model": directory.name,
        "pairs_per_s": summary(ours),
        "loop_pairs_per_s": summary(theirs),
        "ratio": round(sorted(ours)[rounds // 2] / sorted(theirs)[rounds // 2], 1),
        "largest_difference": float(f"{difference:.2g}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", action="append", type=Path, help="Folder of a classifier. Repeatable.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    texts = texts_of(options.pairs)
    found = [measure(path, texts, options.rounds) for path in options.model or [STARTERS / name for name in MODELS]]
    table = Table("model", "pairs/s", "in a loop", "ratio", "largest difference", title="Blind scoring")
    for one in found:
        speeds = f"{one['pairs_per_s']['median']:.0f}", f"{one['loop_pairs_per_s']['median']:.0f}"
        table.add_row(one["model"], *speeds, f"{one['ratio']:.1f}", str(one["largest_difference"]))
    Console(width=100).print(table)
    record("blind_scoring", {"texts": len(texts), "models": found})


if __name__ == "__main__":
    main()
