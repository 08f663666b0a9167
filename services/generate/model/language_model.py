"""A causal language model on a device: packed prefill, branches, calibrated re-runs and decoding over a KV cache.

The layers run in our own short loop, so that a pass can stop at any depth, use its own attention and compute the logits
of only the wanted rows.

Shapes: B sequences, T tokens, V vocabulary, L layers, H heads, K documents, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.generate.calibration import Calibration
from services.generate.capacity import CacheSize, Capacity
from services.generate.model.branches import Branch, BranchPass
from services.generate.model.decoder import Decoder, ForwardPass
from services.generate.model.kv_cache import CacheShape, KVCache, Slot
from services.generate.model.packing import DecodePass, Interventions, PrefillPass, RerunPass, Stretch
from services.generate.prompts.templates import Piece, tokenise
from services.nn.broken_model import BrokenModel
from services.nn.device_copies import integers
from services.nn.devices import GIBIBYTE, DeviceOptions, check_room, memory_of
from services.nn.loading import transformers
from services.nn.model_configs import StoredWeights, check_tokens, load_model, read_config

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
# Its position embeddings change with the longest sequence of a pass, so an answer would depend on its neighbours.
# Those of "dynamic" would too, beyond the context length that they are served with.
VARYING_ROPE = ("longrope",)
# Maximum number of tokens in a pass over several prompts; a longer prompt has its own pass.
MAX_PASS_TOKENS = 8192
# A CPU shares its memory with other services, and is too slow for more.
CPU_CACHED_TOKENS = 65_536
# Rows of logits in memory at once if those of every row are wanted.
LOGITS_ROWS = 256


@dataclass(frozen=True)
class Prefill:
    """`input_ids` of a prompt that are not cached yet, from position `slot.length` on, at least one.

    The last row is measured on `spans`, documents in tokens of the whole prompt. `scores_all` asks for the
    log-probability of every token but the first, and of the `num_top` most likely ones in its place.
    """

    slot: Slot
    input_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...] = ()
    scores_all: bool = False
    num_top: int = 0


@dataclass(frozen=True, eq=False)
class TokenScores:
    """`logprobs` (T − 1,), log p(input_ids[i + 1] | all before), and of the N most likely tokens in each place their
    `top_logprobs` (T − 1, N) in descending order and `top_ids` (T − 1, N) int64."""

    logprobs: Tensor
    top_logprobs: Tensor
    top_ids: Tensor


@dataclass(frozen=True, eq=False)
class Prefilled:
    """`logits` (V,) of the last row; `attention` (L, H, K), Attn(k) of the last row, None without spans; `scores` of
    the prompt's tokens, None unless asked for. All float32."""

    logits: Tensor
    attention: Tensor | None
    scores: TokenScores | None


@dataclass(frozen=True, eq=False)
class Row:
    """Tokens of a sequence to run: the last cached ones for `rerun`, one new one for `decode`."""

    slot: Slot
    input_ids: tuple[int, ...]
    calibration: Calibration | None = None


