"""All data sets of the suite in their published layouts, a few records of each, with plain red, green and blue images.

Every true caption names the colour of its image and no false one does, so that a judge of colours is always right.
"""

import csv
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from services.score.evaluation.aggregates import SPEC, VL_CHECKLIST_SOURCES
from services.score.evaluation.recognition import SETS
from tests.score.evaluation.stand_ins import BLUE, GREEN, RED, write_image, write_sugarcrepe, write_valse

COLORS = {"red": RED, "green": GREEN, "blue": BLUE}


def write_suite(data: Path) -> Path:
    """Write every part of the suite below one folder."""
    write_aro(data / "aro")
    write_captions(data)
    write_crepe(data)
    write_eqben(data / "eqben")
    write_imagecode(data / "imagecode")
    write_sugarcrepes(data)
    write_svo_probes(data / "svo_probes")
    write_valses(data / "valse")
    write_vl_checklist(data / "vl_checklist")
    write_whatsup(data / "whatsup")
    write_winoground(data / "winoground")
    write_spec(data / "spec")
    write_elevater(data / "elevater")
    write_counterfactuals(data / "coco_counterfactuals" / "data")
    write_half_truths(data)
    write_negbench(data / "negbench")
    write_colorswap(data / "colorswap")
    write_cola(data / "cola")
    return data


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_split(path: Path) -> Path:
    """A red image with a green right half, whose left half is all that a caption is of."""
    image = np.zeros((8, 16, 3), np.uint8)
    image[:, :8], image[:, 8:] = RED, GREEN
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


LEFT = {"bbox_x": 0, "bbox_y": 0, "bbox_w": 8, "bbox_h": 8}


def write_aro(folder: Path) -> None:
    write_split(folder / "images" / "1.png")
    said = {
        **{"image_path": "1.png", "true_caption": "a red cup is on the table", "false_caption": "a green cup is on it"},
        **LEFT,
    }
    relations = ("on", "behind", "next to")  # the last holds both ways
    write_json(
        folder / "visual_genome_relation.json",
        [{**said, "relation_name": name, "predicate": "absent"} for name in relations],
    )
    pairs = [["red", "old"]] * 25 + [["green", "new"]] * 24
    write_json(folder / "visual_genome_attribution.json", [{**said, "attributes": pair} for pair in pairs])


def write_captions(data: Path) -> None:
    """COCO's test split as BLIP's authors publish it, Flickr30k's as Karpathy does."""
    for place, color in enumerate(COLORS.values()):
        write_image(data / "coco" / "val2014" / f"COCO_val2014_{place:012d}.jpg", color)
        write_image(data / "flickr30k" / "flickr30k-images" / f"{place}.jpg", color)
    captions = [[f"A {name} dog runs on the wide beach.", f"One {name} animal is there now."] for name in COLORS]
    write_json(
        data / "coco" / "coco_karpathy_test.json",
        [{"image": f"val2014/COCO_val2014_{place:012d}.jpg", "caption": some} for place, some in enumerate(captions)],
    )
    images = [
        {"filename": f"{place}.jpg", "split": "test", "sentences": [{"raw": text} for text in some]}
        for place, some in enumerate(captions)
    ]
    write_json(
        data / "flickr30k" / "dataset_flickr30k.json",
        {"dataset": "flickr30k", "images": [*images, {**images[0], "split": "train"}]},
    )


def write_crepe(data: Path) -> None:
    write_split(data / "visual_genome" / "VG_100K_2" / "7.jpg")
    for kind in ("atom", "swap", "negate"):
        for complexity in range(4, 13):
            row = {"": 0, "image_id": 7, "x": 0, "y": 0, "width": 7, "height": 8, "caption": "red roof and wall"}
            name = f"prod_vg_hard_negs_{kind}_complexity_{complexity}.csv"
            write_csv(
                data / "crepe" / "prod_hard_negatives" / kind / name,
                [{**row, "hard_negs": repr(["green roof and wall", "no roof, 'blue' wall"])}],
            )


def write_eqben(folder: Path) -> None:
    names = ("youcook2", "gebc", "ag", "sd", "kubric_loc", "kubric_cnt", "kubric_attr")
    pairs = []
    for name in (f"eqben{name}" for name in names):
        frames = [f"{name}/{number}.{'npy' if name == 'eqbenyoucook2' else 'png'}" for number in (0, 1)]
        for frame, color in zip(frames, (RED, GREEN), strict=True):
            path = folder / "images" / frame
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".npy":
                np.save(path, np.full((8, 8, 3), color[::-1], np.uint8))
            else:
                write_image(path.with_suffix(".jpg"), color)  # the light version
        pairs += [
            {
                "image": frames[image],
                "caption": ("a red pan", "a green pan")[caption],
                "private_info": {"dataset": name, "name": f"c{caption}i{image}", "sample_cnt": 3},
            }
            for caption in (1, 0)
            for image in (0, 1)
        ]
    write_json(folder / "ann_json_finegrained_random.json", pairs)


