"""An answer that is to be made, and what is told of it while it is made.

Shapes: K documents.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from services.generate.generation.answer_text import TokenOut
from services.generate.generation.sampling import Sampling
from services.generate.model.profile import CalibrationProfile
from services.generate.prompts.templates import Prompt

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, eq=False)
class Generation:
    """One answer to be made.

    It ends before (with `include_stop` behind) the first of the `stop` strings, at the model's end-of-text token
    unless `ignore_eos`, or after `max_tokens`, at least 1. `calibration` None or not enabled is the plain model.
    `continues_prompt` keeps the space with which an answer goes on from its prompt, where the tokenizer would drop
    it. Of what was computed for other prompts, those of its `tenant` alone are used. The prompt has at least one token
    (ValueError).
    """

    prompt: Prompt
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    calibration: CalibrationProfile | None = None
    include_stop: bool = False
    ignore_eos: bool = False
    continues_prompt: bool = False
    tenant: str = ""

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or not self.prompt.input_ids:
            raise ValueError("an answer has at least one token, and so has its prompt")

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer, at most."""
        return len(self.prompt.input_ids) + self.max_tokens

    @property
    def num_rerun(self) -> int:
        """Prompt rows that run again under calibration; 0 where nothing is to be calibrated.

        A lone document keeps all of the documents' attention, whatever its relevance.
        """
        if self.calibration is None or not self.calibration.enabled or len(self.prompt.spans) < 2:
            return 0
        return (
            max(1, len(self.prompt.input_ids) - self.prompt.tail_start) if self.calibration.row_scope == "tail" else 1
        )

    def choices(self, number: int) -> tuple["Generation", ...]:
        """Return `number` generations of the same prompt, which share its prefill; a seed gives each another seed."""
        seed = self.sampling.seed
        return tuple(
            replace(self, sampling=replace(self.sampling, seed=None if seed is None else seed + place))
            for place in range(number)
        )


@dataclass(frozen=True)
class PromptFacts:
    """Results of the prompt's pass, K numbers in the order of the prompt's documents.

    `cached_tokens` were not computed anew. `attention` is Attn(k) of the last prompt row before any calibration,
    a mean over all heads and the layers that enter rel (all layers where the generation has no profile).
    `relevance` is rel(k), None where nothing was calibrated. `order` tells which document of the request each is.
    """

    prompt_tokens: int
    cached_tokens: int
    attention: tuple[float, ...]
    relevance: tuple[float, ...] | None
    calibration_passes: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class Progress:
    """The result of a step for one generation.

    `text` is certain and `tokens` are those that it is made of, without stop strings and end-of-text tokens;
    `num_tokens` counts all tokens that were generated so far, including those. `facts` come with the first.
    """

    generation: Generation
    text: str
    tokens: tuple[TokenOut, ...]
    num_tokens: int
    finish_reason: FinishReason | None
    facts: PromptFacts | None
