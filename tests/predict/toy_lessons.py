"""A task that a tiny T5 learns within seconds: which of the words in a text make the label, and why."""

import random
from typing import Any

from services.predict.data.rows import Row, TeacherOutput, TeachingData
from services.predict.tasks import Task
from services.predict.training.recipe import Recipe
from tests.predict.tiny_students import tiny_t5

TOY = Task("toy", ("text",), "\n", labels=("entailment", "neutral"))
_LABELS = {"dog": "entailment", "park": "entailment", "milk": "neutral", "box": "neutral"}


def examples(num_examples: int, seed: int, *, explained: float = 1.0) -> list[Row]:
    """Some of them, a share of which have a rationale."""
    generator = random.Random(seed)
    result = []
    for _ in range(num_examples):
        word, other = generator.choice([*_LABELS]), generator.choice(["a man", "a person", "each box"])
        reason = f"because of a {word}"
        output = TeacherOutput(reason, reason, _LABELS[word]) if generator.random() < explained else None
        result.append(Row(f"{other} in {word}", _LABELS[word], output))
    return result


def toy_data(**changes: Any) -> TeachingData:
    """24 examples to learn from, 8 to choose by and 8 to be tested on."""
    values: dict[str, Any] = {"task": TOY, "train": examples(24, 0), "valid": examples(8, 1), "test": examples(8, 2)}
    return TeachingData(**{**values, **changes})


def toy_recipe(**changes: Any) -> Recipe:
    """A recipe of few steps with short answers."""
    values = {"learning_rate": 5e-3, "batch_size": 8, "steps": 4, "evaluate_every": 2}
    return Recipe(**{**values, "max_new_tokens": 6, "max_target_tokens": 24, **changes})


def toy_t5(**settings: Any) -> Any:
    """A T5 of one layer, with dropout."""
    return tiny_t5(**{"spread": 1.0, "num_layers": 1, **settings})
