"""A T5 on a device: encodes inputs together, scores labels and decodes answers greedily.

Shapes: B inputs, T tokens of an input, N decoder rows of an input, E edges of a trie, C candidates, R rows of all
inputs together, H heads, D width, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from services.nn.captured import MAX_ROWS, Captured
from services.nn.device_copies import integers
from services.nn.devices import DeviceOptions
from services.nn.loading import transformers
from services.nn.model_configs import StoredWeights, check_tokens, load_model, read_config
from services.nn.packed_linear import can_pack
from services.nn.weight_files import shapes_in
from services.predict.model.decoding import MAX_TOKENS, GraphSteps, StepGraphs, Steps
from services.predict.model.scoring import Candidates, DecoderRows, Numbers
from services.predict.model.t5 import T5, Group, Memory

# Maximum number of rows in a decoder pass, unless a single input has more.
MAX_DECODER_ROWS = 8192
# On a GPU, launching operations costs more than padding, so inputs are padded to multiples of this length.
GPU_LENGTH_STEP = 64
# Names of the embeddings: a model saved with its tied weights has several copies, others have any one of them.
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class StudentConfig:
    """Properties of a student that its callers need."""

    vocab_size: int
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int


class Decoded(NamedTuple):
    """An answer: its tokens without the end of sequence, and their joint log-probability.

    `is_finished` tells whether the end of sequence was reached; it then counts in `logprob`. If not, the answer was cut
    at its limit.
    """

    token_ids: tuple[int, ...]
    logprob: float
    is_finished: bool


class Student:
    """Runs one T5, on one thread at a time. An answer does not depend on its batch, except for rounding."""

    def __init__(self, model: Any, tokenizer: Any, *, is_int8: bool = False, num_threads: int | None = None) -> None:
        """`model` is transformers' T5ForConditionalGeneration, on its device; `num_threads` None keeps torch's setting.

        Raises what `T5` raises.
        """
        self.tokenizer = tokenizer
        config = model.config
        self.config = StudentConfig(
            config.vocab_size,
            config.pad_token_id,
            _first(model.generation_config.eos_token_id, config.eos_token_id, 1),
            _first(model.generation_config.decoder_start_token_id, config.decoder_start_token_id, config.pad_token_id),
        )
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.is_int8 = is_int8
        self._num_threads = num_threads
        self._t5 = T5(model.eval(), is_int8=is_int8)
        self.captures_graphs = self.device.type not in ("cpu", "mps")
        self._encode_padded = Captured(partial(_encode_padded, self._t5))
        self._score = Captured(partial(_score, self._t5))
        self._step_graphs = StepGraphs(self._t5, self.config.decoder_start_token_id)
        self._length_step = 1 if self.device.type == "cpu" else GPU_LENGTH_STEP

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions, *, is_int8: bool = False) -> "Student":
        """Read a Hugging Face directory (config.json, safetensors, tokenizer) onto the device.

        Raises ValueError for an architecture other than T5, for weights that are quantised or missing, for float16, in
        which T5's activations overflow, and for a device that this machine lacks; OSError if a file is missing.
        """
        stored = StoredWeights.in_folder(directory)
        config = read_config(directory, stored)
        if config.model_type != "t5":
            raise ValueError(f"the architecture {config.model_type!r} is not t5")
        if getattr(config, "quantization_config", None) is not None:
            raise ValueError("quantised weights are not supported")
        device = options.choose_device()
        dtype = options.choose_dtype(device)
        if dtype == torch.float16:
            raise ValueError("a T5 overflows in float16: choose bfloat16 or float32")
        model = load_model("T5ForConditionalGeneration", directory, config, stored, dtype=dtype)
        tokenizer = transformers().AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        check_tokens(tokenizer, config.vocab_size)
        num_threads = options.choose_num_threads(config.d_model)
        return cls(model.eval().requires_grad_(False).to(device), tokenizer, is_int8=is_int8, num_threads=num_threads)

    @torch.inference_mode()
    def encode(self, inputs: Sequence[Sequence[int]]) -> Memory:
        """Encode the token ids of one or more inputs, ends of sequence included. Raises ValueError for an empty one."""
        if not inputs or not all(inputs):
            raise ValueError("there must be inputs, and each must have tokens")
        if self._num_threads is not None:  # students of several widths may take turns on this thread
            torch.set_num_threads(self._num_threads)
        longest = self._padded(max(map(len, inputs)))
        if self.captures_graphs and len(inputs) <= MAX_ROWS and len(inputs) * longest <= MAX_TOKENS:
            return self._encode_few(inputs, longest)
        packed, groups, rows, mask = self._side_by_side(inputs)
        encoded = self._t5.encode(packed, groups)
        return self._t5.memory(encoded, rows, len(inputs), mask)

    @torch.inference_mode()
    def score(self, encoded: Memory, candidates: Sequence[Candidates]) -> list[Tensor]:
        """log p(label | x) among each input's candidates, see `scoring`: (C,) float32 each, in host memory.

        The inputs may share a trie or have one each. If candidates diverge at only one place, e.g. labels that differ
        in their first token, the most probable candidate is the one that greedy search among them finds.
        """
        _check_one_each(encoded, candidates)
        num_together = max(1, MAX_DECODER_ROWS // max((some.num_nodes for some in candidates), default=1))
        passes = []
        for start in range(0, len(candidates), num_together):
            some = candidates[start : start + num_together]
            passes.append(self._edge_logits(encoded.of(range(start, start + len(some))), some))
        logits = torch.cat(passes).cpu()  # waits for all passes at once
        scores: list[Tensor] = []
        for trie, neighbours in groupby(candidates):
            number, size = len(list(neighbours)), len(trie.edge_nodes)
            own, logits = logits[: number * size], logits[number * size :]
            scores += trie.log_probabilities(own.view(number, size)).unbind()
        return scores

    @torch.inference_mode()
    def logprobs(self, encoded: Memory, answers: Sequence[Sequence[int]]) -> list[float]:
        """log p(answer | x) = Σ_t log p(y_t | y_<t, x) among all texts, for one non-empty answer per input."""
        _check_one_each(encoded, answers)
        rows_of_answers = [DecoderRows.of(ids, self.config.decoder_start_token_id) for ids in answers]
        table, *expected = self._table(rows_of_answers, *answers)
        decoded = _decode_table(self._t5, table, encoded)
        sums = []
        for rows, ids in zip(decoded, expected, strict=True):
            logits = self._t5.logits(rows[: len(ids)])
            sums.append(logits.log_softmax(dim=1).gather(1, ids[:, None]).sum())
        found: list[float] = torch.stack(sums).tolist()
        return found

    @torch.inference_mode()
    def decode(self, encoded: Memory, max_tokens: int, forbidden: Sequence[Sequence[int]] = ()) -> list[Decoded]:
        """Decode greedily, with log-probabilities: at most `max_tokens`, including the end of sequence.

        `forbidden` are tokens that each input's answer must not contain; probabilities are still among all texts.
        """
        if forbidden:
            _check_one_each(encoded, forbidden)
        num_inputs = encoded.num_inputs
        steps: Steps | GraphSteps | None = None if any(forbidden) else self._step_graphs.begin(encoded, max_tokens)
        steps = steps or Steps(self._t5, encoded, self.config.decoder_start_token_id, forbidden)
        tokens: list[list[int]] = [[] for _ in range(num_inputs)]
        logprobs = [0.0] * num_inputs
        running = list(range(num_inputs))  # the input of each sequence that still runs; some of them have ended
        has_ended = [False] * num_inputs
        for _ in range(max_tokens):
            for index, (token, gained) in zip(running, steps.next().tolist(), strict=True):
                if has_ended[index]:
                    continue
                logprobs[index] += gained
                if token == self.config.eos_token_id:
                    has_ended[index] = True
                else:
                    tokens[index].append(int(token))
            open_rows = [row for row, index in enumerate(running) if not has_ended[index]]
            if not open_rows:
                break
            # only once half have ended, so that all copies together cost no more than one copy of everything
            if 2 * len(open_rows) <= len(running) and steps.keep(open_rows):
                running = [running[row] for row in open_rows]
        return [
            Decoded(tuple(ids), logprob, ended) for ids, logprob, ended in zip(tokens, logprobs, has_ended, strict=True)
        ]

    # Encoding

    def _padded(self, length: int) -> int:
        return -(-length // self._length_step) * self._length_step

    def _encode_few(self, inputs: Sequence[Sequence[int]], longest: int) -> Memory:
        """Encode inputs padded to one length, for few of which a graph may be captured."""
        padded = np.full((len(inputs), longest), self.config.pad_token_id, dtype=np.int64)
        for row, ids in zip(padded, inputs, strict=True):
            row[: len(ids)] = ids
        input_ids, lengths = integers(padded.ravel(), [len(ids) for ids in inputs], device=self.device)
        return Memory(*self._encode_padded(input_ids.view(padded.shape), lengths, num_rows=len(inputs)))

    def _side_by_side(
        self, inputs: Sequence[Sequence[int]]
    ) -> tuple[Tensor, list[Group], Tensor | None, Tensor | None]:
        """Pack inputs sorted by length: their rows (R,), their groups, and the rows (B, T) and mask of each input."""
        num_inputs = len(inputs)
        lengths = [len(ids) for ids in inputs]
        padded = [self._padded(length) for length in lengths]
        longest = max(padded)
        if lengths == [longest] * num_inputs:
            (input_ids,) = integers(np.ravel(inputs), device=self.device)
            return input_ids, [Group(slice(0, len(input_ids)), num_inputs, longest)], None, None
        order = sorted(range(num_inputs), key=lengths.__getitem__)
        starts = [0] * num_inputs
        packed: list[int] = []
        for index in order:
            starts[index] = len(packed)
            packed += [*inputs[index], *[self.config.pad_token_id] * (padded[index] - lengths[index])]
        rows_of_inputs: Sequence[int] | Numbers = []
        if padded != [longest] * num_inputs or order != list(range(num_inputs)):
            offsets = np.minimum(np.arange(longest), np.array(padded)[:, None] - 1)
            rows_of_inputs = (np.array(starts)[:, None] + offsets).ravel()
        ends_in_order = [lengths[index] for index in order]
        input_ids, rows, ends = integers(packed, rows_of_inputs, [*ends_in_order, *lengths], device=self.device)
        groups, first, begin = [], 0, 0
        keys = None if padded == lengths else _token_mask(ends[:num_inputs], longest, self.dtype)
        for length, members in groupby(order, key=padded.__getitem__):
            count = len(list(members))
            own = None if keys is None else keys[first : first + count, ..., :length]
            groups.append(Group(slice(begin, begin + count * length), count, length, own))
            first, begin = first + count, begin + count * length
        mask = _token_mask(ends[num_inputs:], longest, self.dtype)
        return input_ids, groups, rows.view(num_inputs, longest) if len(rows) else None, mask

    # Scoring

    def _edge_logits(self, memory: Memory, candidates: Sequence[Candidates]) -> Tensor:
        """Compute the logits of all tries' edges, one trie after the other: (ΣE,) float32."""
        most = max(some.num_nodes for some in candidates)
        nodes = np.concatenate([some.edge_nodes + number * most for number, some in enumerate(candidates)])
        tokens = np.concatenate([some.edge_tokens for some in candidates])
        moved = self._table([some.rows for some in candidates], nodes, tokens)
        given = (*moved, memory.keys_and_values, memory.mask)
        is_small = memory.num_inputs * max(most, memory.num_tokens) <= MAX_TOKENS
        (logits,) = self._score(*given, num_rows=memory.num_inputs if is_small else None)
        return logits

    def _table(self, rows: Sequence[DecoderRows], *others: Sequence[int] | Numbers) -> tuple[Tensor, ...]:
        """Lay out each input's rows, (3, B or 1, N) for N the most rows of an input, 1 if inputs share them.

        `others` are copied to the device together with them, and follow.
        """
        distinct = rows[:1] if all(some is rows[0] for some in rows) else rows
        most = max(len(some.tokens) for some in distinct)
        table = np.zeros((3, len(distinct), most), dtype=np.int64)
        for number, some in enumerate(distinct):
            table[:, number, : len(some.tokens)] = some
        table[2, :, 0] = most  # a row must see something, also one that only fills up
        joined, *moved = integers(table.ravel(), *others, device=self.device)
        return joined.view(table.shape), *moved


