import pytest

from services.core.refusals import did_you_mean, near_names

MODELS = ["Qwen3-0.6B", "qwen2.5-7b", "clip-shapes"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("clip-shapez", "; did you mean clip-shapes?"),
        ("CLIP-SHAPES", "; did you mean clip-shapes?"),
        ("qwen3-0.6b", "; did you mean Qwen3-0.6B?"),
        ("vicuna", ""),
    ],
)
def test_the_nearest_known_name_is_asked_for_as_it_is_spelt(name: str, told: str) -> None:
    assert did_you_mean(name, MODELS) == told
    assert did_you_mean(name, []) == ""


def test_several_names_are_listed_with_the_nearest_first() -> None:
    assert near_names("qwen2.5-7", MODELS, count=2, similarity=0.3) == ["qwen2.5-7b", "Qwen3-0.6B"]


def test_only_the_beginning_of_a_long_name_is_compared() -> None:
    assert near_names("x" * 100_000, ["x" * 64, *MODELS]) == ["x" * 64]
