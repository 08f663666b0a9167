"""Pictures look as they are described, batches repeat from (seed, step), and LLaVA's conversations become rows."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from services.embed.data.drawn_pictures import draw_batch
from services.embed.data.facts import answer, is_kept_apart, picture_facts, scene_facts
from services.embed.data.llava import LlavaData, llava_triplets
from services.embed.data.triplets import (
    CONDITIONS,
    FAMILIES,
    TEST_INSTRUCTIONS,
    UNSEEN_CONDITIONS,
    Asked,
    all_answers,
    asked_conditions,
    caption_batch,
    instruction_vocabulary,
    learn_merges,
    triplet_batch,
)
from services.jobs.colorshape import (
    COLORS,
    SHAPES,
    covering_objects,
    is_held_out,
    render,
    sample_classes,
    sample_scenes,
)
from services.jobs.pictures.things import Background, Picture, Thing
from services.nn.clip_model import open_clip
from services.nn.clip_tokenizer import write_merges


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_scenes_render_to_the_same_pixels_at_any_batch_size() -> None:
    scenes = sample_classes([(0, 0), (1, 3), (2, 7)], 2, seeded())
    together = render(scenes)
    assert together.shape == (6, 64, 64, 3)
    assert torch.equal(together, render(scenes))


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
def test_an_object_is_drawn_in_its_color_at_its_place(shape: int) -> None:
    scenes = sample_classes([(color, shape) for color in range(len(COLORS))], 1, seeded(), is_plain=True)
    pixels = render(scenes, 96).float() / 255
    for image, rgb, center in zip(pixels, scenes.rgb[:, 0], scenes.center[:, 0], strict=True):
        covered = (image - 0.97).abs().amax(dim=-1) > 0.15  # what is not the white background
        assert covered.any()
        assert (image[covered] - rgb).abs().median() < 0.06
        rows, columns = torch.nonzero(covered, as_tuple=True)
        middle = torch.stack([columns.float().mean(), rows.float().mean()]) / 96
        assert (middle - center).abs().max() < 0.08


def test_shapes_of_one_color_differ_in_outline() -> None:
    scenes = sample_classes([(0, shape) for shape in range(len(SHAPES))], 1, seeded(), is_plain=True)
    scenes.center.fill_(0.5)
    scenes.radius.fill_(0.3)
    scenes.angle.zero_()
    pixels = render(scenes, 96).float()
    for one in range(len(SHAPES)):
        for other in range(one):
            assert ((pixels[one] - pixels[other]).abs().amax(dim=-1) > 60).float().mean() > 0.01


def test_training_never_draws_a_held_out_combination() -> None:
    scenes = sample_scenes(4000, seeded(), pair_fraction=0.5)
    assert not is_held_out(scenes.color, scenes.shape).any()
    drawn = {(int(c), int(s)) for c, s in zip(scenes.color[:, 0], scenes.shape[:, 0], strict=True)}
    assert len(drawn) == len(COLORS) * len(SHAPES) - len(COLORS)


def test_two_objects_stand_as_their_relation_says_and_do_not_touch() -> None:
    scenes = sample_scenes(400, seeded(), pair_fraction=1.0)
    offset = scenes.center[:, 0] - scenes.center[:, 1]
    axis, sign = (scenes.relation >= 2).long(), torch.where(scenes.relation % 2 == 0, -1, 1)
    assert (offset.gather(1, axis[:, None])[:, 0] * sign > 0).all()
    assert (offset.norm(dim=1) > scenes.radius.sum(dim=1) * 0.9).all()


def test_patches_know_the_object_that_covers_them() -> None:
    scenes = sample_classes([(0, 0)], 1, seeded())
    scenes.center.fill_(0.5)
    scenes.radius.fill_(0.2)
    assert covering_objects(scenes, 4).view(4, 4).tolist() == [
        [-1, -1, -1, -1],
        [-1, 0, 0, -1],
        [-1, 0, 0, -1],
        [-1, -1, -1, -1],
    ]


def test_a_step_of_training_data_repeats_and_the_next_one_differs() -> None:
    one, again, following = (caption_batch(3, step, 16, 32) for step in (7, 7, 8))
    assert one.captions == again.captions
    assert torch.equal(one.drawn.pixels, again.drawn.pixels)
    assert one.captions != following.captions
    (_, first), (_, second) = (triplet_batch(3, 7, 8, 32, Asked()) for _ in range(2))
    assert (first.instructions, first.answers) == (second.instructions, second.answers)


def test_every_answer_asked_in_tuning_stands_in_the_bank_and_unseen_conditions_are_not_asked() -> None:
    for unseen in (UNSEEN_CONDITIONS, ("texture", "size and color")):
        bank = set(all_answers(unseen))
        families: set[str] = set()
        for step in range(10):
            _, triplets = triplet_batch(0, step, 32, 32, Asked(6, unseen=unseen))
            for about, text in zip(triplets.families, triplets.answers, strict=True):
                if about:
                    assert text in bank
                    families.update(about)
        assert families == set(FAMILIES) - ({"texture"} if "texture" in unseen else set())


def test_an_attribute_that_is_never_asked_is_not_asked_of_things_either() -> None:
    left_out = set(CONDITIONS) - set(asked_conditions(("texture",)))
    assert left_out == {"texture", "object texture"}
    with pytest.raises(ValueError, match="'taste' is not one of the conditions"):
        asked_conditions(("taste",))


def test_each_picture_is_asked_without_a_condition_and_under_one_about_nothing_in_it() -> None:
    drawn, triplets = triplet_batch(0, 0, 16, 32, Asked(2))
    for image in range(len(drawn.facts)):
        rows = [row for row, place in enumerate(triplets.image_index.tolist()) if place == image]
        assert sum(triplets.instructions[row] is None for row in rows) == 1
        assert sum(triplets.families[row] == () for row in rows) == 1
    _, asked_only = triplet_batch(0, 0, 16, 32, Asked(2, has_unconditional=False))
    assert all(asked_only.families)


def test_no_wider_picture_shows_a_held_out_combination() -> None:
    for step in range(20):
        for facts in draw_batch(0, step, 32, 16, pair_share=0.3).facts:
            assert not any(is_kept_apart(thing["color"], thing["shape"]) for thing in facts.things)


def test_a_pictures_thing_is_drawn_where_its_labels_say(tmp_path: Path) -> None:
    drawn = draw_batch(0, 0, 64, 96, picture_share=1.0)
    labels = drawn.patch_labels(6)
    for i, facts in enumerate(drawn.facts):
        covered = labels[i, :, 1] >= 0
        assert (drawn.image_labels()[i, 1] == labels[i, covered, 1]).all()
        x, y = (drawn.center[i, 0] * 96).long().tolist()
        assert drawn.pixels[i, :, x].float().sum() > 0 and drawn.pixels[i, y].float().sum() > 0, facts


def test_answers_say_what_the_scene_shows() -> None:
    scenes = sample_classes([(0, 0)], 1, seeded(), is_plain=True)
    scenes.size.fill_(1)
    scenes.cell.fill_(0)
    facts = scene_facts(scenes, 0)
    assert {condition: answer(facts, CONDITIONS[condition]) for condition in TEST_INSTRUCTIONS} == {
        "color": "red",
        "shape": "circle",
        "both": "red circle",
        "size": "large object",
        "background": "white background",
        "position": "top left",
        "texture": "plain background",
        "size and color": "large red object",
    }


def test_what_has_no_word_is_not_asked() -> None:
    thing = Thing("star", "red", "dotted", 0.31, 0.5, 0.18, 0.0, (1.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    background = Background("gradient", "white", (1.0, 1.0, 1.0), (0.5, 0.5, 0.5))
    facts = picture_facts(Picture((thing,), background))
    told = {condition: answer(facts, attributes) for condition, attributes in CONDITIONS.items()}
    assert {condition: text for condition, text in told.items() if text is not None} == {
        "color": "red",
        "shape": "star",
        "both": "red star",
        "texture": "gradient background",
        "object texture": "dotted object",
    }


def test_every_word_of_the_generator_is_one_token(tmp_path: Path) -> None:
    write_merges(learn_merges(), tmp_path / "bpe.txt.gz")
    tokenizer = open_clip().tokenizer.SimpleTokenizer(bpe_path=str(tmp_path / "bpe.txt.gz"))
    words = {word for text in instruction_vocabulary() for word in re.findall("[a-z]+", text.lower())}
    assert [word for word in words if len(tokenizer.encode(word)) != 1] == []


CONVERSATIONS: list[dict[str, Any]] = [
    {
        "id": "1",
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat color is it?"},
            {"from": "gpt", "value": "It is red."},
            {"from": "human", "value": "And its shape?"},
            {"from": "gpt", "value": "A circle."},
        ],
    },
    {"id": "text-only", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    {
        "id": "2",
        "image": "b.png",
        "conversations": [{"from": "human", "value": "Where?\n<image>"}, {"from": "gpt", "value": "Left."}],
    },
]


def test_turns_of_a_conversation_become_rows_of_one_image() -> None:
    images, triplets = llava_triplets([CONVERSATIONS[0], CONVERSATIONS[2]])
    assert images == ["a.png", "b.png"]
    assert triplets.image_index.tolist() == [0, 0, 1]
    assert triplets.instructions == ["What color is it?", "And its shape?", "Where?"]
    assert triplets.answers == ["It is red.", "A circle.", "Left."]


def test_an_answer_without_a_question_is_refused_by_the_records_id() -> None:
    with pytest.raises(ValueError, match="'7'"):
        llava_triplets([{"id": "7", "image": "a.png", "conversations": [{"from": "gpt", "value": "Yes."}]}])


def test_llava_epochs_visit_every_image_once_in_another_order(tmp_path: Path) -> None:
    records = [{**CONVERSATIONS[0], "image": f"{i}.png"} for i in range(10)]
    (tmp_path / "data.json").write_text(json.dumps([*records, CONVERSATIONS[1]]))
    Image.fromarray(np.zeros((4, 4, 3), dtype=np.uint8)).save(tmp_path / "0.png")
    data = LlavaData(tmp_path / "data.json", tmp_path)
    seen = [file.name for step in range(5) for file in data.batch(0, step, 4)[0]]
    first, second = seen[:10], seen[10:]
    assert sorted(first) == sorted(second) == sorted(f"{i}.png" for i in range(10))
    assert first != second


def test_a_file_that_is_no_list_of_conversations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"image": "a.png"}')
    with pytest.raises(ValueError, match="JSON list"):
        LlavaData(tmp_path / "data.json", tmp_path)