def _token_mask(lengths: Tensor, longest: int, dtype: torch.dtype) -> Tensor:
    """Make a mask (B, 1, 1, T), −∞ after each input's tokens."""
    is_behind = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    mask = torch.zeros(is_behind.shape, dtype=dtype, device=lengths.device)
    return mask.masked_fill_(is_behind, -math.inf)[:, None, None]


def _encode_padded(t5: T5, input_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Encode (B, T) int64 with lengths (B,) for a `Memory`."""
    num_inputs, longest = input_ids.shape
    mask = _token_mask(lengths, longest, t5.dtype)
    encoded = t5.encode(input_ids.flatten(), [Group(slice(0, input_ids.numel()), num_inputs, longest, mask)])
    return t5.memory(encoded, None, num_inputs, mask).keys_and_values, mask


def _score(
    t5: T5, table: Tensor, nodes: Tensor, tokens: Tensor, keys_and_values: Tensor, mask: Tensor | None
) -> tuple[Tensor]:
    """Compute the logits (E,) of the edges (E,) from `nodes` to `tokens`."""
    decoded = _decode_table(t5, table, Memory(keys_and_values, mask))
    return (t5.token_logits(decoded.flatten(0, 1), nodes, tokens),)


def _decode_table(t5: T5, table: Tensor, memory: Memory) -> Tensor:
    """Decode a table of rows: (B, N, D); values beyond an input's rows are undefined."""
    tokens, depths, stops = table
    return t5.decode(tokens.expand(memory.num_inputs, -1), t5.tree_bias(depths, stops), memory)


def held_bytes(directory: Path, options: DeviceOptions, *, is_int8: bool = False) -> int:
    """Bytes of a checkpoint's parameters once it is loaded, whatever the dtype of its files.

    Memory holds every matrix once for multiplication, the embeddings for lookup, and the head for selecting its rows.
    If products need a packed layout (float32 on x86, and 8-bit integers), none of the three can replace another, except
    that the rows of a tied head are those of the embeddings. Loading takes up to the same amount again. Raises
    ValueError if the folder has no such weights.
    """
    device = options.choose_device()
    dtype = options.choose_dtype(device)
    tensors: dict[str, int] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            tensors |= {name: math.prod(shape) for name, shape in shapes_in(path)}
        except SafetensorError as error:
            raise ValueError(f"{path.name}: {error}") from error
    embeddings = [tensors.pop(name) for name in EMBEDDINGS if name in tensors]
    if not embeddings:
        raise ValueError(f"no file of {directory.name} holds {EMBEDDINGS[0]}")
    looked_up, multiplied = embeddings[0], sum(tensors.values())
    if is_int8 or can_pack(device, dtype):
        head = tensors.get(HEAD)
        multiplied += looked_up if head is None else 0
        looked_up += head or 0
    return looked_up * dtype.itemsize + multiplied * (1 if is_int8 else dtype.itemsize)


def _check_one_each(encoded: Memory, given: Sequence[Any]) -> None:
    if len(given) != encoded.num_inputs:
        raise ValueError(f"{len(given)} for {encoded.num_inputs} inputs")


def _first(*values: Any) -> int:
    """The first value that is not None; for a list, its first element."""
    value = next(value for value in values if value is not None)
    return int(value[0] if isinstance(value, list) else value)
