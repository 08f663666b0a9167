"""Probes read the labels of words from the encoder, teach it, and are no part of the checkpoint."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from services.predict.data.rows import Row
from services.predict.distillation import IGNORED
from services.predict.training.lessons import Lessons
from services.predict.training.loop import CHECKPOINT, TeachingLoss, teach
from starters.predict import probes
from starters.predict.probes import ProbedLessons, ProbedLoss, ProbedRecipe, ProbedTeaching, Probes, TokenLabels
from starters.predict.spans import Probe, WordLabel
from starters.predict.word_labels import WORD_LABELS, WordLabels
from tests.predict.tiny_students import tiny_tokenizer
from tests.predict.toy_lessons import TOY, toy_data, toy_recipe, toy_t5

CLASSES = ("animal", "place")
_KINDS = {"dog": "animal", "park": "place"}


def _labelled(example: Row) -> Iterator[WordLabel]:
    for word, kind in _KINDS.items():
        if (start := example.input.find(word)) >= 0:
            yield WordLabel(start, start + len(word), "kind", kind)
    yield WordLabel(len(example.input), len(example.input), "end", example.label)


TOY_WORDS = WordLabels((Probe("kind", 1, CLASSES), Probe("end", 9, TOY.labels or ())), _labelled)


@pytest.fixture(autouse=True)
def toy_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "WORD_LABELS", {TOY.name: lambda: TOY_WORDS})


def lessons(**changes: Any) -> Lessons:
    recipe, tokenizer = probed_recipe(**changes), tiny_tokenizer()
    token_labels = TokenLabels(TOY_WORDS, tokenizer, recipe)
    return ProbedLessons(token_labels, tokenizer, toy_t5().config, toy_data().train, recipe)


def probed_recipe(**changes: Any) -> ProbedRecipe:
    """A recipe of few steps with probes."""
    return ProbedRecipe(**{**vars(toy_recipe()), "probe_weight": 1.0, **changes})


def test_the_tokens_of_a_word_have_its_label_and_the_end_of_sequence_that_of_the_end() -> None:
    tokenizer, recipe = tiny_tokenizer(), probed_recipe()
    ((kinds, ends),) = TokenLabels(TOY_WORDS, tokenizer, recipe).of([Row("a man in park", "entailment")])
    ids = tokenizer(f"{recipe.used_prefixes.label}a man in park").input_ids
    pieces = [str(tokenizer.decode([id_])) for id_, kind in zip(ids, kinds, strict=True) if kind != IGNORED]
    assert "".join(pieces).replace(" ", "") == "park"
    assert set(kinds) == {IGNORED, CLASSES.index("place")}
    assert ends == [*[IGNORED] * (len(ids) - 1), 0]


def test_labels_of_an_input_that_is_cut_are_cut_with_it() -> None:
    tokenizer, recipe = tiny_tokenizer(), probed_recipe(max_input_tokens=4)
    ((kinds, ends),) = TokenLabels(TOY_WORDS, tokenizer, recipe).of([Row("a man in park", "entailment")])
    assert (kinds, ends) == ([IGNORED] * 4, [IGNORED] * 3 + [0])


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_the_losses_of_parts_and_processes_add_up_to_the_batch_s(micro_batch_size: int) -> None:
    model = toy_t5().eval()
    loss = ProbedLoss(model, 0.5, Probes(TOY_WORDS.probes, model.config, 0), 2.0)
    whole, parts = lessons().batch(0), lessons(micro_batch_size=micro_batch_size)
    batches = [parts.batch(0, process, 2) for process in range(2)]
    summed = sum(loss(part, batch)[0] for batch in batches for part in batch.parts)
    assert torch.allclose(loss(whole.parts[0], whole)[0], summed, rtol=1e-5)
    alone = TeachingLoss(model, 0.5)(whole.parts[0], whole)[0]
    assert loss(whole.parts[0], whole)[0] > alone


def test_a_training_teaches_probes_and_its_checkpoint_lacks_them(tmp_path: Path) -> None:
    recipe = probed_recipe(steps=60, evaluate_every=60)
    model = toy_t5()
    trained = teach(model, tiny_tokenizer(), toy_data(), recipe, tmp_path, lambda _: None, teaching=ProbedTeaching)
    assert trained.num_parameters == sum(weight.numel() for weight in model.parameters())
    plain = toy_t5()
    assert load_file(tmp_path / CHECKPOINT / "model.safetensors").keys() <= plain.state_dict().keys()
    state = torch.load(tmp_path / "resume.pt", weights_only=True)
    read = Probes(TOY_WORDS.probes, model.config, 0)
    before = _loss(toy_t5(), read)
    read.load_state_dict({name[7:]: value for name, value in state["weights"].items() if name.startswith("probes.")})
    assert _loss(model, read) < 0.5 * before


def _loss(model: Any, read: Probes) -> float:
    batch = lessons(method="standard").batch(0)
    with torch.no_grad():
        whole = ProbedLoss(model.eval(), None, read, 1.0)(batch.parts[0], batch)[0]
        return float(whole - TeachingLoss(model, None)(batch.parts[0], batch)[0])


def test_an_interrupted_training_with_probes_ends_with_the_same_weights(tmp_path: Path) -> None:
    recipe, lines = probed_recipe(), iter(range(9))

    def run(folder: Path, report: Callable[[str], None]) -> None:
        teach(toy_t5(), tiny_tokenizer(), toy_data(), recipe, folder, report, teaching=ProbedTeaching)

    def kill(line: str) -> None:
        if next(lines) == 0:
            raise Killed(line)

    run(tmp_path / "whole", print)
    with pytest.raises(Killed, match="step 2/4"):
        run(tmp_path / "cut", kill)
    run(tmp_path / "cut", print)
    whole, cut = (load_file(tmp_path / name / CHECKPOINT / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


class Killed(Exception):
    """The end of a training between two steps."""


def test_a_task_whose_words_have_no_labels_is_refused(tmp_path: Path) -> None:
    data = toy_data(task=replace(TOY, name="other"))
    with pytest.raises(ValueError, match="probe_weight is for the tasks toy, not other"):
        teach(toy_t5(), tiny_tokenizer(), data, probed_recipe(), tmp_path, lambda _: None, teaching=ProbedTeaching)
    with pytest.raises(ValueError, match="probe_weight\n  Input should be greater than 0"):
        ProbedRecipe(probe_weight=0.0)


def test_narrow_and_everyday_tasks_have_word_labels() -> None:
    assert WORD_LABELS.keys() == {"inferences", "word-problems"}
