"""The work that a token, a prompt and an estimate give a GPU: operations, copies, and reads that wait."""

from typing import Any

import pytest
import torch

from services.generate.calibration import Calibration, log_alpha
from services.generate.generation.bias import BiasJob, EstimateKind, estimate_bias
from services.generate.generation.generation import Generation
from services.generate.generation.prompt_calibration import refusal_log_odds
from services.generate.generation.running_batch import RunningBatch
from services.generate.generation.sampling import Chooser, Sampling, choose
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import LanguageModel, Prefill, Row, next_logits
from services.generate.model.profile import BiasKind, CalibrationProfile
from services.generate.prompts.templates import Prompt
from services.nn.loading import transformers
from tests.generate.tiny_models import tiny_tokenizer
from tests.nn.counted_gpu import GPU, CountedGPU

NUM_LAYERS = 4
QUESTION, DOCUMENT = 20, 100
VOCABULARY = 32000


def transformers_model() -> Any:
    """Return a Llama of the width of 7B, without numbers."""
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": NUM_LAYERS}
    config = transformers().LlamaConfig(vocab_size=VOCABULARY, **sizes)
    with GPU:
        return transformers().LlamaForCausalLM(config).bfloat16().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(transformers_model(), tiny_tokenizer())


def prompt_of(num_documents: int) -> Prompt:
    """Return a question, documents, and the question again."""
    starts = range(QUESTION, QUESTION + num_documents * DOCUMENT, DOCUMENT)
    spans = tuple((start, start + DOCUMENT) for start in starts)
    tail_start = QUESTION + num_documents * DOCUMENT
    return Prompt(
        tuple(range(2, 2 + tail_start + QUESTION)),
        spans,
        tail_start,
        contents=tuple((span,) for span in spans),
        question=(tail_start, tail_start + QUESTION - 1),
    )


