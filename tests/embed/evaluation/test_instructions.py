"""The instructions are those of Table D.3."""

import pytest

from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS
from services.embed.evaluation.instructions import (
    CELEBA_ATTRIBUTES,
    MMVP,
    SUGARCREPE,
    celeba_attribute,
    focus_on_attribute,
    focus_on_object,
    type_of,
)

ADJECTIVES = ("Bald", "Blurry", "Male", "Smiling")


@pytest.mark.parametrize("attribute", CELEBA_ATTRIBUTES)
def test_adjectives_are_asked_as_what_a_person_is_and_nouns_as_what_one_has(attribute: str) -> None:
    if attribute in ADJECTIVES or attribute.startswith("Wearing"):
        assert celeba_attribute(attribute) == f"Is the person in the image {attribute.lower()}?"
    else:
        assert celeba_attribute(attribute) == f"Does the person in the image have {attribute.lower()}?"


def test_templates_take_what_is_asked_for() -> None:
    assert focus_on_attribute("color") == "Focus on the color."
    assert focus_on_object("brick wall") == "Is there brick wall?"
    assert type_of("dog") == "What type of dog is in the image?"


def test_every_task_of_the_table_has_its_instruction() -> None:
    assert len(CELEBA_ATTRIBUTES) == 29
    assert len(SUGARCREPE) == 7
    assert SUGARCREPE["add_obj"] == SUGARCREPE["add_att"] == "What is not in the image?"
    assert len(set(MMVP.values())) == 9
    assert TEST_INSTRUCTIONS["both"] == "What is the color and shape of the object in the image?"
