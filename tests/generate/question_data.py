"""Questions over real documents, where a copy of the public data sets lies beside the checkout."""

import csv
import gzip
import json
import random

from services.generate.prompts.templates import Document
from tests.published_data import published


def natural_questions() -> list[tuple[str, Document]]:
    """lost-in-the-middle's questions, each with its gold passage."""
    path = published("lost-in-the-middle/nq-open-oracle.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(row["question"], Document(row["ctxs"][0]["text"], row["ctxs"][0]["title"])) for row in rows]


def synthwiki() -> list[tuple[str, Document]]:
    """SynthWiki's questions, each with its article, which has no title."""
    path = published("synthwiki/madlibs1.csv")
    with path.open(encoding="utf-8", newline="") as lines:
        return [(row["question"], Document(row["context"])) for row in csv.DictReader(lines)]


def sampled(
    rows: list[tuple[str, Document]], num_prompts: int, num_documents: int, seed: int = 0
) -> list[tuple[str, list[Document]]]:
    """Questions over their own document and others', all different, in random order."""
    generator = random.Random(seed)
    every = list(dict.fromkeys(document for _, document in rows))
    prompts = []
    for question, gold in generator.sample(rows, num_prompts):
        others = [d for d in generator.sample(every, num_documents) if d != gold][: num_documents - 1]
        documents = [gold, *others]
        generator.shuffle(documents)
        prompts.append((question, documents))
    return prompts