def write_imagecode(folder: Path) -> None:
    for name in ("open-images-1_a", "MSRVTT_b"):
        for number in range(10):
            write_image(folder / "image-sets" / name / f"img{number}.jpg", RED if number == 4 else BLUE, (8, 8))
    write_json(folder / "valid_data.json", {"open-images-1_a": {"4": "all red"}, "MSRVTT_b": {"4": "a red one"}})


def write_sugarcrepes(data: Path) -> None:
    """SugarCrepe with its images in COCO's folder, and SugarCrepe++'s two true captions."""
    folder = write_sugarcrepe(data / "sugar-crepe" / "data")
    (folder / "val2017").rename(data / "coco" / "val2017")
    for path in folder.glob("*.json"):
        rows = [{**row, "caption2": f"it is {row['caption']}"} for row in json.loads(path.read_text()).values()]
        write_json(data / "sugar-crepe-pp" / "data" / path.name, rows)


def write_svo_probes(folder: Path) -> None:
    """Three sentences, one of each type, and a fourth without its second image."""
    write_image(folder / "images" / "1.jpg", RED)
    write_image(folder / "images" / "2.jpg", GREEN)
    rows = []
    for wrong, negative in (("subj_neg", 2), ("verb_neg", 2), ("obj_neg", 2), ("obj_neg", 3)):
        types = {kind: kind == wrong for kind in ("subj_neg", "verb_neg", "obj_neg")}
        ids = {"pos_image_id": 1, "neg_image_id": negative, "pos_url": "https://a", "neg_url": "https://b"}
        rows.append({"sentence": "A red girl sits on the grass", "pos_triplet": "girl,sit,grass", **ids, **types})
    write_csv(folder / "svo_probes.csv", rows)


def write_valses(folder: Path) -> None:
    write_image(folder / "images" / "visual7w" / "v7w_1.jpg", RED)
    entry = {"dataset": "visual7w", "image_file": "v7w_1.jpg", "caption": "red cars", "foil": "green cars"}
    write_valse(folder / "data", {**entry, "mturk": {"foil": 0, "caption": 3, "other": 0}})


def write_vl_checklist(folder: Path) -> None:
    """Two records of each file, of which the second has no image."""
    for images in ("vg", "swig", "hake"):
        write_image(folder / images / "here.jpg", RED)
    rows = [[name, {"POS": ["red dog", "dog"], "NEG": ["green dog", "cat"]}] for name in ("here.jpg", "gone.jpg")]
    for group, task in VL_CHECKLIST_SOURCES:
        for path in _checklist_files(group, task):
            write_json(folder / "data" / path, rows)


def _checklist_files(group: str, task: str) -> list[str]:
    if group == "Attribute":
        return [f"Attribute/{source}/{task}.json" for source in ("vg", "vaw")]
    if group == "Relation":
        return [f"Relation/vg/{task}.json", f"Relation/swig_{task}.json", f"Relation/hake_{task}.json"]
    what, size = task.lower().split("_")
    roles = ("agent", "destination", "item", "tool")
    files = [f"vg_{what}/vg_obj_{size}.json", f"vg_{what}/vg_subj_{size}.json", f"hake_{what}/hake_obj_{size}.json"]
    files += [f"swig_{what}/swig_{role}/swig_{role}_{size}.json" for role in roles]
    return [f"Object/{what.capitalize()}/{file}" for file in files]


def write_whatsup(folder: Path) -> None:
    for images, name in (("controlled_images", "cup.jpeg"), ("controlled_clevr", "cup.jpeg"), ("vg_images", "5.jpg")):
        write_image(folder / images / name, RED)
    write_image(folder / "val2017" / f"{5:012d}.jpg", RED)
    options = [f"A {color} cup" for color in ("red", "green", "blue", "grey")]
    for file, images in (("images", "controlled_images"), ("clevr", "controlled_clevr")):
        row = {"image_path": f"data/{images}/cup.jpeg", "caption_options": options}
        write_json(folder / f"controlled_{file}_dataset.json", [row])
    for file in ("coco_qa_one_obj", "coco_qa_two_obj", "vg_qa_one_obj", "vg_qa_two_obj"):
        write_json(folder / f"{file}.json", [[5, "A photo of a red dog", "A photo of a blue dog"]])


def write_winoground(folder: Path) -> None:
    write_image(folder / "images" / "a.png", RED)
    write_image(folder / "images" / "b.png", GREEN)
    row = {"id": 0, "image_0": "a", "image_1": "b", "caption_0": "red on it", "caption_1": "it on green"}
    (folder / "examples.jsonl").write_text(json.dumps(row))


def write_negbench(folder: Path) -> None:
    """One question, whose right answer is the third."""
    write_image(folder / "val2017" / "000000000005.jpg", RED)
    texts = ("a green car", "no red car", "a red car and no green one", "a blue car")
    question = {"image_path": "data/coco/images/val2017/000000000005.jpg", "correct_answer": 2}
    options = {f"caption_{place}": text for place, text in enumerate(texts)}
    write_csv(
        folder / "images" / "COCO_val_mcq_llama3.1_rephrased.csv",
        [{**question, **options, "correct_answer_template": "hybrid"}],
    )


