"""An answer to be generated, its options, and the reports on it during generation.

Shapes: L layers, K documents.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from services.core.errors import TooLarge
from services.generate.generation.answer_text import FinishReason, TokenOut
from services.generate.generation.sampling import Sampling
from services.generate.model.profile import CalibrationProfile
from services.generate.prompts.templates import Document, Prompt

# Order of the documents of a question before it is answered.
Reorder = Literal["none", "attention", "calibrated", "query_likelihood", "prompt"]


@dataclass(frozen=True)
class AnswerOptions:
    """Options of an answer.

    `max_tokens` None means as many as the context allows. `calibration` None means the checkpoint's own profile.
    `reorder` ranks the documents first. `echo` repeats the prompt of a completion. The rest is as in `Generation`.
    """

    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    calibration: CalibrationProfile | None = None
    reorder: Reorder = "none"
    ignore_eos: bool = False
    echo: bool = False
    for_vllm: Mapping[str, Any] = field(default_factory=dict)
    explain: bool = False
    cite: bool = False


@dataclass(frozen=True, eq=False)
class Generation:
    """One answer to be generated.

    It ends before the first of the `stop` strings, at the model's end-of-text token unless
    `ignore_eos`, or after `max_tokens`, at least 1 (0 with `echo`). Without `calibration`, or if it is off, the plain
    model answers. `continues_prompt` keeps the space between prompt and answer even if the tokenizer would drop it.
    `echo` is the prompt's text if it is repeated before the answer; `sampling.num_logprobs` then applies to the
    prompt's tokens too. Cached results are used only from prompts of the same `tenant`. `for_vllm` are fields of a
    request that only vLLM can keep to, such as `tools`. `explains` reports each layer's attention beside the means,
    `cites` the attention of the answer's tokens. The prompt has at least one token (ValueError).
    """

    prompt: Prompt
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    calibration: CalibrationProfile | None = None
    ignore_eos: bool = False
    continues_prompt: bool = False
    echo: str | None = None
    tenant: str = ""
    for_vllm: Mapping[str, Any] = field(default_factory=dict)
    explains: bool = False
    cites: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < (1 if self.echo is None else 0) or not self.prompt.input_ids:
            raise ValueError("an answer has at least one token, if no prompt is echoed, and so has its prompt")

    @property
    def num_tokens(self) -> int:
        """Maximum number of tokens of prompt and answer."""
        return len(self.prompt.input_ids) + self.max_tokens

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are asked for."""
        return self.echo is not None and self.sampling.num_logprobs is not None

    @property
    def num_rerun(self) -> int:
        """Number of prompt rows that run again under calibration; 0 if nothing is calibrated."""
        return num_rerun(self.prompt, self.calibration)

    def choices(self, number: int) -> tuple["Generation", ...]:
        """Return `number` generations of the same prompt, which share its prefill; seeded ones get different seeds."""
        seed = self.sampling.seed
        return tuple(
            replace(self, sampling=replace(self.sampling, seed=None if seed is None else seed + place))
            for place in range(number)
        )


def num_rerun(prompt: Prompt, profile: CalibrationProfile | None) -> int:
    """Return the number of a prompt's rows that run again under calibration; 0 if nothing is calibrated.

    A single document keeps all of the documents' attention, regardless of its relevance.
    """
    if profile is None or not profile.enabled or len(prompt.spans) < 2:
        return 0
    return max(1, len(prompt.input_ids) - prompt.tail_start) if profile.row_scope == "tail" else 1


@dataclass(frozen=True)
class LayerMeans:
    """Means over all heads of each layer: `attention` L times K numbers, those of Attn(k) before any calibration.

    `relevance` are those of rel(k), of the layers up to the last that enters it; None if nothing was calibrated, or if
    a table held the bias, which has no layers.
    """

    attention: tuple[tuple[float, ...], ...]
    relevance: tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True)
