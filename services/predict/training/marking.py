"""Accuracy of a student on examples, by greedy decoding, and the confidence of its answers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from services.predict.confidence import Calibration, fit_calibration
from services.predict.data.rows import Example
from services.predict.model.scoring import Candidates
from services.predict.model.student import Student
from services.predict.number_slots import HiddenNumbers, SlotTokens, hide_numbers
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
    answers = predictions(student, task, examples, recipe)
    labels = [
        _text(student, ids)
        for ids in tokenised(student.tokenizer, [example.label for example in examples], recipe.max_target_tokens)
    ]
    right = sum(task.is_right(answer, label) for answer, label in zip(answers, labels, strict=True))
    return right / len(examples)


def fit_confidence(student: Student, task: Task, examples: Sequence[Example], recipe: Recipe) -> Calibration:
    """Fit the confidence of answers to examples that the student has not learnt from.

    Probabilities are those that a service returns: of a label among the task's labels, or of exactly an answer's text.
    Raises ValueError for no examples.
    """
    hidden, inputs = _inputs(student, task, examples, recipe)
    trie = None
    if task.labels is not None:
        label_ids = tokenised(student.tokenizer, task.labels, recipe.max_target_tokens)
        trie = Candidates(label_ids, student.config.decoder_start_token_id)
    probabilities, is_right = [0.0] * len(examples), [False] * len(examples)
    for places in _together(inputs):
        encoded = student.encode([inputs[place] for place in places])
        if trie is not None and task.labels is not None:
            for place, scores in zip(places, student.score(encoded, [trie] * len(places)), strict=True):
                shares = scores.double().softmax(dim=0).tolist()
                best = max(range(len(shares)), key=shares.__getitem__)
                probabilities[place], is_right[place] = shares[best], task.labels[best] == examples[place].label
            continue
        found = student.decode(encoded, recipe.max_answer_tokens, _forbidden(student, task, inputs, places))
        for place, decoded in zip(places, found, strict=True):
            answer, own = _text(student, decoded.token_ids).strip(), hidden[place]
            answer = answer if own is None else own.restore_equation(answer)
            probabilities[place] = math.exp(decoded.logprob)
            is_right[place] = task.is_right(answer, examples[place].label)
    return fit_calibration(probabilities, is_right)


def predictions(student: Student, task: Task, examples: Sequence[Example], recipe: Recipe) -> list[str]:
    """Predict the labels of examples; empty if a single-task answer has none after its marker."""
    hidden, inputs = _inputs(student, task, examples, recipe)
    answers = [""] * len(examples)
    for places in _together(inputs):
        encoded = student.encode([inputs[place] for place in places])
        found = student.decode(encoded, recipe.max_answer_tokens, _forbidden(student, task, inputs, places))
        for place, decoded in zip(places, found, strict=True):
            answers[place] = _text(student, decoded.token_ids)
    answers = [
        answer if one is None else one.restore_equation(answer) for answer, one in zip(answers, hidden, strict=True)
    ]
    if recipe.method == "single-task":
        return [split_joint(answer)[1] or "" for answer in answers]
    return answers


def _inputs(
    student: Student, task: Task, examples: Sequence[Example], recipe: Recipe
) -> tuple[list[HiddenNumbers | None], list[TokenIds]]:
    """The numbers that each example hides from the student, and the tokens that ask for its label."""
    hidden = [hide_numbers(example.input) if task.numbers == "slots" else None for example in examples]
    read = [
        example if one is None else replace(example, input=one.text)
        for example, one in zip(examples, hidden, strict=True)
    ]
    return hidden, tokenised(student.tokenizer, [recipe.input_text(one) for one in read], recipe.max_input_tokens)


def _forbidden(
    student: Student, task: Task, inputs: Sequence[TokenIds], places: Sequence[int]
) -> list[tuple[int, ...]]:
    """Tokens that labels must not contain: number slots without a number."""
    if task.numbers != "slots":
        return []
    slots = SlotTokens(student.tokenizer)
    return [slots.forbidden(inputs[place], is_label=True) for place in places]


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
