"""Ms-PoE divides positions as its paper says, and changes nothing else of the engine."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.ms_poe import PAPER, MsPoeModel, Ratios, head_ratios, position_awareness, save_with_own_keys, turn
from services.generate.calibration import Calibration
from services.generate.generation.bias import BiasJob, estimate_bias
from services.generate.model.language_model import LanguageModel, Prefill, Row
from services.generate.prompts.templates import Prompt
from services.nn.devices import DeviceOptions
from tests.generate.tiny_models import VOCAB_SIZE, save_tiny

CPU = DeviceOptions(device="cpu", dtype="float32")
PROMPT = Prompt(
    tuple(torch.randint(2, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(0)).tolist()),
    ((4, 12), (12, 15), (15, 31)),
    31,
    contents=(((6, 11),), ((13, 14),), ((17, 30),)),
)
SHORT = tuple(torch.randint(2, VOCAB_SIZE, (17,), generator=torch.Generator().manual_seed(1)).tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Llama's folder, in which each head has its own keys."""
    base = tmp_path_factory.mktemp("ms-poe")
    save_tiny(base / "shared")
    save_with_own_keys(base / "shared", base / "own")
    return base


def opened(folder: Path, ratios: Ratios | None) -> MsPoeModel:
    model = MsPoeModel.load(folder / "own", CPU)
    assert isinstance(model, MsPoeModel)
    model.ratios = ratios
    return model


def every_pass(model: LanguageModel) -> list[Tensor]:
    """Return what each kind of pass gives for a calibrated prompt beside a shorter one, which decodes with it."""
    cache = model.new_cache(200)
    slots = [cache.open(50), cache.open(50)]
    prompts = [Prefill(slots[1], SHORT), Prefill(slots[0], PROMPT.input_ids, PROMPT.spans)]
    plain, measured = model.prefill(prompts)
    assert measured.attention is not None
    job = BiasJob(slots[0], PROMPT, (3, 4, 5))
    biases = [estimate_bias(model, [job], kind)[0].attention for kind in ("exact", "tree")]
    calibration = Calibration(PROMPT.spans, torch.tensor([0.2, 0.3, 0.5]).log(), frozenset({2, 3}))
    again = model.rerun([Row(slots[0], PROMPT.input_ids[-2:], calibration)])
    decoded = model.decode([Row(slots[0], (7,), calibration), Row(slots[1], (8,))])
    return [plain.logits, measured.logits, measured.attention, *biases, again, decoded]


def test_the_awareness_of_a_head_is_its_share_of_tokens_with_three_times_the_mean_weight() -> None:
    weights = torch.tensor([[0.7, 0.05, 0.05, 0.05, 0.05, 0.02, 0.02, 0.02, 0.02, 0.02], [0.1] * 10])
    assert position_awareness(weights).tolist() == pytest.approx([0.1, 0.0])
    # the mean of four is 0.25: exactly three times that counts
    assert position_awareness(torch.tensor([[0.75, 0.25, 0.0, 0.0]])).tolist() == pytest.approx([0.25])


def test_the_head_with_the_highest_score_has_the_least_ratio_and_the_others_follow_in_equal_steps() -> None:
    assert head_ratios(torch.tensor([0.1, 0.4, 0.2, 0.3]), PAPER).tolist() == pytest.approx([1.8, 1.2, 1.6, 1.4])
    assert head_ratios(torch.tensor([0.2, 0.5, 0.2]), Ratios(1.0, 2.0)).tolist() == pytest.approx([1.5, 1.0, 2.0])
    assert head_ratios(torch.tensor([0.3]), PAPER).tolist() == pytest.approx([1.2])


def test_a_query_is_turned_by_its_offset_times_each_frequency() -> None:
    rows = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
    # half a turn of the first pair (1, 3), a quarter of the second (2, 4)
    turned = turn(rows, torch.full((1, 1, 1), torch.pi), torch.tensor([1.0, 0.5]))
    assert turned.flatten().tolist() == pytest.approx([-1.0, -4.0, -3.0, 2.0], abs=1e-6)


def test_a_copy_with_own_keys_gives_the_logits_of_the_checkpoint_whose_heads_share_them(folder: Path) -> None:
    found = every_pass(opened(folder, None))
    for one, expected in zip(found, every_pass(LanguageModel.load(folder / "shared", CPU)), strict=True):
        torch.testing.assert_close(one, expected, atol=1e-4, rtol=1e-4)


def test_heads_that_share_keys_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="save_with_own_keys"):
        MsPoeModel.load(folder / "shared", CPU)


def test_ratios_of_1_change_not_even_the_last_bit_of_any_pass(folder: Path) -> None:
    found = every_pass(opened(folder, Ratios(1.0, 1.0)))
    assert all(torch.equal(one, other) for one, other in zip(found, every_pass(opened(folder, None)), strict=True))


def test_equal_ratios_of_all_heads_are_transformers_linear_scaling_of_positions(folder: Path, tmp_path: Path) -> None:
    save_tiny(tmp_path / "linear", rope_parameters={"rope_type": "linear", "factor": 1.5, "rope_theta": 10_000.0})
    expected = every_pass(LanguageModel.load(tmp_path / "linear", CPU))
    found = every_pass(opened(folder, Ratios(1.5, 1.5)))
    assert not torch.allclose(found[1], every_pass(opened(folder, None))[1], atol=1e-2)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_each_prompt_of_a_pass_has_ratios_of_its_own_and_its_answer_keeps_them(folder: Path) -> None:
    model = opened(folder, PAPER)
    together = every_pass(model)
    chosen = {place: ratios.sort().values.tolist() for place, ratios in model.chosen.items()}
    assert chosen.keys() == {(slot, layer) for slot in (0, 1) for layer in range(4)}
    assert all(ratios == pytest.approx([1.2, 1.4, 1.6, 1.8]) for ratios in chosen.values())
    slot = model.new_cache(50).open(50)
    (alone,) = model.prefill([Prefill(slot, SHORT)])
    torch.testing.assert_close(alone.logits, together[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.decode([Row(slot, (8,))])[0], together[-1][1], atol=1e-4, rtol=1e-4)


def test_layers_before_the_first_one_attend_as_the_plain_model(folder: Path) -> None:
    later, plain = (every_pass(opened(folder, ratios))[2] for ratios in (Ratios(first_layer=2), None))
    assert torch.equal(later[:2], plain[:2])
    assert not torch.allclose(later[2], plain[2], atol=1e-4)
