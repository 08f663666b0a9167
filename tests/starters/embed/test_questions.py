"""Pictures show what is said of them, and batches repeat from (seed, step)."""

import re
from pathlib import Path

import pytest
import torch

from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS, UNSEEN_CONDITIONS
from services.jobs.colorshape import sample_classes
from services.nn.clip_model import open_clip
from starters.embed.drawn_pictures import draw_batch
from starters.embed.facts import answer, is_kept_apart, picture_facts, scene_facts
from starters.embed.questions import (
    CONDITIONS,
    FAMILIES,
    Asked,
    all_answers,
    asked_conditions,
    caption_batch,
    instruction_vocabulary,
    learn_merges,
    triplet_batch,
)
from starters.merges import write_merges
from starters.pictures.things import Background, Picture, Thing


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
    scenes = sample_classes([(0, 0)], 1, torch.Generator().manual_seed(0)).on_plain_white()
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