class PromptFacts:
    """Results of the prompt's pass, K numbers in the order of the prompt's documents.

    `cached_tokens` were not computed again. `attention` is Attn(k) of the last prompt row before any calibration,
    a mean over the layers and heads that enter rel (all of them if the generation has no profile). `relevance` is
    rel(k), None if nothing was calibrated. `order` are the documents' places in the request. `echo` is the
    generation's; `scored` are the prompt's tokens if it `scores_prompt`, the first without `logprob`. `answerable` is
    the probability that the documents answer, None for a model without a trained refusal. `applied` is the calibration
    of the answer, with the estimate of the bias that was made; None if nothing was calibrated. `by_layer` is None
    unless the generation `explains`. `refusal` is the answer that the model was trained to give where no document
    answers, None without one.
    """

    prompt_tokens: int
    cached_tokens: int
    attention: tuple[float, ...]
    relevance: tuple[float, ...] | None
    calibration_passes: int
    order: tuple[int, ...]
    echo: str | None = None
    scored: tuple[TokenOut, ...] = ()
    answerable: float | None = None
    applied: CalibrationProfile | None = None
    by_layer: LayerMeans | None = None
    refusal: str | None = None

    @property
    def bias(self) -> tuple[float, ...]:
        """The bias of the documents' places; zeros where nothing was calibrated."""
        return tuple(a - r for a, r in zip(self.attention, self.relevance or self.attention, strict=True))


@dataclass(frozen=True)
class Progress:
    """The result of a step for one generation.

    `text` is final and `tokens` are its tokens, without stop strings and end-of-text tokens; `num_tokens` counts all
    tokens generated so far, including those. `facts` come with the first token. `tool_calls` are parts of calls as in
    OpenAI's chunks. If the generation `cites`, `attention` is Attn(k) of the rows that generated the answer's next
    tokens, those of some steps together. `stop_string` is the one that ended the answer, if any.
    """

    generation: Generation
    text: str
    tokens: tuple[TokenOut, ...]
    num_tokens: int
    finish_reason: FinishReason | None
    facts: PromptFacts | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    attention: tuple[tuple[float, ...], ...] = ()
    stop_string: str | None = None


# Number of tokens by which a document's length in a prompt may change with its neighbours.
JOINT_TOKENS = 2


@dataclass(frozen=True, eq=False)
class ReorderedGeneration(Generation):
    """A generation whose documents are put into the order of `method` after admission.

    `render` makes the prompt of the documents in another order; the generation's own prompt has the original order.
    `room` is the maximum number of tokens of prompt and answer in any order.
    """

    method: Reorder = "none"
    query: str = ""
    documents: tuple[Document, ...] = ()
    render: Callable[[Sequence[Document]], Prompt] | None = None
    room: int = 0

    @property
    def num_tokens(self) -> int:
        """Maximum number of tokens of prompt and answer in any order."""
        return max(super().num_tokens, self.room)

    def in_order(self, order: Sequence[int]) -> "ReorderedGeneration":
        """Make the generation that runs in this order. Raises TooLarge if it leaves no room for an answer."""
        assert self.render is not None
        prompt = self.render([self.documents[k] for k in order])
        left = self.num_tokens - len(prompt.input_ids)
        if left < 1:
            raise TooLarge(
                f"In the order {self.method!r} the prompt has {len(prompt.input_ids)} tokens; "
                f"the limit is {self.num_tokens} together with its answer.",
                code="context_length_exceeded",
            )
        return replace(self, prompt=prompt, max_tokens=min(self.max_tokens, left))


def by_order(generations: Sequence[Generation]) -> list[list[Generation]]:
    """Group several answers to one question, which share an order; those without reordering form one group."""
    groups: dict[tuple[Any, ...], list[Generation]] = {}
    for generation in generations:
        key: tuple[Any, ...] = ()
        if isinstance(generation, ReorderedGeneration):
            key = (generation.query, generation.documents, generation.method, id(generation.calibration))
        groups.setdefault(key, []).append(generation)
    return list(groups.values())
