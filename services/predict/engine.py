"""Inference with a student's checkpoint: from the fields of a task to labels with probabilities and rationales.

Inputs are tokenised and checked against their limit on any thread; computation runs on one thread at a time.

Shapes: C candidates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue

from services.core.errors import InvalidField, TooLarge
from services.nn.broken_model import BrokenModel
from services.nn.devices import DeviceOptions
from services.nn.plain_texts import is_blank
from services.nn.reference_outputs import OutputRow, check_checkpoint
from services.predict.model.scoring import Candidates
from services.predict.model.student import Decoded, Student
from services.predict.model.t5 import Memory
from services.predict.model.task_description import PlainValues, TaskDescription
from services.predict.number_slots import HiddenNumbers, SlotTokens, hide_numbers
from services.predict.tasks import EOS, FieldError, FieldValue
from services.predict.written_numbers import in_plain_form

# Length of a discarded warm-up answer: later decoding steps make no calls that these do not.
WARM_UP_TOKENS = 4
# Two orders of summation of one log-probability differ; a wrong mask or position differs by far more.
SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3}
INT8_SELF_CHECK_TOLERANCE = 0.1
NUM_REFERENCE_TOKENS = 64
# A text goes round in circles where a block of at most so many tokens stands so many times in a row.
MAX_CIRCLE_TOKENS, CIRCLE_TIMES = 8, 3


@dataclass(frozen=True)
class Label:
    """An item's label: its text as shown to clients, its probability, and those of all candidates, None for free text.

    `num_tokens` counts the end of sequence.
    """

    text: str
    probability: float
    probabilities: dict[str, float] | None
    num_tokens: int


@dataclass(frozen=True, eq=False)
class Item:
    """A tokenised input: the prompt for its label, the prompt for its rationale if requested, and its candidates.

    `answers` is None if the label is free text. `numbers` are those of the input, if the task has equations or number
    slots.
    """

    label_ids: tuple[int, ...]
    rationale_ids: tuple[int, ...] | None
    answers: Candidates | None
    numbers: HiddenNumbers | None = None

    @property
    def prompt_tokens(self) -> int:
        """Number of encoded tokens."""
        return len(self.label_ids) + len(self.rationale_ids or ())


@dataclass(frozen=True)
class Prediction:
    """An answer: the service's `Prediction`, and its tokens.

    `probability` is the label's among the candidates or, for free text, that of exactly these tokens among all texts.
    `completion_tokens` counts label and rationale with their ends of sequence.
    """

    label: str
    probability: float
    probabilities: dict[str, float] | None
    rationale: str | None
    value: int | float | None
    prompt_tokens: int
    completion_tokens: int
    confidence: float | None = None
    unused_numbers: tuple[int | float, ...] | None = None
    unread_numbers: tuple[str, ...] | None = None


class PredictEngine:
    """Runs one student on its task; computation on one thread at a time, `prepare` and `cost` on any thread.

    Implements Engine of `services.core.batching.batcher`.
    """

    def __init__(self, student: Student, description: TaskDescription) -> None:
        """Raises ValueError for a tokenizer that can't tell labels or prefixes apart, or does not end its texts."""
        self.description = description
        self._student = student
        self._directory: Path | None = None
        self._task = description.to_task()
        self._calibration = description.confidence
        self.tokenizer: Any = student.tokenizer
        # A checkpoint's own truncation settings would cut inputs, and would change while another thread reads them.
        self.tokenizer.backend_tokenizer.no_truncation()
        self.tokenizer.backend_tokenizer.no_padding()
        if self.tokenizer("word").input_ids[-1:] != [student.config.eos_token_id]:
            raise ValueError("the tokenizer does not append the end-of-sequence token to a text")
        self._plain_values = PlainValues(self.tokenizer)
        self.max_token_characters = max(map(len, self.tokenizer.get_vocab()), default=1)
        self._slot_tokens = SlotTokens(self.tokenizer) if description.numbers == "slots" else None
        prefixes = [one for one in (description.label_prefix, description.rationale_prefix) if one is not None]
        name = "label_prefix and rationale_prefix"
        Candidates.of_texts(self.tokenizer, name, [f"{prefix}word" for prefix in prefixes], shown=prefixes)
        self._answers = None
        if description.labels is not None:
            self._answers = self._answers_of(description.labels, description.labels, "labels")

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions, *, is_int8: bool = False) -> "PredictEngine":
        """Read a checkpoint folder onto the device. Raises what `Student.load` and `TaskDescription.read` raise."""
        description = TaskDescription.read(directory)
        engine = cls(Student.load(directory, options, is_int8=is_int8), description)
        engine._directory = directory
        return engine

    @property
    def has_rationales(self) -> bool:
        """Whether the student was trained to give rationales."""
        return self.description.rationale_prefix is not None

    # On any thread

    def prepare(
        self,
        fields: Mapping[str, FieldValue],
        *,
        rationale: bool = False,
        param: str = "inputs.0",
        may_be_empty: bool = False,
    ) -> Item:
        """Tokenise an input; `param` is its name in the request.

        Raises InvalidField, naming the field, for one that is missing, unknown or of the wrong type, for texts that are
        all empty, or one of a pair that is, unless they `may_be_empty`, for choices that are alike, and for a rationale
        if the student gives none; TooLarge, naming tokens and limit, for an input or a choice that is too long. No part
        of a text becomes a control token.
        """
        if rationale and not self.has_rationales:
            raise InvalidField(
                f"{self.description.task} has no rationales: its student was trained only on labels.", param="rationale"
            )
        self._check_characters(fields, param)
        plain = self._plain_values.make_plain(fields)
        try:
            text = self._task.input_text(plain)
        except FieldError as error:
            raise InvalidField(f"{param}: {error}.", param=f"{param}.{error.field}") from None
        texts = {name: text for name, text in plain.items() if isinstance(text, str)}
        blank = [name for name, text in texts.items() if is_blank(text)]
        if not may_be_empty and (len(blank) == len(texts) or (blank and EOS in self._task.frame)):
            where = param if len(blank) == len(texts) else f"{param}.{blank[0]}"
            raise InvalidField(f"{where}: It has no text that can be seen.", param=where)
        numbers = None
        if self._task.metric == "equal_value" or self._slot_tokens is not None:
            numbers = hide_numbers(text)
            text = in_plain_form(text) if self._slot_tokens is None else numbers.text
        label_ids = self._input_ids(self.description.label_prefix, text, param)
        rationale_ids = None
        if rationale and self.description.rationale_prefix is not None:
            rationale_ids = self._input_ids(self.description.rationale_prefix, text, param)
        if (choices := self.description.choices) is None:
            return Item(label_ids, rationale_ids, self._answers, numbers)
        param = f"{param}.{choices}"
        try:
            answers = self._answers_of(fields[choices], plain[choices], param)
        except ValueError as error:
            raise InvalidField(f"{error}.", param=param) from None
        longest = max(map(len, answers.token_ids))
        if longest > self.description.max_target_tokens:
            limit = self.description.max_target_tokens
            raise TooLarge(f"{param}: A choice has {longest} tokens; the limit is {limit}.", param=param)
        return Item(label_ids, rationale_ids, answers, numbers)

    def cost(self, item: Item) -> int:
        """Number of tokens to run: in the encoder, in the candidates' trie, and at most in generation."""
        num_decoded = self.description.max_target_tokens
        cost = item.prompt_tokens + (num_decoded if item.answers is None else item.answers.num_nodes)
        return cost + (num_decoded if item.rationale_ids is not None else 0)

    # On the compute thread

    def run_batch(self, items: Sequence[Item]) -> list[Prediction]:
        """Predict each item. Raises BrokenModel if a probability is not a number.

        All prompts are encoded in one pass. The encoder is bidirectional, so a different prefix changes the encoding of
        the input in all layers: label and rationale can share an encoding only if their prefixes are equal.
        """
        return self._run(items, self.description.max_target_tokens)

    def warm_up(self) -> None:
        """Answer one item alone and several together, so that no request pays for first calls."""
        for items in ([self._sample(1)], [self._sample(1), self._sample(9)]):
            self._run(items, min(WARM_UP_TOKENS, self.description.max_target_tokens))

    def self_check(self) -> None:
        """Raises BrokenModel unless a text's log-probability is the same scored and decoded, alone and in a batch."""
        check_checkpoint(self, self._directory)
        inputs = [self._sample(length).label_ids for length in (1, 30, 7)]
        for _ in range(2 if self._student.captures_graphs else 1):  # the second time by graphs
            together = self._student.decode(self._student.encode(inputs), 8)
        is_int8 = self._student.is_int8
        tolerance = INT8_SELF_CHECK_TOLERANCE if is_int8 else SELF_CHECK_TOLERANCE[self._student.dtype]
        for ids, answer in zip(inputs, together, strict=True):
            end = (self._student.config.eos_token_id,) if answer.is_finished else ()
            (logprob,) = self._student.logprobs(self._student.encode([ids]), [(*answer.token_ids, *end)])
            difference = abs(logprob - answer.logprob) / max(1.0, abs(answer.logprob))
            # written so that NaN fails
            if not difference <= tolerance:
                raise BrokenModel(f"the log-probability of an answer is {difference:.3g} off when it is computed alone")

    @property
    def computes_in(self) -> str:
        return "int8" if self._student.is_int8 else str(self._student.dtype).removeprefix("torch.")

    def reference_inputs(self) -> list[JsonValue]:
        """Return texts, which need not fit the checkpoint's task."""
        return ["Water boils at a hundred degrees.", "There are 3 red and 4 blue cars, how many are there?"]

    def reference_outputs(self, inputs: Sequence[Any]) -> list[OutputRow]:
        """Return the log-probabilities of some tokens, each as a whole answer, minus their mean."""
        config = self._student.config
        step = max(1, config.vocab_size // NUM_REFERENCE_TOKENS)
        answers = [(token, config.eos_token_id) for token in range(0, config.vocab_size, step)]
        trie = Candidates([ids for ids in answers if ids[0] != ids[1]], config.decoder_start_token_id)
        limit = self.description.max_input_tokens
        ids = [self.tokenizer(text).input_ids for text in inputs]
        encoded = [self._student.encode([(*one[: limit - 1][:-1], one[-1])]) for one in ids]
        scores = [self._student.score(one, [trie])[0].double() for one in encoded]
        return [(row - row.mean()).tolist() for row in scores]

    def _run(self, items: Sequence[Item], max_tokens: int) -> list[Prediction]:
        explaining = [item.rationale_ids for item in items if item.rationale_ids is not None]
        # labels' prompts come first, so that neither they nor the rationales' have to be gathered
        rows = {ids: row for row, ids in enumerate(dict.fromkeys([*(item.label_ids for item in items), *explaining]))}
        encoded = self._student.encode(list(rows))

        chosen = self._choose(items, encoded, [rows[item.label_ids] for item in items])
        free = [rows[item.label_ids] for item in items if item.answers is None]
        explained = [rows[ids] for ids in explaining]
        decoded: dict[int, Decoded] = {}
        if wanted := list(dict.fromkeys([*free, *explained])):
            labels, inputs, slots = set(free) - set(explained), list(rows), self._slot_tokens
            forbidden = slots and [slots.forbidden(inputs[row], is_label=row in labels) for row in wanted]
            found_texts = self._student.decode(encoded.of(wanted), max_tokens, forbidden or [])
            decoded = dict(zip(wanted, found_texts, strict=True))
        return [
            self._prediction(
                item,
                label or self._free_label(item, decoded[rows[item.label_ids]]),
                None if item.rationale_ids is None else decoded[rows[item.rationale_ids]],
            )
            for item, label in zip(items, chosen, strict=True)
        ]

    # Preparing

    def _input_ids(self, prefix: str, text: str, param: str) -> tuple[int, ...]:
        input_ids = self.tokenizer(prefix + text).input_ids
        limit = self.description.max_input_tokens
        if len(input_ids) > limit:
            raise TooLarge(f"{param}: The input has {len(input_ids)} tokens; the limit is {limit}.", param=param)
        allowed = 1 + self._task.frame.count(EOS) + prefix.count(EOS)
        # a normaliser may turn similar characters into a control token
        if self._plain_values.num_controls(input_ids) > allowed:
            raise InvalidField(f"{param}: The text contains a control token of the model.", param=param)
        return tuple(input_ids)

    def _answers_of(self, texts: Sequence[str], plain_texts: Sequence[str], name: str) -> Candidates:
        """Make the trie of texts, which errors call `name`. Raises ValueError for two with the same tokens."""
        start_id = self._student.config.decoder_start_token_id
        return Candidates.of_texts(self.tokenizer, name, plain_texts, start_id, texts)

    def _check_characters(self, fields: Mapping[str, Any], param: str) -> None:
        """Refuse texts that cannot fit before they are tokenised, which takes more than linear time."""
        texts = [text for value in fields.values() for text in (value if isinstance(value, list | tuple) else [value])]
        num_characters = sum(len(text) for text in texts if isinstance(text, str))
        limit = self.description.max_input_tokens
        if num_characters > limit * self.max_token_characters:
            at_least = -(-num_characters // self.max_token_characters)
            raise TooLarge(f"{param}: The input has at least {at_least} tokens; the limit is {limit}.", param=param)

    def _sample(self, length: int) -> Item:
        """Make an input of `length` words per field, or fewer if the model's limit requires it."""
        fields: dict[str, FieldValue] = dict.fromkeys(self.description.fields, " ".join(["word"] * length))
        if self.description.choices is not None:
            fields[self.description.choices] = ["one", "the other"]
        try:
            return self.prepare(fields, rationale=self.has_rationales, may_be_empty=True)
        except TooLarge:
            if not length:
                raise
            return self._sample(length // 2)

    # Answering

    def _choose(self, items: Sequence[Item], encoded: Memory, rows: Sequence[int]) -> list[Label | None]:
        """Choose each item's label among its candidates, None without any; `rows` are the items' rows in `encoded`."""
        chosen: list[Label | None] = [None] * len(items)
        wanted = [(index, item.answers) for index, item in enumerate(items) if item.answers is not None]
        if not wanted:
            return chosen
        tries = [answers for _, answers in wanted]
        scored = self._student.score(encoded.of([rows[index] for index, _ in wanted]), tries)
        for (index, answers), scores in zip(wanted, scored, strict=True):
            shares = scores.double().softmax(dim=0).tolist()
            best = max(range(len(shares)), key=shares.__getitem__)
            probabilities = dict(zip(answers.texts, shares, strict=True))
            chosen[index] = Label(answers.texts[best], shares[best], probabilities, len(answers.token_ids[best]))
        return chosen

    def _free_label(self, item: Item, decoded: Decoded) -> Label:
        text = self._text(decoded.token_ids)
        if self._slot_tokens is not None and item.numbers is not None:
            text = item.numbers.restore_equation(text)
        return Label(text, math.exp(decoded.logprob), None, len(decoded.token_ids) + decoded.is_finished)

    def _confidence(self, label: Label) -> float | None:
        """Estimate the probability that a label is right; 0 for an equation without a value, None without a fit."""
        if self._calibration is None:
            return None
        has_value = self._task.metric != "equal_value" or self._task.value(label.text) is not None
        return self._calibration.confidence(label.probability) if has_value else 0.0

    def _prediction(self, item: Item, label: Label, rationale: Decoded | None) -> Prediction:
        if not math.isfinite(label.probability):
            raise BrokenModel("a probability is not a number")
        num_tokens = label.num_tokens
        if rationale is not None:
            num_tokens += len(rationale.token_ids) + rationale.is_finished
        numbers = item.numbers if self._task.metric == "equal_value" else None
        return Prediction(
            label.text,
            label.probability,
            label.probabilities,
            None if rationale is None else self._rationale(item, rationale),
            self._task.value(label.text),
            item.prompt_tokens,
            num_tokens,
            self._confidence(label),
            None if numbers is None else numbers.unused_in(label.text),
            None if numbers is None else numbers.unread,
        )

    def _rationale(self, item: Item, decoded: Decoded) -> str:
        """Return the text of a rationale, which ends in "…" where it goes round in circles."""
        text, kept = (self._text(ids) for ids in (decoded.token_ids, before_circles(decoded.token_ids)))
        text = text if kept == text else f"{kept} …"
        return text if self._slot_tokens is None or item.numbers is None else item.numbers.restore_rationale(text)

    def _text(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text.strip()


def before_circles(token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens up to the first block that is repeated `CIRCLE_TIMES` times in a row, with the block once.

    All of them if no block of at most `MAX_CIRCLE_TOKENS` tokens is.
    """
    ids = tuple(token_ids)
    for start in range(len(ids)):
        for size in range(1, MAX_CIRCLE_TOKENS + 1):
            stop = start + CIRCLE_TIMES * size
            if stop <= len(ids) and ids[start:stop] == ids[start : start + size] * CIRCLE_TIMES:
                return ids[: start + size]
    return ids
