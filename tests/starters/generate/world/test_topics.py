"""Topics and the keywords that look for them."""

import random

from starters.generate.world.documents import typed
from starters.generate.world.topics import draw_topics


def test_topics_are_about_different_things() -> None:
    generator = random.Random(0)
    for _ in range(50):
        topics = draw_topics(generator, 6)
        assert len({topic.text for topic in topics}) == 6
        every = [set(topic.queries) for topic in topics]
        assert not any(one & other for k, one in enumerate(every) for other in every[:k])


def test_a_query_shares_a_word_with_its_topic_and_is_filled_in() -> None:
    generator = random.Random(1)
    queries = [
        (query, topic.text) for _ in range(100) for topic in draw_topics(generator, 3) for query in topic.queries
    ]
    for query, text in queries:
        assert "{" not in query + text
        assert set(query.lower().split()) & set(text.lower().replace(",", "").replace(".", "").replace(":", "").split())
    assert any(query.lower().startswith("how to ") for query, _ in queries)
    assert any(" " in query and not query.endswith("?") for query, _ in queries)


def test_some_questions_are_typed_in_lower_case_without_a_mark() -> None:
    generator = random.Random(2)
    seen = [typed(generator, "Where does Ada Lovelace live?") for _ in range(300)]
    assert 10 < seen.count("where does ada lovelace live") < 60
    assert seen.count("Where does Ada Lovelace live?") > 200
