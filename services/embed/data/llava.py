"""Visual instruction data in LLaVA's JSON format."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from services.embed.data.triplets import Row, TripletBatch, make_triplets


def llava_triplets(records: Sequence[dict[str, object]]) -> tuple[list[str], TripletBatch]:
    """Convert conversations in LLaVA's format → their image files and one row for each human turn with its answer.

    A record is `{"image": file, "conversations": [{"from": "human"|"gpt", "value": text}, …]}`. Turns of one
    conversation become rows with the same image: hard negatives of one another. Raises ValueError, naming the
    record, for an answer without a question before it.
    """
    images: list[str] = []
    rows: list[Row] = []
    for record in records:
        question: str | None = None
        for turn in record["conversations"]:  # type: ignore[attr-defined]
            text = turn["value"].replace("<image>", "").strip()
            if turn["from"] == "human":
                question = text
            elif question is None:
                raise ValueError(f"record {record.get('id')!r}: an answer without a question")
            else:
                rows.append(Row(len(images), question, text))
                question = None
        images.append(str(record["image"]))
    return images, make_triplets(rows)


class LlavaData:
    """Visual instruction data on disk: a JSON list of conversations and the folder of its images.

    Records without an image are left out. Raises OSError or ValueError if the file is not such a list.
    """

    def __init__(self, path: Path, image_folder: Path) -> None:
        records = json.loads(path.read_text())
        if not isinstance(records, list):
            raise ValueError(f"{path}: expected a JSON list of conversations")
        self.records = [record for record in records if "image" in record]
        self.image_folder = image_folder

    def batch(self, seed: int, step: int, num_images: int) -> tuple[list[Path], TripletBatch]:
        """Return step `step` of endless shuffled epochs; the last batch of an epoch continues into the next one."""
        picked: list[dict[str, object]] = []
        start = step * num_images
        while len(picked) < num_images:
            epoch, offset = divmod(start + len(picked), len(self.records))
            order = torch.randperm(
                len(self.records), generator=torch.Generator().manual_seed(seed * 1_000_000_007 + epoch)
            )
            picked += [self.records[i] for i in order[offset : offset + num_images - len(picked)].tolist()]
        images, triplets = llava_triplets(picked)
        return [self.image_folder / image for image in images], triplets
