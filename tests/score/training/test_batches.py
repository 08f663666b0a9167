"""Batches are functions of (seed, step) alone, whatever they are read from, and hold the negatives that exist."""

import io
import json
import random
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from services.score.data.captioned_images import CaptionedImages, Unreadable, open_shards, open_table, read_stored
from services.score.negatives.annotation import TextBlobAnnotator
from services.score.negatives.hard_negatives import KINDS, HardNegatives
from services.score.training.batches import ImageSource, Source, TuningData
from starters.score.training.tuning import SceneLexicon, SceneSource
from tests.score.tiny import IMAGE_SIZE, tiny_clip

CAPTIONS = ("a red circle left of a blue square", "two green stars", "hello", "a black cat above a white dog")


def picture(shade: int, *, form: str = "PNG") -> bytes:
    """An image of one gray, by which it is known again."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((40, 60, 3), shade, dtype=np.uint8)).save(buffer, form)
    return buffer.getvalue()


def write_folder(folder: Path, num_images: int = 8) -> Path:
    table = folder / "captions.tsv"
    rows = ["filepath\ttitle"]
    for i in range(num_images):
        (folder / f"{i}.png").write_bytes(picture(10 * i))
        rows.append(f"{i}.png\t{CAPTIONS[i % 4]} {i}")
    table.write_text("\n".join(rows) + "\n")
    return table


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_shards(folder: Path) -> str:
    for shard in range(3):
        members: dict[str, bytes] = {}
        for i in range(4):
            number = 4 * shard + i
            members[f"{number:04d}.png"] = picture(10 * number)
            if i % 2:
                members[f"{number:04d}.json"] = json.dumps({"caption": f"number {number}"}).encode()
            else:
                members[f"{number:04d}.txt"] = f" number  {number}\n".encode()
        members["loose.png"] = picture(250)  # without a caption
        write_tar(folder / f"shard-{shard:02d}.tar", members)
    return str(folder / "shard-{00..02}.tar")


def epoch(images: CaptionedImages, seed: int, number: int = 0) -> list[tuple[int, str]]:
    """Gray and caption of each example of an epoch."""
    first = number * len(images)
    examples = [images.example(seed, position) for position in range(first, first + len(images))]
    return [(image.getpixel((0, 0))[0], caption) for image, caption, *_ in examples]  # type: ignore[index]


def tuning_data(source: Source, *, num_images: int = 4) -> TuningData:
    return TuningData(
        source, tiny_clip().tokenizer, HardNegatives(TextBlobAnnotator(), SceneLexicon()), KINDS, 3, num_images
    )


def test_an_epoch_holds_every_example_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    images = open_table(write_folder(tmp_path))
    orders = [epoch(images, 1, number) for number in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == [(10 * i, f"{CAPTIONS[i % 4]} {i}") for i in range(8)]
    assert orders[0] != orders[1]
    assert epoch(images, 2) != orders[0]
    assert epoch(open_table(tmp_path / "captions.tsv"), 1) == orders[0]


def test_a_jsonl_table_may_name_several_captions_of_an_image(tmp_path: Path) -> None:
    write_folder(tmp_path)
    table = tmp_path / "table.jsonl"
    table.write_text(json.dumps({"image": "1.png", "caption": ["one", "the first"]}) + "\n\n")
    images = open_table(table)
    assert {images.example(0, position)[1] for position in range(4)} == {"one", "the first"}


def test_a_table_without_header_has_images_first(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "plain.tsv").write_text("3.png\tthree\n")
    assert epoch(open_table(tmp_path / "plain.tsv"), 0) == [(30, "three")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "1.png\n", "tsv:1: an image and a caption"),
        ("a.tsv", "filepath\tsize\n1.png\t3\n", "header"),
        ("a.jsonl", '{"image": "1.png"\n', "jsonl:1: not JSON"),
        ("a.jsonl", '{"image": "1.png", "caption": 3}\n', "jsonl:1: a caption must be"),
        ("a.jsonl", '{"file": "1.png", "caption": "x"}\n', "jsonl:1: image is missing"),
        ("a.jsonl", "", "no images"),
    ],
)
def test_a_table_that_can_not_be_read_says_where(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        open_table(tmp_path / name)


def test_shards_are_read_with_captions_in_text_and_json(tmp_path: Path) -> None:
    images = open_shards([write_shards(tmp_path)])
    assert len(images) == 12
    assert sorted(epoch(images, 0)) == [(10 * i, f"number {i}") for i in range(12)]


def test_a_shard_that_is_compressed_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(b"\x1f\x8b" + b"x" * 600)
    with pytest.raises(ValueError, match=r"bad\.tar"):
        open_shards([str(tmp_path / "bad.tar")])
    with pytest.raises(OSError, match=r"none\.tar"):
        open_shards([str(tmp_path / "none.tar")])


def test_what_can_not_be_read_gives_its_place_to_the_next_one(tmp_path: Path) -> None:
    table = write_folder(tmp_path, 6)
    (tmp_path / "2.png").write_bytes(b"no image")
    (tmp_path / "4.png").unlink()
    found = epoch(open_table(table), 0)
    assert len(found) == 6
    assert {gray for gray, _ in found} == {0, 10, 30, 50}


def test_a_folder_of_rubbish_ends_the_run(tmp_path: Path) -> None:
    table = write_folder(tmp_path, 3)
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(b"no image")
    with pytest.raises(Unreadable, match=r"20 consecutive.*\.png"):
        open_table(table).example(0, 0)


def test_processes_that_take_turns_see_what_one_process_sees(tmp_path: Path) -> None:
    source = ImageSource(open_table(write_folder(tmp_path)), tiny_clip().transform)
    whole = source.draw(5, 3, 4)
    parts = [source.draw(5, step, 2) for step in (6, 7)]
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert whole.captions == [caption for part in parts for caption in part.captions]
    assert whole.images.shape == (4, IMAGE_SIZE, IMAGE_SIZE, 3)


def test_random_parts_of_an_image_keep_most_of_it(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    stripes[:, :, 1] = np.arange(64)[:, None] * 4
    Image.fromarray(stripes).save(tmp_path / "x.png")
    (tmp_path / "x.tsv").write_text("x.png\tstripes\n")
    images = open_table(tmp_path / "x.tsv")
    whole = ImageSource(images, tiny_clip().transform, min_area=1.0)
    assert torch.equal(whole.draw(0, 0, 1).images, whole.draw(0, 1, 1).images)
    cut = ImageSource(images, tiny_clip().transform, min_area=0.5).draw(0, 0, 16).images.float()
    heights = cut[..., 1].amax(dim=(1, 2)) - cut[..., 1].amin(dim=(1, 2))
    assert heights.min() > 150  # of 252: at least 0.7 of the height
    assert len(set(heights.tolist())) > 4


def test_a_batch_does_not_depend_on_those_before_it() -> None:
    data = tuning_data(SceneSource(IMAGE_SIZE))
    order = list(range(4))
    random.Random(0).shuffle(order)
    shuffled = {step: data(step) for step in order}
    again = tuning_data(SceneSource(IMAGE_SIZE))
    for step in range(4):
        batch = again(step)
        assert torch.equal(batch.input_ids, shuffled[step].input_ids)
        assert torch.equal(batch.exists, shuffled[step].exists)
        transform = tiny_clip().transform
        assert torch.equal(batch.pixels(transform), shuffled[step].pixels(transform))


def test_negatives_stand_behind_the_captions_kind_by_kind(tmp_path: Path) -> None:
    data = tuning_data(ImageSource(open_table(write_folder(tmp_path)), tiny_clip().transform))
    batch = data(0)
    _, captions, *_ = data.source.draw(3, 0, 4)
    tokens = data.tokenizer(captions)
    assert batch.exists.shape == (len(KINDS), 4)
    assert len(batch.input_ids) == 4 + int(batch.exists.sum())
    assert torch.equal(batch.input_ids[:4], tokens)
    expected = [
        text
        for kind in KINDS
        for i, caption in enumerate(captions)
        if (text := data.hard_negatives.make(caption, KINDS, 3 * 1_000_000_007 + i)[kind]) is not None
    ]
    assert torch.equal(batch.input_ids[4:], data.tokenizer(expected))


PAIRS = (
    ("replace_obj", 0, "a red star left of a blue square 0"),
    ("replace_att", 0, "a red circle left of a green square 0"),
    ("swap_att", 0, "a blue circle left of a red square 0"),
    ("negate", 3, "no black cat above a white dog 3"),
)


def write_stored(folder: Path, *pairs: tuple[str, int, str]) -> Path:
    """Pairs of the folder's captions as `fovea curate` publishes them."""
    path = folder / "pairs.jsonl"
    lines = [
        {
            "id": str(number),
            "kind": kind,
            "filename": f"{i}.png",
            "caption": f"{CAPTIONS[i % 4]} {i}",
            "negative_caption": text,
        }
        for number, (kind, i, text) in enumerate(pairs or PAIRS)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def stored_data(folder: Path, *names: str) -> TuningData:
    table = write_folder(folder, 4)
    stored = read_stored(write_stored(folder), names)
    source = ImageSource(open_table(table, stored=stored), tiny_clip().transform)
    return replace(tuning_data(source), names=stored.names)


def test_stored_negatives_stand_behind_the_captions_form_by_form(tmp_path: Path) -> None:
    data = stored_data(tmp_path)
    assert data.names == ("replace", "swap", "negate")
    batch, (_, captions, *_) = data(0), data.source.draw(3, 0, 4)
    one, last = captions.index(f"{CAPTIONS[0]} 0"), captions.index(f"{CAPTIONS[3]} 3")
    expected = torch.zeros(3, 4, dtype=torch.bool)
    expected[:2, one] = expected[2, last] = True
    assert torch.equal(batch.exists, expected)
    negatives = batch.input_ids[4:].tolist()
    assert negatives[1:] == data.tokenizer([PAIRS[2][2], PAIRS[3][2]]).tolist()
    # of two replacements, every epoch takes another
    again = data(1).input_ids[4:].tolist()
    both = data.tokenizer([PAIRS[0][2], PAIRS[1][2]]).tolist()
    assert sorted([negatives[0], again[0]]) == sorted(both)


def test_stored_negatives_are_chosen_by_form_or_type(tmp_path: Path) -> None:
    batch = stored_data(tmp_path, "replace_att", "negate")(0)
    assert batch.exists.sum(dim=1).tolist() == [1, 1]
    assert batch.input_ids[4:].tolist() == tiny_clip().tokenizer([PAIRS[1][2], PAIRS[3][2]]).tolist()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("bigram_shuffle",), "'bigram_shuffle' is neither a form nor a type of pairs: replace, swap"),
        (("add",), "holds no pairs of add; it holds replace_obj (1), replace_att (1)"),
        (("replace", "replace_att"), "each type may be named once"),
        (("swap", "swap"), "each type may be named once"),
    ],
)
def test_names_of_stored_negatives_that_fit_no_pairs_are_told(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_stored(write_stored(tmp_path), names)


def test_stored_negatives_of_unknown_images_and_captions_are_told(tmp_path: Path) -> None:
    table = write_folder(tmp_path, 4)
    stored = read_stored(write_stored(tmp_path, *PAIRS, ("swap_obj", 7, "x")))
    with pytest.raises(ValueError, match=r"pairs\.jsonl: 1 of 3 images are not in .*, such as 7\.png"):
        open_table(table, stored=stored)
    (tmp_path / "7.png").write_bytes(picture(0))
    with pytest.raises(
        ValueError, match=r"1 of 3 captions are not in .*captions\.tsv, such as 'a black cat.* 7' of 7\.png"
    ):
        open_table(table, stored=stored)


def test_negatives_differ_from_epoch_to_epoch(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(picture(0))
    (tmp_path / "one.tsv").write_text("0.png\ta small red circle left of two large blue squares\n")
    data = tuning_data(ImageSource(open_table(tmp_path / "one.tsv"), tiny_clip().transform), num_images=1)
    assert len({tuple(data(step).input_ids.flatten().tolist()) for step in range(6)}) > 3


def test_no_kinds_are_no_negatives() -> None:
    data = tuning_data(SceneSource(IMAGE_SIZE))
    plain = TuningData(data.source, data.tokenizer, data.hard_negatives, (), 3, 4)(0)
    assert plain.exists.shape == (0, 4)
    assert len(plain.input_ids) == 4
