"""A request's fields for the plug-in, in the flat fields that `SamplingParams.extra_args` and `vllm_xargs` allow."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "fovea_"
MAX_DOCUMENTS = 1024
MAX_KEY_LENGTH = 128
# of either sign, so that differences stay finite in float32
MAX_LOG_ALPHA = 1e30

DOCUMENTS = "fovea_documents"
LOG_ALPHA = "fovea_log_alpha"
LAYERS = "fovea_layers"
FIRST_ROW = "fovea_first_row"
MEASURE = "fovea_measure"
NUM_PROMPT_TOKENS = "fovea_num_prompt_tokens"
FIELDS = (DOCUMENTS, LOG_ALPHA, LAYERS, FIRST_ROW, MEASURE, NUM_PROMPT_TOKENS)


class BadRequest(ValueError):
    """A request that contradicts itself, or that cannot be served; the message names the field."""


@dataclass(frozen=True)
class DocumentRequest:
    """A request about K documents: to calibrate its answer, or to measure its prompt.

    `spans` are half-open ranges of its tokens, in order. `log_alpha` is log α_k up to a constant, so that rel(k) / t
    will do, with α_k the attention that document k's tokens should get: K numbers, or L' · H · K for one per layer of
    `layers`, head and document, in that order; empty for none. `layers` are those that are intervened, `first_row` the
    position of the first token that is calibrated, by default the prompt's last one; every later token is as well.
    `measure_key` names the measured attention of the prompt's last token, None to measure nothing. `num_prompt_tokens`
    is the prompt's length, None if it is not known yet.
    """

    spans: tuple[tuple[int, int], ...]
    log_alpha: tuple[float, ...] = ()
    layers: tuple[int, ...] = ()
    first_row: int | None = None
    measure_key: str | None = None
    num_prompt_tokens: int | None = None

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> "DocumentRequest | None":
        """Read the fields of a request; None if it has none of them.

        Raises BadRequest for an unknown field that begins with `fovea_`, a value of the wrong kind or out of its
        limits, and fields that need or exclude each other.
        """
        fields = own_fields(extra_args)
        if not fields:
            return None
        if unknown := sorted(set(fields) - set(FIELDS)):
            raise BadRequest(
                f"unknown field {unknown[0]!r}; the fields are {', '.join(FIELDS)}. Others, which estimate α, are for "
                f"requests with {DOCUMENTS} and without {LOG_ALPHA} and {MEASURE}, by a server with VLLM_PLUGINS=fovea"
            )
        spans = spans_of(fields.get(DOCUMENTS))
        request = cls(
            spans,
            _log_alpha(fields[LOG_ALPHA], len(spans)) if LOG_ALPHA in fields else (),
            layers_of(fields[LAYERS]) if LAYERS in fields else (),
            _whole_number(fields, FIRST_ROW),
            _key(fields[MEASURE]) if MEASURE in fields else None,
            _whole_number(fields, NUM_PROMPT_TOKENS),
        )
        request._check_together()
        return request

    @property
    def is_calibrated(self) -> bool:
        """Whether rows are calibrated: a single document keeps all of the documents' attention, whatever α is."""
        return bool(self.log_alpha) and len(self.spans) > 1

    @property
    def first_calibrated(self) -> int:
        """The position of the first calibrated row. Raises ValueError if the prompt's length is not known."""
        if self.first_row is not None:
            return self.first_row
        return self.last_prompt_row

    @property
    def last_prompt_row(self) -> int:
        """The position of the prompt's last token. Raises ValueError if the prompt's length is not known."""
        if self.num_prompt_tokens is None:
            raise ValueError("the request has not been admitted: its prompt's length is not known")
        return self.num_prompt_tokens - 1

    @property
    def cache_key(self) -> str:
        """A digest of all that changes the keys and values of calibrated rows."""
        content = json.dumps([self.spans, self.log_alpha, self.layers, self.first_calibrated])
        return hashlib.sha256(content.encode()).hexdigest()

    def check_prompt(self, num_tokens: int) -> None:
        """Raises BadRequest if the request does not fit a prompt of `num_tokens`."""
        if self.num_prompt_tokens not in (None, num_tokens):
            raise BadRequest(f"{NUM_PROMPT_TOKENS} is {self.num_prompt_tokens}, but the prompt has {num_tokens} tokens")
        if self.spans[-1][1] > num_tokens:
            raise BadRequest(f"{DOCUMENTS} ends at token {self.spans[-1][1]}, but the prompt has {num_tokens} tokens")
        if self.first_row is not None and self.first_row >= num_tokens:
            raise BadRequest(
                f"{FIRST_ROW} is {self.first_row}, but the last of the prompt's {num_tokens} tokens is {num_tokens - 1}"
            )

    def check_model(self, num_layers: int, num_heads: int) -> None:
        """Raises BadRequest if the request does not fit a model with such layers and query heads."""
        if self.layers and self.layers[-1] >= num_layers:
            raise BadRequest(f"{LAYERS} names layer {self.layers[-1]}; the model's are 0 to {num_layers - 1}")
        per_head = len(self.layers) * num_heads * len(self.spans)
        if self.log_alpha and len(self.log_alpha) not in (len(self.spans), per_head):
            raise BadRequest(
                f"{LOG_ALPHA} has {len(self.log_alpha)} numbers; it needs {len(self.spans)}, one for each document, or "
                f"{per_head}, one for each layer, head and document"
            )

    def _check_together(self) -> None:
        if self.measure_key is not None and self.log_alpha:
            raise BadRequest(f"{LOG_ALPHA} and {MEASURE} exclude each other")
        if self.measure_key is None and not self.log_alpha:
            raise BadRequest(
                f"a request with {DOCUMENTS} needs either {LOG_ALPHA}, to calibrate, or {MEASURE}, to measure; with "
                "neither, only a server that was started with VLLM_PLUGINS=fovea estimates α itself"
            )
        if bool(self.layers) != bool(self.log_alpha):
            raise BadRequest(f"{LOG_ALPHA} and {LAYERS} need each other")
        if self.first_row is not None and not self.log_alpha:
            raise BadRequest(f"{FIRST_ROW} needs {LOG_ALPHA}")


