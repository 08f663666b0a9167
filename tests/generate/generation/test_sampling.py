"""Sampling of the next token: from the right distribution, independent of other requests."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from services.generate.generation.sampling import Chooser, Sampling, choose

V = 50


def logits_of(num_rows: int, *, seed: int = 0, num_tokens: int = V) -> Tensor:
    return torch.randn(num_rows, num_tokens, generator=torch.Generator().manual_seed(seed)) * 2


def take(logits: Tensor, **sampling: Any) -> int:
    return choose(logits[None], [Chooser(Sampling(**sampling))])[0].token_id


def drawn(logits: Tensor, number: int, **sampling: Any) -> Counter[int]:
    """Count how often each token is drawn."""
    chooser = Chooser(Sampling(seed=1, **sampling))
    return Counter(choose(logits[None], [chooser])[0].token_id for _ in range(number))


def test_temperature_0_takes_the_most_likely_token_of_each_row() -> None:
    logits = logits_of(8)
    choices = choose(logits, [Chooser(Sampling()) for _ in range(8)])
    assert [choice.token_id for choice in choices] == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.slow
def test_tokens_are_drawn_as_often_as_they_are_likely(top_p: float) -> None:
    logits, number = logits_of(1, num_tokens=12)[0], 4000
    probabilities = (logits / 0.7).softmax(dim=-1)
    ordered, order = probabilities.sort(descending=True)
    kept = order[: int((ordered.cumsum(dim=0) < top_p).sum()) + 1]
    expected = torch.zeros(12).index_put((kept,), probabilities[kept] / probabilities[kept].sum())
    counts = drawn(logits, number, temperature=0.7, top_p=top_p)
    for token_id, probability in enumerate(expected.tolist()):
        deviation = math.sqrt(number * probability * (1 - probability))
        assert abs(counts[token_id] - number * probability) <= 5 * deviation


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(drawn(logits, 300, temperature=1.0, top_p=0.5)) == {0}
    assert set(drawn(logits, 300, temperature=1.0, top_p=0.51)) == {0, 1}
    assert set(drawn(logits, 300, temperature=1.0, top_p=0.94)) == {0, 1, 2}


def test_the_least_top_p_and_the_least_temperature_are_greedy() -> None:
    logits = logits_of(1)[0]
    for top_p in (1e-9, 5e-324):
        assert set(drawn(logits, 50, temperature=1.0, top_p=top_p)) == {int(logits.argmax())}
    assert set(drawn(logits, 50, temperature=1e-45)) == {int(logits.argmax())}


def test_a_token_of_no_weight_is_never_drawn() -> None:
    logits = torch.full((1000,), -torch.inf)
    logits[[3, 997]] = 0.0
    assert set(drawn(logits, 300, temperature=2.0)) == {3, 997}
    assert set(drawn(logits, 300, temperature=2.0, top_p=0.99)) == {3, 997}


def test_a_seeded_row_draws_the_same_alone_and_among_others() -> None:
    steps = [logits_of(1, seed=step)[0] for step in range(30)]
    for own in (Sampling(1.0, seed=7), Sampling(1.3, top_p=0.8, seed=7)):
        alone = Chooser(own)
        answer = [choose(logits[None], [alone])[0].token_id for logits in steps]
        among = [Chooser(Sampling()), Chooser(own), Chooser(Sampling(1.0, top_p=0.5)), Chooser(Sampling(0.3, seed=7))]
        together = [
            choose(torch.stack([logits.flip(0), logits, logits.roll(1), logits.roll(2)]), among)[1].token_id
            for logits in steps
        ]
        assert together == answer


def test_seeds_repeat_an_answer_and_differ_from_each_other() -> None:
    logits = logits_of(1)[0]
    answers = []
    for seed in (1, 1, 2, -1, None, None):
        chooser = Chooser(Sampling(1.0, seed=seed))
        answers.append(tuple(choose(logits[None], [chooser])[0].token_id for _ in range(40)))
    assert answers[0] == answers[1]
    assert len(set(answers)) == 5


def test_logit_bias_forbids_a_token_or_forces_it() -> None:
    logits = logits_of(1)[0]
    best, second = logits.topk(2).indices.tolist()
    assert take(logits, logit_bias=((best, -100.0),)) == second
    assert take(logits, logit_bias=((17, 100.0),)) == 17


class MadeTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the elements of the tensors that are made of Python's numbers while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_elements = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.lift_fresh.default:
            self.num_elements += args[0].numel()
        return func(*args, **(kwargs or {}))


def test_a_large_logit_bias_is_read_once_and_added_at_every_step() -> None:
    logits = logits_of(2, num_tokens=3000)
    # leaves tokens 2990 on alone, of which 2995 is to win and then 2996, by their penalties
    bias = (*((token_id, -100.0) for token_id in range(2990)), (2995, 50.0), (2996, 49.5), (2996, 0.25))
    chooser = Chooser(Sampling(logit_bias=bias, frequency_penalty=20.0))
    logits[0, 2990:] = 0.0
    made = []
    came = []
    for _ in range(3):
        with MadeTensors() as tensors:
            came.append(choose(logits, [chooser, Chooser(Sampling())])[0].token_id)
        made.append(tensors.num_elements)
    assert came == [2995, 2996, 2995]
    assert made[0] >= 2 * len(bias) and max(made[1:]) < 20


def test_penalties_count_the_answers_own_tokens() -> None:
    logits = torch.tensor([2.0, 1.9, 1.0, 0.0])
    present = Chooser(Sampling(presence_penalty=0.5))
    assert [choose(logits[None], [present])[0].token_id for _ in range(4)] == [0, 1, 0, 0]
    frequent = Chooser(Sampling(frequency_penalty=0.5))
    # 2.0 | 1.5, 1.9 | 1.5, 1.4 | 1.0, 1.4 | 1.0, 0.9, 1.0
    assert [choose(logits[None], [frequent])[0].token_id for _ in range(4)] == [0, 1, 0, 1]
    assert choose(logits[None], [Chooser(Sampling())])[0].token_id == 0


def test_penalties_of_one_row_leave_the_others_alone() -> None:
    logits = logits_of(2)
    choosers = [Chooser(Sampling(logit_bias=((int(logits[0].argmax()), -100.0),))), Chooser(Sampling())]
    assert choose(logits, choosers)[1].token_id == int(logits[1].argmax())


def test_log_probabilities_are_the_models_own() -> None:
    logits = logits_of(3)
    own = logits.log_softmax(dim=-1)
    samplings = [
        Sampling(num_logprobs=2),
        Sampling(),
        Sampling(1.7, seed=3, top_p=0.9, logit_bias=((4, 3.0),), num_logprobs=0),
    ]
    first, second, third = choose(logits, [Chooser(sampling) for sampling in samplings])
    assert first.logprob == pytest.approx(float(own[0].max()), abs=1e-6)
    assert [token_id for token_id, _ in first.top] == own[0].topk(2).indices.tolist()
    assert [logprob for _, logprob in first.top] == pytest.approx(own[0].topk(2).values.tolist(), abs=1e-6)
    assert second.logprob is None and second.top == ()
    assert third.logprob == pytest.approx(float(own[2, third.token_id]), abs=1e-6) and third.top == ()


def test_more_alternatives_than_there_are_tokens_are_all_of_them() -> None:
    choice = choose(logits_of(1, num_tokens=3), [Chooser(Sampling(num_logprobs=20))])[0]
    assert sum(math.exp(logprob) for _, logprob in choice.top) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7), Sampling(temperature=0.7, top_p=0.9)])
@pytest.mark.parametrize(("where", "value"), [(5, torch.nan), (slice(None), torch.nan), (5, torch.inf)])
@pytest.mark.parametrize("beside", [1, 0])
def test_logits_that_are_no_numbers_are_told(sampling: Sampling, where: int | slice, value: float, beside: int) -> None:
    logits = logits_of(1 + beside)
    logits[beside, where] = value
    with pytest.raises(FloatingPointError, match="not finite"):
        choose(logits, [Chooser(sampling)] * (1 + beside))


def test_a_row_without_any_possible_token_is_told() -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        choose(torch.full((1, 9), -torch.inf), [Chooser(Sampling(temperature=0.7))])


@pytest.mark.parametrize(
    "values", [{"temperature": -0.1}, {"temperature": math.nan}, {"top_p": 0.0}, {"num_logprobs": -1}]
)
def test_sampling_refuses_what_has_no_meaning(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Sampling(**values)
