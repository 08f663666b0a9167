"""(image, instruction, answer) triplets, and visual instruction data in LLaVA's JSON format that they are read from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from services.core.text_files import BadFile, Place, json_objects, text_of
from services.nn.image_transform import ImageTransform


@dataclass(frozen=True)
class TripletBatch:
    """R rows over B images: `image_index` (R,) points into the images; an instruction of None means no condition."""

    image_index: Tensor
    instructions: list[str | None]
    answers: list[str]


# Returns the images (B, height, width, 3) uint8 of a step, and its triplets.
TripletSource = Callable[[int], tuple[Tensor, TripletBatch]]


def llava_triplets(records: Sequence[dict[str, object]]) -> tuple[list[str], TripletBatch]:
    """Convert conversations in LLaVA's format → their image files and one row for each human turn with its answer.

    A record is `{"image": file, "conversations": [{"from": "human"|"gpt", "value": text}, …]}`. Turns of one
    conversation become rows with the same image: hard negatives of one another. Raises ValueError, naming the
    record, for an answer without a question before it.
    """
    images: list[str] = []
    image_index: list[int] = []
    instructions: list[str | None] = []
    answers: list[str] = []
    for record in records:
        question: str | None = None
        for turn in record["conversations"]:  # type: ignore[attr-defined]
            text = turn["value"].replace("<image>", "").strip()
            if turn["from"] == "human":
                question = text
            elif question is None:
                raise ValueError(f"record {record.get('id')!r}: an answer without a question")
            else:
                image_index.append(len(images))
                instructions.append(question)
                answers.append(text)
                question = None
        images.append(str(record["image"]))
    return images, TripletBatch(torch.tensor(image_index), instructions, answers)


class LlavaData:
    """Visual instruction data on disk: a JSON list of conversations and the folder of its images.

    Records without an image are left out. Raises BadFile if the file is not such a list.
    """

    def __init__(self, path: Path, image_folder: Path) -> None:
        self.records = [_checked(record, place) for place, record in json_objects(path) if "image" in record]
        if not self.records:
            raise BadFile(f"{path}: no record has an image")
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


def _checked(record: dict[str, Any], place: Place) -> dict[str, Any]:
    """Return a record that `llava_triplets` can convert. Raises BadFile."""
    text_of(record, "image", place, is_blank_refused=True)
    turns = record.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadFile(f"{place}: conversations: a list of turns is needed, objects with from and value")
    for number, turn in enumerate(turns):
        where = f"{place}: conversations.{number}"
        text_of(turn, "value", where)
        is_answer = text_of(turn, "from", where) != "human"
        if is_answer and (number == 0 or turns[number - 1]["from"] != "human"):
            raise BadFile(f"{where}: an answer without a question")
    return record


@dataclass(frozen=True)
class LlavaTriplets:
    """The images and triplets of LLaVA's data by step: `num_images` a step, each passed through a transform."""

    data: LlavaData
    transform: ImageTransform
    seed: int
    num_images: int

    def __call__(self, step: int) -> tuple[Tensor, TripletBatch]:
        files, triplets = self.data.batch(self.seed, step, self.num_images)
        images = [torch.tensor(self.transform(Image.open(file).convert("RGB"))) for file in files]
        return torch.stack(images), triplets