def own_fields(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields that begin with `fovea_`, in whatever case, so that a misspelt one is not ignored."""
    return {name: value for name, value in (extra_args or {}).items() if name.lower().startswith(PREFIX)}


def numbers(name: str, value: Any, kind: type) -> list[Any]:
    """Check that a field is a list of whole numbers, or with `float` of numbers. Raises BadRequest."""
    kinds = (int, float) if kind is float else (int,)
    if not isinstance(value, list | tuple) or any(type(one) not in kinds for one in value):
        raise BadRequest(f"{name} must be a list of {'numbers' if kind is float else 'whole numbers'}")
    return list(value)


def spans_of(value: Any) -> tuple[tuple[int, int], ...]:
    """Read the documents. Raises BadRequest."""
    if value is None:
        raise BadRequest(f"{DOCUMENTS} is missing: start and end of each document, counted in tokens of the prompt")
    places = numbers(DOCUMENTS, value, int)
    if not places or len(places) % 2:
        raise BadRequest(f"{DOCUMENTS} needs a start and an end for each document, not {len(places)} numbers")
    if len(places) > 2 * MAX_DOCUMENTS:
        raise BadRequest(f"{DOCUMENTS} has {len(places) // 2} documents; at most {MAX_DOCUMENTS} are allowed")
    done = 0
    for place in places:
        if place < done:
            raise BadRequest(
                f"{DOCUMENTS} must ascend from 0: [start, end, start, end, …] with each start at or after the end "
                f"before it; {place} follows {done}. Where a token holds the end of one document and the start of the "
                "next, end documents with a line break"
            )
        done = place
    return tuple(zip(places[::2], places[1::2], strict=True))


def _log_alpha(value: Any, num_documents: int) -> tuple[float, ...]:
    log_alpha = numbers(LOG_ALPHA, value, float)
    if not log_alpha or len(log_alpha) % num_documents:
        raise BadRequest(f"{LOG_ALPHA} has {len(log_alpha)} numbers for {num_documents} documents")
    if not all(abs(one) <= MAX_LOG_ALPHA for one in log_alpha):
        raise BadRequest(f"{LOG_ALPHA} must be between {-MAX_LOG_ALPHA:g} and {MAX_LOG_ALPHA:g}")
    return tuple(map(float, log_alpha))


def layers_of(value: Any, name: str = LAYERS) -> tuple[int, ...]:
    """Read layers. Raises BadRequest."""
    layers = numbers(name, value, int)
    if not layers or layers != sorted(set(layers)) or layers[0] < 0:
        raise BadRequest(f"{name} must be layers in ascending order, counted from 0, at least one")
    return tuple(layers)


def _key(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_KEY_LENGTH:
        raise BadRequest(f"{MEASURE} must be a name of 1 to {MAX_KEY_LENGTH} characters")
    return value


def _whole_number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if name in fields and (type(value) is not int or value < 0):
        raise BadRequest(f"{name} must be a whole number not below 0")
    return value
