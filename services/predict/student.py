"""A T5 on a device: inputs encoded together, labels scored, answers decoded greedily.

Shapes: B inputs, T tokens of an input, N nodes of a trie, E its edges, C candidates, R rows of all inputs together,
H heads, D width, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from services.nn.devices import DeviceOptions
from services.nn.torchvision_operators import declare_torchvision_operators
from services.predict.scoring import Candidates, choose_beginnings
from services.predict.t5 import T5, Cache, Group, Memory

# Rows of logits that exist at a time.
LOGITS_ROWS = 256
# Rows that a pass of the decoder runs at most, or one input's.
MAX_DECODER_ROWS = 8192
# A trie of at most so many nodes costs less than a look ahead at which of them matter.
SMALL_TRIE = 24
# On a GPU launching an operation costs more than padding, so that inputs are brought to multiples of this length.
GPU_LENGTH_STEP = 64


@dataclass(frozen=True)
class StudentConfig:
    """What the parts around a student need to know of it."""

    d_model: int
    num_layers: int
    vocab_size: int
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int


@dataclass(frozen=True, eq=False)
class Encoded:
    """B encoded inputs: what the decoder sees of them."""

    memory: Memory
    num_inputs: int

    def of(self, places: Sequence[int]) -> "Encoded":
        """Those at these places, in this order."""
        if list(places) == list(range(self.num_inputs)):
            return self
        return Encoded(self.memory.of(torch.tensor(places, device=self.memory.device)), len(places))


class Decoded(NamedTuple):
    """An answer: its tokens without the end of sequence, and the log-probability of them all.

    `is_finished` tells whether the end came; it then counts in `logprob`. If not, the answer was cut at its limit.
    """

    token_ids: tuple[int, ...]
    logprob: float
    is_finished: bool


class Student:
    """Runs one T5; on one thread at a time. An answer does not depend on what shares its batch, but for rounding."""

    def __init__(self, model: Any, tokenizer: Any, *, is_int8: bool = False) -> None:
        """`model` is transformers' T5ForConditionalGeneration, on its device. Raises what `T5` raises."""
        self.tokenizer = tokenizer
        config = model.config
        self.config = StudentConfig(
            config.d_model,
            config.num_layers,
            config.vocab_size,
            config.pad_token_id,
            _first(model.generation_config.eos_token_id, config.eos_token_id, 1),
            _first(model.generation_config.decoder_start_token_id, config.decoder_start_token_id, config.pad_token_id),
        )
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.is_int8 = is_int8
        self._t5 = T5(model.eval(), is_int8=is_int8)
        self._length_step = 1 if self.device.type == "cpu" else GPU_LENGTH_STEP

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions, *, is_int8: bool = False) -> "Student":
        """Read a Hugging Face directory (config.json, safetensors, tokenizer) onto the device.

        Raises ValueError for another architecture than T5, for weights that are quantised or missing, for float16, in
        which T5's activations overflow, and for a device that this machine lacks; OSError where a file is missing.
        """
        declare_torchvision_operators()
        from transformers import AutoConfig, AutoTokenizer, T5ForConditionalGeneration

        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        if config.model_type != "t5":
            raise ValueError(f"the architecture {config.model_type!r} is not t5")
        if getattr(config, "quantization_config", None) is not None:
            raise ValueError("quantised weights are not supported")
        device = options.choose_device()
        dtype = options.choose_dtype(device)
        if dtype == torch.float16:
            raise ValueError("a T5 overflows in float16: choose bfloat16 or float32")
        torch.set_num_threads(options.choose_num_threads(config.d_model))
        loaded: Any = T5ForConditionalGeneration.from_pretrained(
            directory, config=config, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
        )
        model, report = loaded
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"the checkpoint lacks weights of its model, {missing[0]!r} among them")
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return cls(model.eval().requires_grad_(False).to(device), tokenizer, is_int8=is_int8)

    @torch.inference_mode()
    def encode(self, inputs: Sequence[Sequence[int]]) -> Encoded:
        """Token ids of at least one input, each with its end of sequence. Raises ValueError for one without tokens."""
        if not inputs or not all(inputs):
            raise ValueError("there must be inputs, and each must have tokens")
        packed, groups, rows, mask = self._side_by_side(inputs)
        encoded = self._t5.encode(packed, groups)
        return Encoded(self._t5.memory(encoded, rows, len(inputs), mask), len(inputs))

    @torch.inference_mode()
    def score(self, encoded: Encoded, candidates: Sequence[Candidates], *, tolerance: float = 0.0) -> list[Tensor]:
        """log p(label | x) of each input's candidates: (C,) float32 each, the same trie for several inputs or each its
        own.

        The most probable candidate is the one that greedy search among the candidates would find wherever candidates
        differ in their first token alone and go on with certainty, e.g. labels of one token each, or where the greedy
        path's tokens are more probable than all others together. Elsewhere greedy search may take a likely first token
        whose candidates are all unlikely; this finds the most probable candidate always.

        A `tolerance` above 0 spares what cannot matter in a large trie: candidates are left out whose first tokens are
        so improbable that all those together have at most this share of the candidates' probability. They are given
        equal parts of their first token's probability, which is at least what they have. Softmax over the candidates
        then differs by at most the tolerance, and the most probable candidate is the right one unless its own share is
        less than that.
        """
        if len(candidates) != encoded.num_inputs:
            raise ValueError(f"{len(candidates)} tries for {encoded.num_inputs} inputs")
        large = [place for place, some in enumerate(candidates) if tolerance > 0 and some.num_nodes > SMALL_TRIE]
        small = [place for place in range(len(candidates)) if place not in set(large)]
        scores: dict[int, Tensor] = {}
        if small:
            every = self._score(encoded, small, [candidates[place] for place in small])
            scores |= zip(small, every, strict=True)
        if large:
            some = self._score_likely(encoded, large, [candidates[place] for place in large], tolerance)
            scores |= zip(large, some, strict=True)
        return [scores[place] for place in range(len(candidates))]

    def decode(self, encoded: Encoded, max_tokens: int) -> list[tuple[int, ...]]:
        """Greedy answers: the tokens ahead of the end of sequence, at most `max_tokens`."""
        return [decoded.token_ids for decoded in self.decode_scored(encoded, max_tokens)]

    @torch.inference_mode()
    def decode_scored(self, encoded: Encoded, max_tokens: int) -> list[Decoded]:
        """Greedy answers with what the model gives for them. At most `max_tokens`, the end of sequence included."""
        num_inputs, memory = encoded.num_inputs, encoded.memory
        cache = Cache(self._t5.num_layers)
        tokens: list[list[int]] = [[] for _ in range(num_inputs)]
        logprobs = torch.zeros(num_inputs, dtype=torch.float32, device=self.device)
        running = list(range(num_inputs))  # the input of each sequence that is run; some of them have ended
        has_ended = [False] * num_inputs
        places = torch.arange(num_inputs, device=self.device)
        newest = torch.full((num_inputs, 1), self.config.decoder_start_token_id, device=self.device)
        for step in range(max_tokens):
            bias = self._t5.last_row_bias(step + 1)
            logits = self._t5.logits(self._t5.decode(newest, bias, memory, cache)[:, 0])
            best, newest = logits.max(dim=1, keepdim=True)
            gained = (best - logits.logsumexp(dim=1, keepdim=True))[:, 0]
            is_open = torch.tensor([not has_ended[place] for place in running], device=self.device)
            logprobs[places] += gained * is_open
            for place, token in zip(running, newest[:, 0].tolist(), strict=True):
                if has_ended[place]:
                    continue
                if token == self.config.eos_token_id:
                    has_ended[place] = True
                else:
                    tokens[place].append(token)
            open_rows = [row for row, place in enumerate(running) if not has_ended[place]]
            if not open_rows:
                break
            # each time half have ended, so that all the copying together costs no more than one copy of everything
            if 2 * len(open_rows) <= len(running):
                kept = torch.tensor(open_rows, device=self.device)
                memory, newest, places = memory.of(kept), newest[kept], places[kept]
                cache.keep(kept)
                running = [running[row] for row in open_rows]
        return [
            Decoded(tuple(ids), logprob, ended)
            for ids, logprob, ended in zip(tokens, logprobs.tolist(), has_ended, strict=True)
        ]

    # Encoding

    def _side_by_side(
        self, inputs: Sequence[Sequence[int]]
    ) -> tuple[Tensor, list[Group], Tensor | None, Tensor | None]:
        """Packed rows (R,) of inputs sorted by length, their groups, and the rows (B, T) and mask of each input."""
        step = self._length_step
        lengths = [len(ids) for ids in inputs]
        padded = [-(-length // step) * step for length in lengths]
        order = sorted(range(len(inputs)), key=lambda place: (padded[place], lengths[place]))
        starts = np.zeros(len(inputs), dtype=np.int64)
        packed: list[int] = []
        groups = []
        for length, members in groupby(order, key=lambda place: padded[place]):
            some = list(members)
            begin = len(packed)
            for place in some:
                starts[place] = len(packed)
                packed += [*inputs[place], *[self.config.pad_token_id] * (length - lengths[place])]
            keys = self._token_mask([lengths[place] for place in some], length)
            groups.append(Group(slice(begin, len(packed)), len(some), length, keys))
        longest = max(padded)
        rows = None
        if len(groups) > 1 or order != list(range(len(inputs))):
            offsets = np.minimum(np.arange(longest), np.array(padded)[:, None] - 1)
            rows = self._tensor(starts[:, None] + offsets)
        return self._tensor(np.array(packed)), groups, rows, self._token_mask(lengths, longest)

    def _token_mask(self, lengths: Sequence[int], longest: int) -> Tensor | None:
        """(B, 1, 1, T), −∞ behind each input's tokens; None where every input has as many."""
        if all(length == longest for length in lengths):
            return None
        mask = np.where(np.arange(longest) < np.array(lengths)[:, None], 0.0, -math.inf)
        return torch.from_numpy(mask[:, None, None]).to(self.device, self.dtype)

    # Scoring

    def _score(self, encoded: Encoded, places: Sequence[int], candidates: Sequence[Candidates]) -> list[Tensor]:
        """Exactly, of the inputs at these places."""
        most = max(some.num_nodes for some in candidates)
        num_together = max(1, MAX_DECODER_ROWS // most)
        scores = []
        for start in range(0, len(places), num_together):
            those, some = places[start : start + num_together], candidates[start : start + num_together]
            edges = self._edge_logprobs(encoded.of(those).memory, some)
            sizes = [len(one.edge_nodes) for one in some]
            scores += [one.log_probabilities(own) for one, own in zip(some, torch.split(edges, sizes), strict=True)]
        return scores

    def _score_likely(
        self, encoded: Encoded, places: Sequence[int], candidates: Sequence[Candidates], tolerance: float
    ) -> list[Tensor]:
        """Roughly, see `score`: first tokens alone, then the candidates behind those that are probable enough."""
        beginnings = [some.beginnings() for some in candidates]
        firsts = [Candidates([[token] for token in tokens], candidates[0].start_id) for tokens in beginnings]
        looks = [look.tolist() for look in self._score(encoded, places, firsts)]
        unseen = [
            {token: math.exp(logprob) for token, logprob in zip(tokens, look, strict=True)}
            for tokens, look in zip(beginnings, looks, strict=True)
        ]
        scores = [torch.empty(len(some.token_ids), device=self.device) for some in candidates]
        seen = [0.0] * len(places)
        # what is hoped for at first is that candidates have all the probability of their first tokens
        for hoped in ([sum(masses.values()) for masses in unseen], seen):
            chosen = [choose_beginnings(*about, tolerance) for about in zip(unseen, hoped, strict=True)]
            if not (again := [number for number, tokens in enumerate(chosen) if tokens]):
                break
            members = [[c for token in chosen[number] for c in beginnings[number][token]] for number in again]
            tries = [candidates[number].of(some) for number, some in zip(again, members, strict=True)]
            found = self._score(encoded, [places[number] for number in again], tries)
            for number, some, logprobs in zip(again, members, found, strict=True):
                scores[number][torch.tensor(some, device=self.device)] = logprobs
                seen[number] += float(logprobs.exp().sum())
                for token in chosen[number]:
                    del unseen[number][token]
        for number, masses in enumerate(unseen):
            for token, mass in masses.items():
                some = beginnings[number][token]
                scores[number][torch.tensor(some, device=self.device)] = math.log(max(mass, 1e-300) / len(some))
        return scores

    def _edge_logprobs(self, memory: Memory, candidates: Sequence[Candidates]) -> Tensor:
        """Of all tries' edges, one trie after the other: (ΣE,) float32."""
        sizes = [some.num_nodes for some in candidates]
        decoded = self._run_tries(memory, candidates).flatten(0, 1)
        most = max(sizes)
        if min(sizes) < most:
            kept = np.concatenate([number * most + np.arange(size) for number, size in enumerate(sizes)])
            decoded = decoded[self._tensor(kept)]
        starts = np.cumsum([0, *sizes])
        nodes = np.concatenate([some.edge_nodes + start for some, start in zip(candidates, starts, strict=False)])
        tokens = self._tensor(np.concatenate([some.edge_tokens for some in candidates]))
        parts = []
        for start in range(0, len(decoded), LOGITS_ROWS):
            first, last = np.searchsorted(nodes, (start, start + LOGITS_ROWS))
            logits = self._t5.logits(decoded[start : start + LOGITS_ROWS])
            rows = self._tensor(nodes[first:last] - start)
            parts.append(logits[rows, tokens[first:last]] - logits.logsumexp(dim=1)[rows])
        return torch.cat(parts)

    def _run_tries(self, memory: Memory, candidates: Sequence[Candidates]) -> Tensor:
        """(B, N, D), of inputs with one trie each, N that of the largest; behind a smaller one is nothing of use."""
        distinct = list({id(some): some for some in candidates}.values())
        most = max(some.num_nodes for some in distinct)
        tokens = np.full((len(distinct), most), self.config.pad_token_id)
        depths = np.zeros((len(distinct), most), dtype=np.int64)
        visible = np.zeros((len(distinct), most, most), dtype=bool)
        visible[:, :, 0] = True  # a row must see something; every node sees the first
        for number, some in enumerate(distinct):
            tokens[number, : some.num_nodes] = some.tokens
            depths[number, : some.num_nodes] = some.depths
            visible[number, : some.num_nodes, : some.num_nodes] = some.visible()
        bias = self._t5.tree_bias(self._tensor(depths), self._tensor(visible))
        input_ids = self._tensor(tokens)
        if 1 < len(distinct) < len(candidates):
            number_of = {id(some): number for number, some in enumerate(distinct)}
            which = self._tensor(np.array([number_of[id(some)] for some in candidates]))
            input_ids, bias = input_ids[which], bias[which]
        return self._t5.decode(input_ids.expand(len(candidates), -1), bias, memory)

    def _tensor(self, numbers: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)


def _first(*values: Any) -> int:
    """The first that is given, of a list its first."""
    value = next(value for value in values if value is not None)
    return int(value[0] if isinstance(value, list) else value)
