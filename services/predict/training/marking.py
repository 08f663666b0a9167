"""Accuracy of a student on examples, by greedy decoding, and the confidence of its answers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from services.predict.data.rows import Row
from services.predict.model.scoring import Candidates
from services.predict.model.student import Student
from services.predict.number_slots import HiddenNumbers, SlotTokens, hide_numbers
from services.predict.tasks import Task, split_joint
from services.predict.training.lessons import TokenIds, tokenised
from services.predict.training.recipe import Recipe

# Limits of a batch that is decoded together: inputs, and tokens including padding.
MAX_INPUTS = 256
MAX_TOKENS = 16_384


def accuracy(student: Student, task: Task, examples: Sequence[Row], recipe: Recipe) -> float:
    """The share of right answers, by the task's metric.

    As published, a label is compared after encoding and decoding by the tokenizer. Raises ValueError.
    """
    if not examples:
        raise ValueError("there are no examples to mark")
    found = {index: answer for index, answer, _ in _answers(student, task, examples, recipe)}
    answers = [found[index] for index in range(len(examples))]
    if recipe.method == "single-task":
        answers = [split_joint(answer)[1] or "" for answer in answers]
    labels = [
        _text(student, ids)
        for ids in tokenised(student.tokenizer, [example.label for example in examples], recipe.max_target_tokens)
    ]
    right = sum(task.is_right(answer, label) for answer, label in zip(answers, labels, strict=True))
    return right / len(examples)


def marked(student: Student, task: Task, examples: Sequence[Row], recipe: Recipe) -> tuple[list[float], list[bool]]:
    """The probability of each answer, and whether it is right.

    Probabilities are those that a service returns: of a label among the task's labels, or of exactly an answer's text.
    """
    probabilities, is_right = [0.0] * len(examples), [False] * len(examples)
    if task.labels is not None:
        trie = Candidates.of_texts(student.tokenizer, "labels", task.labels, student.config.decoder_start_token_id)
        inputs = _inputs(student, task, examples, recipe)[1]
        for indices in _together(inputs):
            encoded = student.encode([inputs[index] for index in indices])
            for index, scores in zip(indices, student.score(encoded, [trie] * len(indices)), strict=True):
                shares = scores.double().softmax(dim=0).tolist()
                best = max(range(len(shares)), key=shares.__getitem__)
                probabilities[index], is_right[index] = shares[best], task.labels[best] == examples[index].label
    else:
        for index, answer, logprob in _answers(student, task, examples, recipe):
            probabilities[index] = math.exp(logprob)
            is_right[index] = task.is_right(answer.strip(), examples[index].label)
    return probabilities, is_right


def _answers(student: Student, task: Task, examples: Sequence[Row], recipe: Recipe) -> Iterator[tuple[int, str, float]]:
    """Yield the index of each example, its decoded answer with its own numbers, and the answer's log-probability.

    An answer must not contain number slots without a number.
    """
    hidden, inputs = _inputs(student, task, examples, recipe)
    slots = SlotTokens(student.tokenizer) if task.numbers == "slots" else None
    for indices in _together(inputs):
        encoded = student.encode([inputs[index] for index in indices])
        forbidden = [] if slots is None else [slots.forbidden(inputs[index], is_label=True) for index in indices]
        found = student.decode(encoded, recipe.max_answer_tokens, forbidden)
        for index, decoded in zip(indices, found, strict=True):
            answer, own = _text(student, decoded.token_ids), hidden[index]
            yield index, answer if own is None else own.restore_equation(answer), decoded.logprob


def _inputs(
    student: Student, task: Task, examples: Sequence[Row], recipe: Recipe
) -> tuple[list[HiddenNumbers | None], list[TokenIds]]:
    """The numbers that each example hides from the student, and the tokens that ask for its label."""
    hidden = [hide_numbers(example.input) if task.numbers == "slots" else None for example in examples]
    read = [
        example if one is None else replace(example, input=one.text)
        for example, one in zip(examples, hidden, strict=True)
    ]
    return hidden, tokenised(student.tokenizer, [recipe.input_text(one) for one in read], recipe.max_input_tokens)


def _together(inputs: Sequence[TokenIds]) -> Iterator[list[int]]:
    """Yield the indices of inputs of similar length, the longest first."""
    indices: list[int] = []
    for index in sorted(range(len(inputs)), key=lambda index: len(inputs[index]), reverse=True):
        if indices and (len(indices) == MAX_INPUTS or (len(indices) + 1) * len(inputs[indices[0]]) > MAX_TOKENS):
            yield indices
            indices = []
        indices.append(index)
    if indices:
        yield indices


def _text(student: Student, token_ids: Sequence[int]) -> str:
    text: str = student.tokenizer.decode(token_ids, skip_special_tokens=True)
    return text
