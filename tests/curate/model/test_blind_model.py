"""Scores are kept on disk, by the content of model and text."""

import shutil
from pathlib import Path

import numpy as np
import torch

from services.curate.model.blind_model import BlindModel, ScoreCache, folder_digest
from services.nn.sentence_scores import SentenceScorer
from tests.tiny_text_models import write_tiny_causal, write_tiny_grammar

CPU = torch.device("cpu")


def counting(seen: list[str], cache: ScoreCache | None) -> BlindModel:
    def tokenize(text: str) -> list[int]:
        seen.append(text)
        return [len(text)]

    return BlindModel("length", SentenceScorer("classifier", 1, tokenize, lambda ids: ids[:, 0] / 100), cache)


def test_a_text_is_scored_once_by_a_model_in_any_number_of_jobs(tmp_path: Path) -> None:
    seen: list[str] = []
    texts = ["a dog", "two cats", "a dog", "é 🐕"]
    first = counting(seen, ScoreCache(tmp_path, "one")).scores(texts)
    assert sorted(seen) == sorted(set(texts))
    again = counting(seen, ScoreCache(tmp_path, "one")).scores([*texts, "a new one"])
    assert np.array_equal(first, again[:4]) and seen[3:] == ["a new one"]
    counting(seen, ScoreCache(tmp_path, "another")).scores(["a dog"])
    assert seen[4:] == ["a dog"]


def test_more_texts_than_one_statement_takes_are_found(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, "one")
    scores = {f"text {number}": number / 7 for number in range(1_700)}
    cache.add(scores)
    assert cache.find([*scores, "unknown"]) == scores


def test_progress_is_told_of_every_text(tmp_path: Path) -> None:
    told: list[int] = []
    cache = ScoreCache(tmp_path, "one")
    cache.add({"a": 0.5})
    counting([], cache).scores(["a", "b", "b", "c"], told.append)
    assert sum(told) == 4


def test_a_folder_is_told_by_its_content_and_not_by_its_place(tmp_path: Path) -> None:
    write_tiny_grammar(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert folder_digest(tmp_path / "one") == folder_digest(tmp_path / "copy")
    with (tmp_path / "copy" / "config.json").open("a") as file:
        file.write(" ")
    assert folder_digest(tmp_path / "one") != folder_digest(tmp_path / "copy")


def test_gaps_of_any_model_lie_between_minus_one_and_one(tmp_path: Path) -> None:
    write_tiny_causal(tmp_path / "gpt2", "gpt2", begin="</s>")
    write_tiny_grammar(tmp_path / "grammar")
    texts = ["a dog on the mat", "the mat", "two cat on a dog", "a dog"]
    for name in ("gpt2", "grammar"):
        model = BlindModel.load(name, tmp_path / name, device=CPU, cache=tmp_path / "cache")
        positive, negative = np.split(model.scores(texts), 2)
        gaps = model.gaps(positive, negative)
        assert np.abs(gaps).max() <= 1
        assert np.array_equal(np.sign(gaps), np.sign(positive - negative))
    assert len(list((tmp_path / "cache").iterdir())) == 2
