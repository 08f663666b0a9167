"""Scores of sentences equal those of transformers, text by text, whatever else is scored with them.

Vera's formula and a classifier's are tested with the judges of score.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from services.core.refusals import Refused
from services.nn.sentence_scores import load_likelihood, load_scorer
from tests.tiny_text_models import WORDS, tokenizer, write_tiny_causal, write_tiny_grammar, write_tiny_vera

TEXTS = ("a dog on the mat", "a mat on the dog", "two cat", "the dog", "a dog on the mat", "two dog on a cat on a mat")
STARTERS = Path(__file__).parents[2] / "services"


def mean_log_probability(model: Any, input_ids: list[int]) -> float:
    """Transformers' own loss is the mean over all tokens but the first."""
    with torch.no_grad():
        return -float(model(input_ids=torch.tensor([input_ids]), labels=torch.tensor([input_ids])).loss)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("sets_begin", [True, False])
def test_a_likelihood_is_the_mean_log_probability_of_every_word_behind_the_beginning(
    tmp_path: Path, kind: str, sets_begin: bool
) -> None:
    model = write_tiny_causal(tmp_path, kind, begin="</s>", sets_begin=sets_begin)
    scorer = load_scorer(tmp_path)
    ids = [[1, *(WORDS.index(word) for word in text.split())] for text in TEXTS]
    assert scorer.kind == "likelihood"
    assert scorer.scores(TEXTS) == pytest.approx([mean_log_probability(model, row) for row in ids], abs=1e-6)


def test_without_a_token_for_the_beginning_the_first_word_is_given(tmp_path: Path) -> None:
    model = write_tiny_causal(tmp_path, "gpt2")
    scorer = load_likelihood(tmp_path)
    ids = [WORDS.index(word) for word in TEXTS[0].split()]
    assert scorer.scores(TEXTS[:1]) == pytest.approx([mean_log_probability(model, ids)], abs=1e-6)
    with pytest.raises(Refused, match="'dog' is one token"):
        scorer.scores(["dog"])


def test_the_projects_own_language_model_prefers_a_sentence_of_its_world_to_the_same_words_shuffled() -> None:
    scorer = load_scorer(STARTERS / "generate/starter/open-facts")
    sense, shuffled = scorer.scores(
        ["The pet of Belan Ashford is the quiet otter.", "the Ashford is pet quiet. of otter The Belan"]
    )
    assert sense > shuffled + 1


def test_no_text_changes_the_score_of_another(tmp_path: Path) -> None:
    write_tiny_grammar(tmp_path)
    scorer = load_scorer(tmp_path)
    together = scorer.scores([text for _ in range(200) for text in TEXTS])
    assert together[: len(TEXTS)] == pytest.approx([scorer.scores([text])[0] for text in TEXTS], abs=1e-6)
    assert together[:6] == pytest.approx(together[-6:], abs=1e-6)
    assert scorer.scores([]) == []


def test_a_folder_is_loaded_by_the_architecture_that_it_names(tmp_path: Path) -> None:
    write_tiny_vera(tmp_path / "vera")
    write_tiny_grammar(tmp_path / "grammar")
    assert load_scorer(tmp_path / "vera").kind == "vera"
    assert load_scorer(tmp_path / "grammar").kind == "classifier"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["CLIPModel"]}, "a CLIPModel scores no sentences"),
        ({}, "names no architecture"),
        ([], "names no architecture"),
    ],
)
def test_a_folder_of_another_model_is_refused_by_name(tmp_path: Path, config: Any, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Refused, match=message):
        load_scorer(tmp_path)


def test_a_folder_without_weights_of_the_right_shape_is_refused(tmp_path: Path) -> None:
    tokenizer("</s>").save_pretrained(tmp_path)
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Refused, match="can't be loaded as AutoModelForCausalLM"):
        load_scorer(tmp_path)
    with pytest.raises(Refused, match="names no architecture"):
        load_scorer(tmp_path / "nowhere")
