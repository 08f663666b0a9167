"""Groups of words written by hand: which implies, excludes or leaves open another."""

import pytest

from starters.predict.sentence_pairs.handwritten.groups import groups, link_of, parse_groups
from starters.predict.sentence_pairs.handwritten.stories import stories


def test_narrower_words_imply_wider_ones_and_words_side_by_side_exclude_each_other() -> None:
    (group,) = parse_groups("@ pet: person | is {a}\ndog\n  poodle; terrier\ncat = tomcat\n")
    dog, poodle, terrier, cat = group.nodes
    assert group.is_of_people
    assert cat.words == ("cat", "tomcat")
    assert link_of(poodle, dog) == "implies"
    assert link_of(poodle, terrier) == "excludes"
    assert link_of(poodle, cat) == "excludes"
    assert link_of(cat, cat) == "equal"


def test_words_joined_by_commas_leave_each_other_unclear() -> None:
    (group,) = parse_groups("@ size: the box | is {x}\nbig\n  huge, enormous\nsmall\n  tiny\n")
    big, huge, enormous, small, tiny = group.nodes
    assert link_of(huge, enormous) is None
    assert link_of(huge, big) == "implies"
    assert link_of(huge, tiny) == link_of(big, small) == "excludes"


def test_frames_may_leave_words_side_by_side_compatible() -> None:
    (group,) = parse_groups("@ pet: person | ~has {a} | is {x}\ndog\n")
    assert [frame.is_exclusive for frame in group.frames] == [False, True]
    assert group.frames[0].filled("owl") == "has an owl"


@pytest.mark.parametrize(
    ("topic", "told", "said", "link"),
    [
        ("place", "in the kitchen", "at home", "implies"),
        ("place", "at the dentist", "at school", "excludes"),
        ("colour", "crimson", "red", "implies"),
        ("colour", "navy blue", "red", "excludes"),
        ("temperature", "boiling hot", "hot", "implies"),
        ("temperature", "boiling hot", "cold", "excludes"),
        ("city", "Lisbon", "Portugal", "implies"),
        ("city", "Lisbon", "Spain", "excludes"),
        ("job", "surgeon", "doctor", "implies"),
        ("month", "July", "winter", "excludes"),
        ("animal", "whale", "mammal", "implies"),
        ("doing", "fast asleep", "reading a novel", "excludes"),
        ("size", "huge", "enormous", None),
    ],
)
def test_what_words_of_the_texts_imply(topic: str, told: str, said: str, link: str | None) -> None:
    (group,) = [one for one in groups() if one.topic == topic]
    nodes = {word: node for node in group.nodes for word in node.words}
    assert link_of(nodes[told], nodes[said]) == link


def test_every_group_has_a_topic_of_its_own_and_frames() -> None:
    topics = [group.topic for group in groups()]
    assert len(topics) > 100
    assert all(group.frames and group.nodes for group in groups())


def test_only_whole_sentences_of_stories_name_the_person() -> None:
    texts = [text for story in stories() for text in (story.told, *(said for _, said in story.said))]
    assert len(texts) > 1500
    assert [text for text in texts if "{s}" in text and not text.startswith("!")] == []
