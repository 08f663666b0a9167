"""The suite knows nothing of the trainings that it judges."""

import re

from tests.imports import import_graph

TRAINING = re.compile(
    r"services\.\w+\.(data|training)(\.|$)|services\.jobs\.(colorshape|clip_base|training)$"
    r"|starters\.(?!visitor(\.|$)|__main__$)"
)


def test_the_suite_imports_nothing_of_the_generators_and_trainings_even_through_others() -> None:
    graph = import_graph(with_starters=True)
    waiting = [name for name in graph if name.startswith("starters.visitor")]
    assert len(waiting) > 10
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    assert [name for name in sorted(reached) if TRAINING.match(name)] == []
    assert TRAINING.match("services.jobs.colorshape")
    assert TRAINING.match("starters.pictures.things")


def test_no_training_imports_the_suite() -> None:
    graph = import_graph(with_starters=True)
    users = [name for name, used in graph.items() if any(one.startswith("starters.visitor") for one in used)]
    assert [name for name in users if not name.startswith("starters.visitor")] == []
