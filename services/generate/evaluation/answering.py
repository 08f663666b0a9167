"""Offline answers to many prompts through the running batch, so that jobs measure the service's answers."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.generate.generation.generation import Generation
from services.generate.generation.running_batch import RunningBatch
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import CalibrationProfile
from services.generate.prompts.templates import Prompt


@dataclass(frozen=True)
class AnswerOptions:
    """An answer ends before one of the `stop` strings, or after `max_tokens`.

    At most `max_running` prompts run at a time, in slots of `max_cached_tokens` in total.
    """

    max_tokens: int
    stop: tuple[str, ...] = ()
    max_running: int = 64
    max_cached_tokens: int = 65_536


def answer(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    options: AnswerOptions,
    profile: CalibrationProfile | None = None,
    on_progress: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """Greedy answers in the order of the prompts, calibrated by `profile` if it is on.

    `on_progress` receives the number of newly ended answers. Raises ValueError, with the number of tokens, for a prompt
    that does not fit with its answer into the cache or the model's limit.
    """
    generations = [Generation(prompt, options.max_tokens, stop=options.stop, calibration=profile) for prompt in prompts]
    batch = RunningBatch(
        model,
        max_cached_tokens=options.max_cached_tokens,
        max_running=options.max_running,
        prefix_cache_bytes=0,
        headroom_tokens=options.max_tokens,
    )
    limit = min(model.config.max_model_len, options.max_cached_tokens)
    for generation in generations:
        if generation.num_tokens > limit:
            raise ValueError(f"a prompt and its answer take {generation.num_tokens} tokens; there is room for {limit}")
    texts = {id(generation): "" for generation in generations}
    waiting = deque(generations)
    while waiting or batch.num_running:
        joining: list[Generation] = []
        # many prompts are prefilled at a time, because replacing each ended one immediately would cost a pass each
        if batch.num_running <= options.max_running // 2:
            while waiting and batch.has_room(*joining, waiting[0]):
                joining.append(waiting.popleft())
        for progress in batch.admit(joining) if joining else batch.step():
            texts[id(progress.generation)] += progress.text
            if progress.finish_reason is not None:
                on_progress(1)
    return [texts[id(generation)] for generation in generations]
