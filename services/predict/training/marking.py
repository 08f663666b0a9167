"""Accuracy of a student on examples, by greedy decoding."""

from collections.abc import Iterator, Sequence

from services.predict.data.rows import Example
from services.predict.model.student import Student
from services.predict.tasks import Task, split_joint
from services.predict.training.lessons import TokenIds, tokenised
from services.predict.training.recipe import Recipe

# Limits of a batch that is decoded together: inputs, and tokens including padding.
MAX_INPUTS = 256
MAX_TOKENS = 16_384


def accuracy(student: Student, task: Task, examples: Sequence[Example], recipe: Recipe) -> float:
    """The share of right answers, by the task's metric.

    As published, a label is compared after encoding and decoding by the tokenizer. Raises ValueError if there are no
    examples, or one lacks what the method needs.
    """
    if not examples:
        raise ValueError("there are no examples to mark")
    answers = predictions(student, examples, recipe)
    labels = [
        _text(student, ids)
        for ids in tokenised(student.tokenizer, [example.label for example in examples], recipe.max_target_tokens)
    ]
    right = sum(task.is_right(answer, label) for answer, label in zip(answers, labels, strict=True))
    return right / len(examples)


def predictions(student: Student, examples: Sequence[Example], recipe: Recipe) -> list[str]:
    """Predict the labels of examples; empty if a single-task answer has none after its marker."""
    inputs = tokenised(student.tokenizer, [recipe.input_text(example) for example in examples], recipe.max_input_tokens)
    answers = [""] * len(examples)
    for places in _together(inputs):
        encoded = student.encode([inputs[place] for place in places])
        for place, ids in zip(places, student.decode(encoded, recipe.max_answer_tokens), strict=True):
            answers[place] = _text(student, ids)
    if recipe.method == "single-task":
        return [split_joint(answer)[1] or "" for answer in answers]
    return answers


def _together(inputs: Sequence[TokenIds]) -> Iterator[list[int]]:
    """Yield the places of inputs of similar length, the longest first."""
    places: list[int] = []
    for place in sorted(range(len(inputs)), key=lambda place: len(inputs[place]), reverse=True):
        if places and (len(places) == MAX_INPUTS or (len(places) + 1) * len(inputs[places[0]]) > MAX_TOKENS):
            yield places
            places = []
        places.append(place)
    if places:
        yield places


def _text(student: Student, token_ids: Sequence[int]) -> str:
    text: str = student.tokenizer.decode(token_ids, skip_special_tokens=True)
    return text
