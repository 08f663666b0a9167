"""Answers of Fovea's own engine with α estimated from the documents."""

from collections.abc import Sequence

from services.generate.generation.generation import Generation
from services.generate.generation.running_batch import RunningBatch
from services.generate.generation.sampling import Sampling
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import CalibrationProfile
from services.generate.prompts.templates import Prompt
from tests.vllm_plugin.own_answers import Question


def estimated_answers(
    model: LanguageModel, questions: Sequence[Question], profile: CalibrationProfile, max_tokens: int
) -> list[list[int]]:
    """The tokens of each answer, one question at a time."""
    batch = RunningBatch(model, max_cached_tokens=2048, max_running=1, prefix_cache_bytes=0)
    answers = []
    for asked in questions:
        tail = asked.spans[-1][1], len(asked.input_ids)
        prompt = Prompt(asked.input_ids, asked.spans, tail[0], question=tail)
        sampling = Sampling(num_logprobs=0)
        generation = Generation(prompt, max_tokens, sampling, calibration=profile, ignore_eos=True)
        [progress] = batch.admit([generation])
        tokens = [token.token_id for token in progress.tokens]
        while progress.finish_reason is None:
            [progress] = batch.step()
            tokens += [token.token_id for token in progress.tokens]
        answers.append(tokens)
    return answers