def write_colorswap(folder: Path) -> None:
    files = [write_image(folder / "images" / f"img_0_{place}.png", color) for place, color in ((1, RED), (2, GREEN))]
    images = {f"image_{place}": f"images/{file.name}" for place, file in enumerate(files, 1)}
    captions = {"caption_1": "a red dog on it", "caption_2": "a green dog on it"}
    write_json(folder / "test.json", [{"id": 0, **captions, **images, "image_source": "drawn"}])


def write_cola(folder: Path) -> None:
    for place, color in ((1, RED), (2, GREEN)):
        write_image(folder / "images" / f"{place}.jpg", color)
    address = "https://example.org/array/data/vg_gqa_images"
    row = [f"{address}/1.jpg", "red car # on # road", f"{address}/2.jpg", "green car # on # road"]
    write_json(folder / "data" / "COLA_multiobjects_matching_benchmark.json", [row])


def write_spec(folder: Path) -> None:
    for task in SPEC:
        place = folder / task.replace("position", "spatial")
        files = [write_image(place / "1" / f"{name}.jpg", color).name for name, color in COLORS.items()]
        texts = [f"a {name} thing" for name in COLORS]
        write_json(
            place / "image2text.json",
            [{"query": f"1/{file}", "keys": texts, "label": label} for label, file in enumerate(files)],
        )
        images = [f"1/{file}" for file in files]
        write_json(
            place / "text2image.json",
            [{"query": text, "keys": images, "label": label} for label, text in enumerate(texts)],
        )


def write_elevater(folder: Path) -> None:
    """Three classes in each set; images in archives but for MNIST's, and both classes of memes."""
    names = {published.toolkit_name: f"list_{place}" for place, published in enumerate(SETS.values())}
    lines = [f"templates_{name} = ['a {{}} one.', 'the {{}}']" for name in names.values()]
    lines += [f"{name} = [['red', 'reddish'], 'green', 'blue']" for name in names.values()]
    lines.append("class_map = {" + ", ".join(f"'{name}': {some}" for name, some in names.items()) + "}")
    lines.append("template_map = {" + ", ".join(f"'{name}': templates_{some}" for name, some in names.items()) + "}")
    folder.mkdir(parents=True)
    (folder / "prompts.py").write_text('"""Prompts."""\n' + "\n".join(lines) + "\n")
    drawn = [write_image(folder / "drawn" / f"{name}.png", color) for name, color in COLORS.items()]
    for name, published in SETS.items():
        place = folder / "classification" / published.folder
        place.mkdir(parents=True)
        with zipfile.ZipFile(place / "test.zip", "w") as archive:
            for path in drawn:
                archive.write(path, f"images/{path.name}")
        if name == "mnist":
            for path, color in zip(drawn, COLORS.values(), strict=True):
                write_image(place / "images" / path.name, color)
            (place / "test.zip").unlink()
        if published.index.endswith(".json"):
            write_json(place / published.index, _in_cocos_form([path.name for path in drawn]))
        else:
            index = "".join(f"test.zip@images/{path.name} {label}\n" for label, path in enumerate(drawn))
            (place / published.index).write_text(index)


def _in_cocos_form(files: Sequence[str]) -> dict[str, Any]:
    return {
        "images": [
            {"id": place, "file_name": f"images/{file}", "zip_file": "test.zip"} for place, file in enumerate(files, 1)
        ],
        "annotations": [{"id": place, "image_id": place, "category_id": place} for place in range(1, len(files) + 1)],
        "categories": [{"id": place, "name": f"class {place}"} for place in range(1, len(files) + 1)],
    }


def write_counterfactuals(folder: Path) -> None:
    """Four examples, of which one is drawn."""
    lines = []
    for number in range(4):
        for one, color in enumerate((RED, GREEN)):
            write_image(folder / "images" / f"{number}_{one}.jpg", color)
        images = {f"image_{one}": f"{number}_{one}" for one in (0, 1)}
        lines.append(json.dumps({"id": number, **images, "caption_0": "a red car", "caption_1": "a green car"}))
    (folder / "examples.jsonl").write_text("\n".join(lines))


def write_half_truths(data: Path) -> None:
    path = write_image(data / "coco" / "val2014" / "COCO_val2014_000000000000.jpg", RED)
    negatives = [
        {"subject": "red dog", "relation_type": "not on", "object": "blue grass", "change_type": "negation"},
        {"subject": "red dog", "relation_type": "under", "object": "blue grass", "change_type": "antonym"},
        {"subject": "blue grass", "relation_type": "on", "object": "red dog", "change_type": "subject_object_swap"},
    ]
    changes = [("blue cat", "object_change"), ("green grass", "attribute_change")]
    sample = {
        "sample_id": "0_0",
        "original_caption": "A red dog on grass",
        "entities": ["Red dog", "grass"],
        "negative_entities": {"grass": [{"negative": text, "change_type": kind} for text, kind in changes]},
        "relations": [{"subject": "red dog", "relation_type": "on", "object": "grass", "negatives": negatives}],
        "image_path": f"datasets/COCO/val2014/{path.name}",
    }
    write_json(data / "half_truths" / "coco_val.json", [sample])