def calibrated(slot: Slot, prompt: Prompt, token: int = 5) -> Row:
    """Return a row that is calibrated in the last half of the layers."""
    alphas = log_alpha(torch.zeros(len(prompt.spans)), 1e-4, torch.full((len(prompt.spans),), DOCUMENT))
    return Row(slot, (token,), Calibration(prompt.spans, alphas, frozenset(range(NUM_LAYERS // 2, NUM_LAYERS))))


def decoding(model: LanguageModel, num_rows: int, *, is_calibrated: bool) -> list[Row]:
    """Return rows of prompts of different lengths that are cached."""
    prompt, cache, rows = prompt_of(10), model.new_cache(num_rows * 2000), []
    for place in range(num_rows):
        slot = cache.open(2000)
        slot.length = 1040 + place
        rows.append(calibrated(slot, prompt) if is_calibrated else Row(slot, (5,)))
    return rows


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_a_token_of_any_batch_is_one_copy_to_the_device_and_as_many_operations(
    model: LanguageModel, is_calibrated: bool
) -> None:
    counts = []
    for num_rows in (1, 32):
        rows = decoding(model, num_rows, is_calibrated=is_calibrated)
        first, later = CountedGPU.of(model.decode, rows), CountedGPU.of(model.decode, rows)
        # the calibrations of a batch are copied once, for all its layers
        assert (first.crossings, later.crossings) == ((3 if is_calibrated else 1, 0), (1, 0))
        assert later.operations["scaled_dot_product_attention"] == NUM_LAYERS // (2 if is_calibrated else 1)
        counts.append(later.num_operations)
    assert max(counts) <= NUM_LAYERS * (31 if is_calibrated else 17) + 25
    assert max(counts) - min(counts) <= 2 * NUM_LAYERS  # masks, where lengths differ


def test_a_token_starts_less_than_half_of_transformers_operations(model: LanguageModel) -> None:
    reference, cache = transformers_model(), transformers().DynamicCache()

    def run(num_tokens: int) -> None:
        reference(torch.zeros(1, num_tokens, dtype=torch.int64, device=GPU), past_key_values=cache, logits_to_keep=1)

    CountedGPU.of(run, 1040)
    theirs = CountedGPU.of(run, 1)
    ours = CountedGPU.of(model.decode, decoding(model, 1, is_calibrated=False))
    assert ours.num_operations < theirs.num_operations / 2


@pytest.mark.parametrize(
    ("sampling", "crossings"),
    [
        (Sampling(), (0, 1)),
        (Sampling(temperature=0.7, top_p=0.9), (2, 1)),
        (Sampling(num_logprobs=5), (1, 2)),
        (Sampling(presence_penalty=1.0, frequency_penalty=0.5), (2, 1)),
        (Sampling(logit_bias=((5, 1.0), (6, -1.0))), (0, 1)),
    ],
    ids=["greedy", "sampled", "log-probabilities", "penalties", "logit_bias"],
)
def test_the_tokens_of_a_batch_are_read_together(sampling: Sampling, crossings: tuple[int, int]) -> None:
    for num_rows in (1, 32):
        logits = torch.zeros(num_rows, VOCABULARY, device=GPU)
        choosers = [Chooser(sampling) for _ in range(num_rows)]
        CountedGPU.of(choose, logits, choosers)  # a first token has no penalties, and copies the bias
        assert CountedGPU.of(choose, logits, choosers).crossings == crossings


def test_a_prompt_is_one_copy_to_the_device_and_two_where_it_is_measured(model: LanguageModel) -> None:
    prompt = prompt_of(10)
    for spans, num_copies in (((), 1), (prompt.spans, 2)):
        prefill = Prefill(model.new_cache(4000).open(2000), prompt.input_ids, spans)
        assert CountedGPU.of(model.prefill, [prefill]).crossings == (num_copies, 0)


def test_calibrating_a_prompts_last_row_is_three_copies(model: LanguageModel) -> None:
    prompt = prompt_of(10)
    slot = model.new_cache(4000).open(2000)
    slot.length = len(prompt.input_ids)
    counted = CountedGPU.of(model.rerun, [calibrated(slot, prompt, prompt.input_ids[-1])])
    assert counted.crossings == (3, 0)


@pytest.mark.parametrize("kind", ["exact", "single", "tree", "query"])
def test_an_estimate_of_any_number_of_documents_is_four_copies_and_as_many_operations(
    model: LanguageModel, kind: EstimateKind
) -> None:
    counts = []
    for num_documents in (5, 10) if kind == "exact" else (10, 20):  # more of `exact` would need a mask too large
        prompt = prompt_of(num_documents)
        slot = model.new_cache(9000).open(3000)
        slot.length = len(prompt.input_ids)
        counted = CountedGPU.of(estimate_bias, model, [BiasJob(slot, prompt, (7, 8, 9))], kind)
        assert counted.crossings == (4, 0)
        counts.append(counted.num_operations)
    assert len(set(counts)) == 1
    assert counts[0] <= 44 * NUM_LAYERS + 60


@pytest.mark.parametrize("bias", [None, "tree", "single", "exact"])
def test_an_answers_first_token_waits_four_times_at_most_and_each_further_one_once(
    model: LanguageModel, bias: BiasKind | None
) -> None:
    layers = tuple(range(NUM_LAYERS // 2, NUM_LAYERS))
    profile = bias and CalibrationProfile(
        enabled=True, bias=bias, temperature=1e-4, layers=layers, rel_layers=layers, tables=()
    )
    batch = RunningBatch(model, max_cached_tokens=20_000, max_running=8, prefix_cache_bytes=0)
    asked = [Generation(prompt_of(5 + number), max_tokens=9, ignore_eos=True, calibration=profile) for number in (0, 1)]
    copies, reads = CountedGPU.of(batch.admit, asked[:1]).crossings
    assert reads == (4 if profile else 2)
    assert copies == (12 if profile else 3)
    CountedGPU.of(batch.admit, asked[1:])
    CountedGPU.of(batch.step)
    assert CountedGPU.of(batch.step).crossings == (1, 1)


def test_checks_and_answers_need_no_float64_on_the_device(model: LanguageModel) -> None:
    """Apple's GPUs have none."""
    CountedGPU.of(next_logits, model, tiny_tokenizer(), "When was it built?", 64)
    logits = torch.zeros(VOCABULARY, device=GPU)
    CountedGPU.of(refusal_log_odds, logits, 5)
    options = Sampling(0.7, top_p=0.9, num_logprobs=5, presence_penalty=1.0, logit_bias=((5, 1.0),))
    CountedGPU.of(choose, logits[None], [Chooser(options)])
