"""FSC-CLIP's benchmarks are read as their authors publish them, from a few records in each published form."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.core.text_files import BadFile
from services.score.evaluation.aggregates import VL_CHECKLIST_SOURCES, aggregates
from services.score.evaluation.benchmarks.aro import load_aro, load_order_tasks, load_visual_genome_tasks, orders
from services.score.evaluation.benchmarks.caption_choices import (
    load_crepe,
    load_half_truths,
    load_negbench,
    load_vl_checklist,
    load_whatsup,
)
from services.score.evaluation.benchmarks.image_choices import (
    load_cola,
    load_colorswap,
    load_eqben,
    load_spec,
    load_svo_probes,
)
from services.score.evaluation.recognition import SETS, load_classification_set, load_retrieval_set
from services.score.evaluation.records import Crop, count, read_image_file
from tests.score.evaluation import tiny_suite
from tests.score.evaluation.stand_ins import RED


def test_aro_asks_about_a_part_of_an_image_and_leaves_out_what_its_authors_do(tmp_path: Path) -> None:
    tiny_suite.write_aro(tmp_path)
    relations, attributes = load_visual_genome_tasks(tmp_path)
    # `next to` holds both ways, and a pair of attributes has fewer than 25 records
    assert [record.category for record in relations.records] == ["on", "behind"]
    assert {record.category for record in attributes.records} == {"red_old"}
    assert relations.by_category
    assert attributes.by_category
    (image,) = relations.records[0].images
    assert image == Crop(tmp_path / "images" / "1.png", (0, 0, 8, 8))
    assert np.asarray(read_image_file(image)).reshape(-1, 3).tolist() == [list(RED)] * 64
    assert relations.records[0].captions == ("a red cup is on the table", "a green cup is on it")


def test_aros_orders_keep_the_words_of_a_caption(tmp_path: Path) -> None:
    tiny_suite.write_captions(tmp_path)
    flickr30k, coco = load_order_tasks(tmp_path / "coco", tmp_path / "flickr30k")
    assert count([flickr30k, coco]) == "12 records: Flickr30k_Order 6, COCO_Order 6"
    true, *false = coco.records[0].captions
    assert true == "a red dog runs on the wide beach"
    assert 1 <= len(false) <= 4
    assert all(sorted(text.split()) == sorted(true.split()) and text != true for text in false)
    assert load_order_tasks(tmp_path / "coco", tmp_path / "flickr30k")[1].records == coco.records


def test_each_of_aros_orders_moves_its_own_words() -> None:
    words = ["the", "old", "dog", "saw", "a", "young", "cat", "and", "ran"]
    tags = ["DT", "JJ", "NN", "VBD", "DT", "JJ", "NN", "CC", "VBD"]
    drawn = [orders(words, tags, place) for place in range(40)]
    things, others, within, threes = ({some[order] for some in drawn} for order in range(4))
    assert {tuple(text.split()[place] for place in (0, 3, 4, 7, 8)) for text in things} == {
        ("the", "saw", "a", "and", "ran")
    }
    assert {(text.split()[1], text.split()[2]) for text in things} == {
        *(("old", "dog"), ("old", "cat"), ("young", "dog"), ("young", "cat"))
    }
    assert {tuple(text.split()[place] for place in (1, 2, 5, 6)) for text in others} == {("old", "dog", "young", "cat")}
    assert {tuple(sorted(text.split()[:3])) for text in within} == {("dog", "old", "the")}
    assert "saw a young the old dog cat and ran" in threes
    assert len(threes) == 6


def test_crepe_puts_all_complexities_of_a_type_together(tmp_path: Path) -> None:
    tiny_suite.write_crepe(tmp_path)
    tasks = load_crepe(tmp_path / "crepe", tmp_path / "visual_genome")
    assert count(tasks) == "27 records: atom 9, swap 9, negate 9"
    record = tasks[0].records[-1]
    assert record.id == "12/0"
    assert record.images == (Crop(tmp_path / "visual_genome" / "VG_100K_2" / "7.jpg", (0, 0, 7, 8)),)
    assert record.captions == ("red roof and wall", "green roof and wall", "no roof, 'blue' wall")
    (tmp_path / "crepe/prod_hard_negatives/swap/prod_vg_hard_negs_swap_complexity_5.csv").write_text("image_id\n7\n")
    with pytest.raises(BadFile, match=r"complexity_5\.csv:2 holds no captions and hard negatives of CREPE: there is"):
        load_crepe(tmp_path / "crepe", tmp_path / "visual_genome")


def test_eqbens_pairs_become_samples_of_two_images_and_two_captions(tmp_path: Path) -> None:
    tiny_suite.write_eqben(tmp_path)
    tasks = {task.name: task for task in load_eqben(tmp_path / "ann_json_finegrained_random.json", tmp_path / "images")}
    assert len(tasks) == 7
    (record,) = tasks["eqbensd"].records
    # an image that is there only as JPEG, the light version
    assert record.images == tuple(tmp_path / "images" / "eqbensd" / f"{number}.jpg" for number in (0, 1))
    assert record.captions == ("a red pan", "a green pan")
    # a frame of YouCook2 is stored as blue, green and red values
    frame = read_image_file(tasks["eqbenyoucook2"].records[0].images[0])
    assert frame.getpixel((0, 0)) == RED


def test_spec_puts_the_true_option_first_in_both_directions(tmp_path: Path) -> None:
    tiny_suite.write_spec(tmp_path)
    tasks = {task.name: task for task in load_spec(tmp_path)}
    assert len(tasks) == 12
    record = tasks["absolute_position::text"].records[1]
    assert record.captions == ("a green thing", "a red thing", "a blue thing")
    assert record.images == (tmp_path / "absolute_spatial" / "1" / "green.jpg",)
    assert tasks["count::image"].records[2].images[0].name == "blue.jpg"  # type: ignore[union-attr]


def test_specs_number_is_the_mean_of_what_its_authors_publish_for_both_directions() -> None:
    tasks = ("existence", "relative_position", "absolute_size", "relative_size", "count", "absolute_position")
    # CLIP ViT-B/32 in the notebook of SPEC's authors
    texts, images = (57.0, 27.1, 44.27, 34.07, 25.27, 12.64), (52.0, 26.75, 36.27, 32.47, 23.62, 12.2)
    scores = {f"{task}::text": score for task, score in zip(tasks, texts, strict=True)}
    scores |= {f"{task}::image": score for task, score in zip(tasks, images, strict=True)}
    # FSC-CLIP's Table 1 has 31.9 for it
    assert aggregates("spec", scores, {})["average"] == pytest.approx((33.39 + 30.55) / 2, abs=0.01)


def test_sentences_without_their_images_are_left_out_and_counted(tmp_path: Path) -> None:
    tiny_suite.write_svo_probes(tmp_path)
    tasks = load_svo_probes(tmp_path / "svo_probes.csv", tmp_path / "images")
    assert count(tasks) == "3 records: subj_neg 1, verb_neg 1, obj_neg 1 (1 without images left out)"
    assert tasks[0].records[0].images == (tmp_path / "images" / "1.jpg", tmp_path / "images" / "2.jpg")
    # where there are none at all, a judge that reads images names the first
    nothing = load_svo_probes(tmp_path / "svo_probes.csv", tmp_path / "elsewhere")
    assert (len(nothing[2].records), nothing[2].left_out) == (2, 0)
    with pytest.raises(BadFile, match=r"1\.jpg is missing\. It belongs to SVO-Probes"):
        nothing[0].check_images()


def test_vl_checklist_is_a_mean_over_sources_and_their_files(tmp_path: Path) -> None:
    tiny_suite.write_vl_checklist(tmp_path)
    tasks = {task.name: task for task in load_vl_checklist(tmp_path)}
    assert len(tasks) == sum(map(len, VL_CHECKLIST_SOURCES.values()))
    swig = tasks["Object_Size_large/swig"]
    assert [record.category for record in swig.records] == [
        f"swig_{role}_large" for role in ("agent", "destination", "item", "tool")
    ]
    assert swig.left_out == 4
    # of several captions the first ones count, and attributes of VAW are of Visual Genome's images
    assert tasks["Attribute_color/vaw"].records[0].captions == ("red dog", "green dog")
    assert tasks["Attribute_color/vaw"].records[0].images == (tmp_path / "vg" / "here.jpg",)
    scores = dict.fromkeys(tasks, 50.0) | {"Relation_spatial/vg": 80.0}
    assert aggregates("vl_checklist", scores, {})["average"] == pytest.approx((50 + 50 + 65) / 3)
    del scores["Object_Size_large/hake"]
    assert aggregates("vl_checklist", scores, {}) == {"Attribute": 50.0, "Relation": 65.0}


def test_captions_of_vl_checklist_are_read_where_there_are_no_images(tmp_path: Path) -> None:
    tiny_suite.write_vl_checklist(tmp_path)
    for images in ("vg", "swig", "hake"):
        shutil.rmtree(tmp_path / images)
    tasks = load_vl_checklist(tmp_path, limit=1)
    assert {task.left_out for task in tasks} == {0}
    assert count(tasks).startswith("56 records: Object_Location_center/vg 2, ")
    with pytest.raises(BadFile, match=r"here\.jpg is missing\. It belongs to VL-CheckList"):
        tasks[0].check_images()


def test_negbenchs_right_answer_comes_first(tmp_path: Path) -> None:
    tiny_suite.write_negbench(tmp_path)
    (task,) = load_negbench(tmp_path / "images", tmp_path)
    (record,) = task.records
    assert record.captions == ("a red car and no green one", "a green car", "no red car", "a blue car")
    assert record.images == (tmp_path / "val2017" / "000000000005.jpg",)
    with pytest.raises(BadFile, match=r"rephrased\.csv is missing\. It belongs to NegBench"):
        load_negbench(tmp_path, tmp_path)


def test_cola_and_colorswap_match_two_images_with_two_captions(tmp_path: Path) -> None:
    tiny_suite.write_cola(tmp_path / "cola")
    tiny_suite.write_colorswap(tmp_path / "swap")
    (cola,) = load_cola(tmp_path / "cola" / "data", tmp_path / "cola" / "images")
    (swap,) = load_colorswap(tmp_path / "swap", tmp_path / "swap")
    assert cola.records[0].captions == ("red car # on # road", "green car # on # road")
    assert cola.records[0].images[1] == tmp_path / "cola" / "images" / "2.jpg"
    assert swap.records[0].captions == ("a red dog on it", "a green dog on it")
    assert swap.records[0].images[0] == tmp_path / "swap" / "images" / "img_0_1.png"
    # Cola's authors count examples in which both captions choose their image
    assert aggregates("cola", {"cola": 10.0, "cola::text": 20.0, "cola::image": 30.0}, {}) == {"official": 30.0}


@pytest.mark.parametrize(
    ("load", "file", "content", "message"),
    [
        (
            load_aro,
            "visual_genome_relation.json",
            '[{"image_path": "1.png"}]',
            "record 1 holds .* there is no",
        ),
        (load_aro, "visual_genome_relation.json", '{"a": 1}', "relation.json holds no captions .* not a list"),
        (load_aro, "x.tsv", "\ttitle\tfilepath\tneg_caption\n0\ta\tb\tc d\n", r"x\.tsv:2 holds no captions"),
        (load_cola, "COLA_multiobjects_matching_benchmark.json", '[["a", "b"]]', "record 1 holds no examples of Cola"),
        (load_cola, "COLA_multiobjects_matching_benchmark.json", '[["a", "b", "c", null]]', "record 1 .* not null"),
        (load_colorswap, "test.json", '[{"id": 0, "image_1": "a"}]', "record 1 .* ColorSwap: there is no 'image_2'"),
        (load_negbench, "x_mcq.csv", "image_path,correct_answer\na,0\n", "lacks the columns 'caption_0'"),
        (load_negbench, "x_mcq.csv", "image_path,correct_answer,caption_0,caption_1\na,2,b,c\n", "csv:2 .* label 2 is"),
    ],
)
def test_what_has_another_layout_is_refused_by_file_and_record(
    tmp_path: Path, load: Callable[..., object], file: str, content: str, message: str
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(BadFile, match=message):
        load(tmp_path / file if file == "x.tsv" else tmp_path, tmp_path)


def test_aros_authors_folder_is_read_as_far_as_it_is_there(tmp_path: Path) -> None:
    tiny_suite.write_captions(tmp_path)
    assert [task.name for task in load_aro(tmp_path, tmp_path)] == ["Flickr30k_Order", "COCO_Order"]
    tiny_suite.write_aro(tmp_path)
    assert [task.name for task in load_aro(tmp_path, tmp_path)][:2] == ["VG_Relation", "VG_Attribution"]
    with pytest.raises(BadFile, match=r"relation\.json is missing\. It belongs to ARO"):
        (tmp_path / "empty").mkdir()
        load_aro(tmp_path / "empty", tmp_path)


def test_whats_up_has_six_files_whose_first_caption_is_true(tmp_path: Path) -> None:
    tiny_suite.write_whatsup(tmp_path)
    tasks = {task.name: task.records[0] for task in load_whatsup(tmp_path)}
    assert tasks["WhatsUp_B"].images == (tmp_path / "controlled_clevr" / "cup.jpeg",)
    assert len(tasks["WhatsUp_B"].captions) == 4
    assert tasks["COCO_QA_TWO"].images == (tmp_path / "val2017" / "000000000005.jpg",)
    assert tasks["VG_QA_ONE"].images == (tmp_path / "vg_images" / "5.jpg",)


def test_a_half_truth_adds_one_wrong_detail_to_a_true_description(tmp_path: Path) -> None:
    tiny_suite.write_half_truths(tmp_path)
    tasks = load_half_truths(tmp_path / "half_truths", tmp_path / "coco")
    assert {task.name: task.records[0].captions for task in tasks} == {
        "entity_object_change": ("red dog", "red dog and blue cat"),
        "entity_attribute_change": ("red dog", "red dog and green grass"),
        "relation_antonym": ("red dog", "red dog under blue grass"),
        "relation_negation": ("red dog", "red dog not on blue grass"),
        "relation_subject_object_swap": ("red dog", "blue grass on red dog"),
    }
    with pytest.raises(BadFile, match="It belongs to CS-CLIP's units of captions"):
        load_half_truths(tmp_path / "elsewhere", tmp_path)


def test_elevaters_sets_have_their_classes_prompts_and_metrics(tmp_path: Path) -> None:
    tiny_suite.write_elevater(tmp_path / "elevater")
    found = load_classification_set("kitti-distance", tmp_path / "elevater")
    assert found.class_names == ("red", "green", "blue")
    assert found.templates == ("a {} one.", "the {}")
    assert found.labels == ((0,), (1,), (2,))
    assert read_image_file(found.images[0]).getpixel((0, 0)) == RED  # in its archive
    assert load_classification_set("mnist", tmp_path / "elevater", limit=1).images == (
        tmp_path / "elevater" / "classification" / "mnist_20211008" / "images" / "red.png",
    )
    metrics = {name: published.metric for name, published in SETS.items() if published.metric != "accuracy"}
    assert metrics == {
        **dict.fromkeys(("caltech101", "fgvc-aircraft-2013b", "flower102", "oxford-iiit-pets"), "mean per class"),
        "hateful-memes": "ROC AUC",
        "voc2007classification": "11-point mAP",
    }
    with pytest.raises(BadFile, match=r"dtd_20211007/test\.txt is missing\. It belongs to ELEVATER's toolkit"):
        (tmp_path / "elevater/classification/dtd_20211007/test.txt").unlink()
        load_classification_set("dtd", tmp_path / "elevater")


def test_retrieval_uses_the_test_splits_and_a_share_of_the_counterfactuals(tmp_path: Path) -> None:
    tiny_suite.write_captions(tmp_path)
    tiny_suite.write_counterfactuals(tmp_path / "coco_counterfactuals" / "data")
    sizes = {}
    for name in ("coco_karpathy", "flickr30k", "coco_counterfactuals"):
        images = load_retrieval_set(name, tmp_path).images
        sizes[name] = len(images), sum(len(one.captions) for one in images)
    # 30 % of four examples is one, of two images
    assert sizes == {"coco_karpathy": (3, 6), "flickr30k": (3, 6), "coco_counterfactuals": (2, 2)}
    (tmp_path / "flickr30k" / "flickr30k-images" / "1.jpg").unlink()
    with pytest.raises(BadFile, match=r"1\.jpg is missing\. It belongs to Flickr30k"):
        load_retrieval_set("flickr30k", tmp_path)