@dataclass(frozen=True)
class ModelConfig:
    """Properties of the model that its callers need; `max_model_len` in tokens.

    `token_bytes` are those of one token's keys and values. `is_greedy`: whether `"do_sample": false` in the
    checkpoint's `generation_config.json` asks for greedy decoding.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    token_bytes: int
    is_greedy: bool = False


class LanguageModel:
    """Runs one model, on one thread at a time. An answer depends on other sequences in its passes only by rounding in
    the last bits of logits."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """`model` is one of transformers, of ARCHITECTURES, on its device, for inference; it gives up its weights."""
        self.tokenizer = tokenizer
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.config = describe_model(
            model.config, model.generation_config, tokenizer.eos_token_id, num_bytes=model.dtype.itemsize
        )
        self.weight_bytes = sum(weight.nbytes for weight in model.parameters())
        self.num_computed = 0.0  # tokens run so far; one that ran through some of the layers counts in part
        self._interventions: Interventions | None = None
        # On a CPU the products that a mask hides would cost more than the operations that it saves.
        self.packs_branches = self.device.type != "cpu"
        self._decoder = Decoder(model)

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions) -> "LanguageModel":
        """Read a Hugging Face directory (config.json, safetensors, tokenizer) onto the device.

        Raises ValueError for an architecture or position embedding that is not supported, for weights that are
        quantised, missing or damaged or do not fit into the device's memory, and for a device that this machine lacks;
        OSError if a file is missing.
        """
        loaded = cls(*read_onto_device(directory, options, "AutoModelForCausalLM", check_config))
        if loaded.device.type == "cuda":
            torch.cuda.empty_cache()  # the memory of weights before they were joined, which others may need
        return loaded

    def new_cache(self, max_tokens: int, num_layers: int | None = None) -> KVCache:
        """Make a cache for sequences of this model, or of its first layers; the passes below work on the slots of any
        one cache."""
        config = self.config
        depth = config.num_layers if num_layers is None else num_layers
        shape = CacheShape(depth, config.num_kv_heads, config.head_dim, self.device, self.dtype)
        return KVCache(shape, max_tokens)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Prefill]) -> list[Prefilled]:
        """Cache prompts' tokens and compute their next logits. Raises ValueError if tokens do not fit into a slot."""
        for prompt in prompts:
            _check_room(prompt.slot, len(prompt.input_ids))
        return [
            prefilled
            for some in in_passes(prompts, [len(prompt.input_ids) for prompt in prompts])
            for prefilled in self._prefill(some)
        ]

    @torch.inference_mode()
    def measure(
        self, slot: Slot, input_ids: tuple[int, ...], spans: Sequence[tuple[int, int]], num_layers: int
    ) -> Tensor | None:
        """Cache more tokens of a sequence in the first L' layers, and measure Attn(k) of the last one: (L', H, K).

        None without spans. Raises ValueError if the tokens do not fit into the slot.
        """
        _check_room(slot, len(input_ids))
        stretches = Stretch.side_by_side([(slot, len(input_ids), slot.length)])
        forward_pass = PrefillPass(
            stretches, [spans], last_rows_from=num_layers - 1, device=self.device, dtype=self.dtype
        )
        self._run(stretches, [input_ids], forward_pass, [], num_layers)
        slot.length += len(input_ids)
        return forward_pass.measured(0)

    @torch.inference_mode()
    def rerun(self, rows: Sequence[Row]) -> Tensor:
        """Run the last cached tokens of sequences once more, under calibration: (B, V) logits, float32.

        Their keys and values are replaced. Raises ValueError for more tokens than are cached.
        """
        for row in rows:
            if not 0 < len(row.input_ids) <= row.slot.length:
                raise ValueError(f"{row.slot.length} tokens are cached, {len(row.input_ids)} can't run again")
        stretches = Stretch.side_by_side(
            [(row.slot, len(row.input_ids), row.slot.length - len(row.input_ids)) for row in rows]
        )
        forward_pass = RerunPass(stretches, [row.calibration for row in rows], self.device, self.dtype)
        last_rows = [stretch.rows.stop - 1 for stretch in stretches]
        hidden, _ = self._run(stretches, [row.input_ids for row in rows], forward_pass, last_rows)
        return self._decoder.logits(hidden[0])

    @torch.inference_mode()
    def attention_of(self, row: Row, spans: Sequence[tuple[int, int]], num_layers: int) -> Tensor:
        """Measure Attn(k) of each of a sequence's last cached tokens, before its calibration in each layer:
        (R, L', H, K) of the first L' layers, in which the tokens run once more."""
        start = row.slot.length - len(row.input_ids)
        stretches = Stretch.side_by_side([(row.slot, len(row.input_ids), start)])
        forward_pass = RerunPass(stretches, [row.calibration], self.device, self.dtype, spans)
        self._run(stretches, [row.input_ids], forward_pass, [], num_layers)
        return forward_pass.measured.permute(2, 0, 1, 3)

    @torch.inference_mode()
    def decode(self, rows: Sequence[Row]) -> Tensor:
        """Append one new token to each sequence: (B, V) logits, float32.

        Raises ValueError for a full slot, or for slots of several caches.
        """
        for row in rows:
            _check_room(row.slot, len(row.input_ids))
            if len(row.input_ids) != 1 or row.slot.cache is not rows[0].slot.cache:
                raise ValueError("sequences that decode together add one token each to one cache")
        order = sorted(range(len(rows)), key=lambda place: rows[place].slot.index)
        slots = [rows[place].slot for place in order]
        calibrations = [rows[place].calibration for place in order]
        if self._interventions is None or not self._interventions.is_of(calibrations):
            self._interventions = Interventions(calibrations, self.device)
        input_ids, index, positions, places = integers(
            [rows[place].input_ids[0] for place in order],
            [slot.index for slot in slots],
            [slot.length for slot in slots],
            sorted(range(len(rows)), key=order.__getitem__),
            device=self.device,
        )
        forward_pass = DecodePass(slots, index, positions, self._interventions)
        hidden = self._run_layers(input_ids[:, None], positions[:, None], forward_pass, self.config.num_layers)
        for slot in slots:
            slot.length += 1
        return self._decoder.logits(hidden[places, 0])

    @torch.inference_mode()
    def branch(self, branches: Sequence[Branch], *, num_layers: int | None = None) -> list[Tensor]:
        """Measure Attn(k) of each branch's last row in the first L' `num_layers` layers, (L', H, K) float32.

        The cache is unchanged.
        """
        num_layers = self.config.num_layers if num_layers is None else num_layers
        return [
            measured
            for some in in_passes(branches, [branch.num_tokens for branch in branches])
            for measured in self._branch(some, num_layers)
        ]

    def _prefill(self, prompts: Sequence[Prefill]) -> list[Prefilled]:
        stretches = Stretch.side_by_side(
            [(prompt.slot, len(prompt.input_ids), prompt.slot.length) for prompt in prompts]
        )
        scores_all = any(prompt.scores_all for prompt in prompts)
        last_layer = self.config.num_layers - 1
        forward_pass = PrefillPass(
            stretches,
            [prompt.spans for prompt in prompts],
            last_rows_from=None if scores_all else last_layer,
            device=self.device,
            dtype=self.dtype,
        )
        last_rows = [stretch.rows.stop - 1 for stretch in stretches]
        input_ids = [prompt.input_ids for prompt in prompts]
        hidden, ids = self._run(stretches, input_ids, forward_pass, None if scores_all else last_rows)
        last = hidden[0, integers(last_rows, device=self.device)[0]] if scores_all else hidden[0]
        logits = self._decoder.logits(last)
        for stretch in stretches:
            stretch.slot.length = stretch.stop
        return [
            Prefilled(
                logits[place],
                forward_pass.measured(place),
                self._scores(hidden[0, stretch.rows], ids[stretch.rows], prompt.num_top) if prompt.scores_all else None,
            )
            for place, (prompt, stretch) in enumerate(zip(prompts, stretches, strict=True))
        ]

    def _branch(self, branches: Sequence[Branch], num_layers: int) -> list[Tensor]:
        forward_pass = BranchPass(branches, num_layers, self.device, self.dtype, is_packed=self.packs_branches)
        segments = [segment for branch in branches for segment in branch.segments]
        input_ids, positions, none = integers(
            [token for segment in segments for token in segment.input_ids],
            [position for segment in segments for position in range(segment.position, segment.stop)],
            [],
            device=self.device,
        )
        self._run_layers(input_ids[None], positions[None], forward_pass, num_layers, none)
        return forward_pass.results()

    def _run(
        self,
        stretches: Sequence[Stretch],
        input_ids: Sequence[tuple[int, ...]],
        forward_pass: ForwardPass,
        wanted: Sequence[int] | None = None,
        num_layers: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run packed stretches through all layers or the first ones; returns `_run_layers` and the token ids (T,)."""
        ids, positions, rows = integers(
            [token for some in input_ids for token in some],
            [position for stretch in stretches for position in range(stretch.position, stretch.stop)],
            wanted or [],
            device=self.device,
        )
        depth = self.config.num_layers if num_layers is None else num_layers
        return self._run_layers(ids[None], positions[None], forward_pass, depth, None if wanted is None else rows), ids

    def _run_layers(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_pass: ForwardPass,
        num_layers: int,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Run the layers: (B, T) → (B, T, D); with `wanted` (W,) int64 rows of one packed sequence, (1, W, D).

        The last layer then skips the computation that only the other rows need.
        """
        self.num_computed += input_ids.numel() * num_layers / self.config.num_layers
        hidden = self._decoder.embed(input_ids)
        rotation = self._decoder.rotation(positions)
        for layer in self._decoder.layers[: num_layers - 1 if wanted is not None else num_layers]:
            hidden = layer.finish(hidden, layer.attend(hidden, rotation, forward_pass))
        if wanted is not None:
            last = self._decoder.layers[num_layers - 1]
            attended = last.attend(hidden, rotation, forward_pass)
            if len(wanted):
                hidden = last.finish(hidden[:, wanted], attended[:, wanted])
        return hidden

    def _scores(self, hidden: Tensor, input_ids: Tensor, num_top: int) -> TokenScores:
        """Score a prompt's tokens (T,) from its last hidden states (T, D)."""
        following = input_ids[1:, None]
        num_top = min(num_top, self.config.vocab_size)
        logprobs = hidden.new_empty(len(following), dtype=torch.float32)
        top_logprobs = hidden.new_empty((len(following), num_top), dtype=torch.float32)
        top_ids = following.new_empty((len(following), num_top))
        for start in range(0, len(following), LOGITS_ROWS):
            rows = slice(start, min(start + LOGITS_ROWS, len(following)))
            scores = self._decoder.logits(hidden[rows]).log_softmax(dim=-1)
            logprobs[rows] = scores.gather(1, following[rows])[:, 0]
            top_logprobs[rows], top_ids[rows] = scores.topk(num_top, dim=-1)
        return TokenScores(logprobs, top_logprobs, top_ids)


def read_onto_device(
    directory: Path, options: DeviceOptions, model_class: str, check: Callable[[Any], None]
) -> tuple[Any, Any]:
    """Read a Hugging Face directory onto the device: transformers' model of a class, for inference, and its tokenizer.

    `check` raises ValueError for a configuration that is not supported. Raises what `LanguageModel.load` raises.
    """
    stored = StoredWeights.in_folder(directory)
    config = read_config(directory, stored)
    check(config)
    device = options.choose_device()
    dtype = options.choose_dtype(device)
    check_room(directory, device, dtype)
    torch.set_num_threads(options.choose_num_threads(config.get_text_config().hidden_size))
    model = load_model(model_class, directory, config, stored, dtype=dtype)
    tokenizer = transformers().AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    check_tokens(tokenizer, config.get_text_config().vocab_size)
    return model.eval().requires_grad_(False).to(device), tokenizer


def in_passes(items: Sequence[Any], costs: Sequence[int], max_tokens: int | None = None) -> Iterator[list[Any]]:
    """Group items in order, with as many per pass as `MAX_PASS_TOKENS`, or a smaller `max_tokens`, allows."""
    limit = MAX_PASS_TOKENS if max_tokens is None else min(max_tokens, MAX_PASS_TOKENS)
    some: list[Any] = []
    total = 0
    for item, cost in zip(items, costs, strict=True):
        if some and total + cost > limit:
            yield some
            some, total = [], 0
        some.append(item)
        total += cost
    if some:
        yield some


def _check_room(slot: Slot, num_tokens: int) -> None:
    if not 0 < num_tokens <= slot.capacity - slot.length:
        raise ValueError(f"{num_tokens} tokens: the slot has room for {slot.capacity - slot.length} more")


def check_config(config: Any) -> None:
    """Raises ValueError for a configuration of transformers whose model is not supported."""
    if config.model_type not in ARCHITECTURES:
        raise ValueError(f"the architecture {config.model_type!r} is none of {', '.join(ARCHITECTURES)}")
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type in VARYING_ROPE:
        raise ValueError(f"position embeddings of the type {rope_type!r} are not supported")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError("quantised weights are not supported")
    if not getattr(config, "is_causal", True):
        raise ValueError("is_causal is false: a model whose tokens see those after them can't be continued")


def describe_model(config: Any, generation_config: Any, end_of_turn: int | None, *, num_bytes: int) -> ModelConfig:
    """Describe a model of transformers by its configurations, with `num_bytes` for each number in the cache.

    `end_of_turn` is the token that its tokenizer names as the end, for chat models of a turn.
    """
    eos = generation_config.eos_token_id
    eos = config.eos_token_id if eos is None else eos
    ends = [] if eos is None else [eos] if isinstance(eos, int) else eos
    size = CacheSize.of(config.to_dict())
    return ModelConfig(
        num_layers=size.num_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=size.num_kv_heads,
        head_dim=size.head_dim,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_model_len=size.max_context,
        eos_token_ids=frozenset(ends if end_of_turn is None else (*ends, end_of_turn)),
        token_bytes=size.token_numbers * num_bytes,
        is_greedy=generation_config.do_sample is False,
    )


def fitting_tokens(model: LanguageModel, share: float) -> int:
    """Return the tokens that fit into a share of the memory of a loaded model's device, beside its weights.

    Raises ValueError, naming the sizes, if none fits.
    """
    memory = memory_of(model.device)
    if model.device.type == "cpu":
        # what is free has been counted without the weights, which are loaded
        memory += model.weight_bytes
    capacity = Capacity(model.weight_bytes, model.config.token_bytes, int(share * memory), model.config.max_model_len)
    if not capacity.fits:
        raise ValueError(
            f"its weights take {model.weight_bytes / GIBIBYTE:.1f} GiB and leave no room for a token in"
            f" {capacity.budget_bytes / GIBIBYTE:.1f} GiB of {model.device}"
        )
    return min(capacity.cache_tokens, CPU_CACHED_TOKENS) if model.device.type == "cpu" else capacity.cache_tokens


# Two orders of summation of one logit differ, relative to the largest; a wrong mask or position differs by far more.
SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
NUM_REFERENCE_TOKENS = 64


def check_last_token(model: LanguageModel, input_ids: tuple[int, ...]) -> None:
    """Raises BrokenModel unless prefilling, re-running and decoding a prompt's last token give equal logits."""
    cache = model.new_cache(2 * len(input_ids))
    whole, parted = cache.open(len(input_ids)), cache.open(len(input_ids))
    expected = model.prefill([Prefill(whole, input_ids)])[0].logits
    model.prefill([Prefill(parted, input_ids[:-1])])
    last = input_ids[-1:]
    for way, logits in (
        ("decoded", model.decode([Row(parted, last)])[0]),
        ("run again", model.rerun([Row(whole, last)])[0]),
    ):
        difference = float((logits - expected).abs().max() / expected.abs().max())
        # written so that NaN fails
        if not difference <= SELF_CHECK_TOLERANCE[model.dtype]:
            raise BrokenModel(f"logits of a token change by {difference:.3g} when it is {way}")


def reference_token_ids(vocab_size: int) -> range:
    """Return the tokens whose logits are compared, evenly spaced in the vocabulary."""
    return range(0, vocab_size, max(1, vocab_size // NUM_REFERENCE_TOKENS))


def next_logits(model: LanguageModel, tokenizer: Any, text: str, max_tokens: int) -> list[float]:
    """Return some tokens' logits, evenly spaced in V, minus their mean, after at most the first `max_tokens` tokens of
    a text.
    """
    input_ids = tokenise(tokenizer, [Piece(text)]).input_ids[:max_tokens]
    (last,) = model.prefill([Prefill(model.new_cache(len(input_ids)).open(len(input_ids)), input_ids)])
    logits = last.logits.cpu().double()[list(reference_token_ids(model.config.vocab_size))]
    return (logits - logits.mean()).tolist()
