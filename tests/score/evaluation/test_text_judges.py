"""Judges by texts alone score as their authors' formulas say, and never look at an image."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.core.refusals import Refused
from services.score.evaluation.judges import evaluate, score
from services.score.evaluation.records import Record, Task
from services.score.evaluation.text_judges import TextJudge, load_grammar, load_vera
from tests.score.evaluation.stand_ins import SOURCE
from tests.tiny_text_models import tokenizer, write_tiny_grammar, write_tiny_vera

NOWHERE = Path("nowhere.jpg")
TEXTS = ("a dog on the mat", "a mat on the dog", "two cat", "the dog", "a dog on the mat")


def choices(*captions: tuple[str, ...]) -> Task:
    return Task("texts", "mine", tuple(Record(str(n), (NOWHERE,), some) for n, some in enumerate(captions)), SOURCE)


def scored(judge: TextJudge, *texts: str) -> list[float]:
    (found,) = score(judge, choices(texts))
    assert found.shape == (1, 1, len(texts))
    return [float(value) for value in found[0, 0]]


def vera_by_hand(model: Any, text: str) -> float:
    ids = tokenizer("</s>")(text)["input_ids"]
    assert ids[-1] == 1
    with torch.no_grad():
        last = model(torch.tensor([ids])).last_hidden_state[0, -1].tolist()
    table = model.shared.weight.detach()
    logit = sum(h * float(e) for h, e in zip(last, table[32099], strict=True)) + float(table[32098, 0])
    return 1 / (1 + math.exp(-logit / float(table[32097, 0])))


def test_veras_score_is_the_calibrated_logit_of_the_last_token(tmp_path: Path) -> None:
    model = write_tiny_vera(tmp_path)
    judge = load_vera(tmp_path, name="Vera")
    found = scored(judge, *TEXTS)
    assert found == pytest.approx([vera_by_hand(model, text) for text in TEXTS], abs=1e-5)
    assert len(set(found)) == 4


def test_veras_half_precision_weights_score_in_half_precision_and_may_tie(tmp_path: Path) -> None:
    write_tiny_vera(tmp_path, dtype=torch.bfloat16)
    found = scored(load_vera(tmp_path, name="Vera"), *TEXTS)
    # bfloat16 has eight bits
    assert all(float(torch.tensor(value).bfloat16()) == value for value in found)


def test_the_grammar_models_score_is_the_probability_that_a_sentence_is_acceptable(tmp_path: Path) -> None:
    model = write_tiny_grammar(tmp_path)
    found = scored(load_grammar(tmp_path, name="Grammar"), *TEXTS)
    for text, value in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            (logits,) = model(torch.tensor([tokenizer("</s>")(text)["input_ids"]])).logits
        assert value == pytest.approx(float(torch.softmax(logits, 0)[1]), abs=1e-6)


@pytest.mark.parametrize("load", [load_vera, load_grammar])
def test_longer_texts_than_the_model_takes_are_cut(tmp_path: Path, load: Callable[..., TextJudge]) -> None:
    write_tiny_vera(tmp_path) if load is load_vera else write_tiny_grammar(tmp_path)
    judge = load(tmp_path, name="x")
    start = "a dog " * 128
    cut, also_cut, short = scored(judge, start + "on", start + "the", "a dog")
    assert cut == also_cut != short


def test_no_text_changes_the_score_of_another_and_equal_ones_tie(tmp_path: Path) -> None:
    write_tiny_vera(tmp_path)
    judge = load_vera(tmp_path, name="Vera")
    alone = [scored(judge, text, "two")[0] for text in TEXTS]
    many = choices(*[(TEXTS[place % 5], TEXTS[(place + 1) % 5]) for place in range(300)])
    found = [value[0, 0] for value in score(judge, many)]
    assert [row[0] for row in found[:5]] == pytest.approx(alone, abs=1e-6)
    # the last and the first text are the same
    assert all(row[0] == row[1] for row in found[4::5])
    assert all(row[0] != row[1] for row in found[3::5])


def test_images_are_neither_needed_nor_told_apart(tmp_path: Path) -> None:
    write_tiny_vera(tmp_path)
    judge = load_vera(tmp_path, name="Vera")
    images = (NOWHERE, Path("elsewhere.jpg"))
    group = Task("pairs", "mine", (Record("0", images, ("a dog", "a cat")),), SOURCE)
    (found,) = score(judge, group)
    np.testing.assert_array_equal(found[0, 0], found[0, 1])
    (result,) = evaluate(judge, [group])
    assert result.scores == {"pairs": 0.0, "pairs::text": 0.0, "pairs::image": 0.0}


def test_a_folder_of_another_model_is_refused_instead_of_scored_by_random_weights(tmp_path: Path) -> None:
    write_tiny_vera(tmp_path / "vera")
    write_tiny_vera(tmp_path / "t5", vocabulary=32)
    write_tiny_grammar(tmp_path / "grammar")
    write_tiny_grammar(tmp_path / "topics", id2label={0: "sports", 1: "news"}, label2id={"sports": 0, "news": 1})
    with pytest.raises(Refused, match=r"t5 is not a Vera model: its vocabulary ends at 32, before 32099"):
        load_vera(tmp_path / "t5", name="x")
    with pytest.raises(Refused, match=r"grammar can't be loaded as T5EncoderModel"):
        load_vera(tmp_path / "grammar", name="x")
    with pytest.raises(Refused, match=r"config.json has no label LABEL_1, only sports, news"):
        load_grammar(tmp_path / "topics", name="x")
    with pytest.raises(Refused, match=r"vera can't be loaded as AutoModelForSequenceClassification"):
        load_grammar(tmp_path / "vera", name="x")
    with pytest.raises(Refused, match=r"nowhere can't be loaded"):
        load_vera(tmp_path / "nowhere", name="x")
