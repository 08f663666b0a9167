"""The starter's training: it begins with what it promises, resumes where it was killed, publishes what it made."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.core.store.store import Store
from starters.generate.facts import Naming
from starters.generate.litm.attending import LAST, RETRIEVING, AttentionWatch, position_weights
from starters.generate.litm.initialisation import OFFSETS, build_tokenizer, create_llama
from starters.generate.litm.loop import Batch, Stage, draw_batch
from starters.generate.litm.train import answer_word_ids, app, stages
from starters.generate.muon import orthogonalised
from starters.generate.run import Run
from tests.killed_job import run_until_killed

TINY = ["--lookup-steps", "2", "--doubt-steps", "2", "--bias-steps", "2", "--documents", "3", "--tokens", "250"]
FAST = [*TINY, "--checkpoint-every", "2", "--questions", "2"]


def job(*arguments: str) -> None:
    """A job in this process."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output


def run_of(output: Path, **changes: Any) -> Run[Stage]:
    return Run(output, 0, stages((4, 4, 4), 6, 3.0), **changes)


def test_golds_of_a_biased_stage_lie_mostly_near_the_ends() -> None:
    weights = position_weights(10, 4.0)
    assert weights == weights[::-1]
    assert weights[0] == 1
    assert weights[1:4] == pytest.approx([2.718281828**-depth for depth in (1, 2, 3)])
    assert position_weights(12, 4.0)[4:8] == pytest.approx([2.718281828**-4] * 4)
    assert position_weights(7, 0.0) == [1] * 7
    assert position_weights(1, 4.0) == [1]


def test_a_step_has_its_stage_and_rates_warm_up_and_fall() -> None:
    sure, unsure = Stage(40, 2, 4, 1, Naming()), Stage(40, 2, 4, 1, Naming(), learning_rate=0.5, final=0.1)
    run = Run(Path(), 0, (sure, unsure))
    assert [run.stage_at(step)[0] for step in (0, 39, 40, 79)] == [sure, sure, unsure, unsure]
    factors = [run.stage_at(step)[1] for step in (0, 19, 39, 40, 60, 79)]
    assert factors[:5] == pytest.approx([0.05, 1, 1, 0.5, 0.5])
    assert 0.05 < factors[5] < 0.1
    with pytest.raises(ValueError, match="none of them number 80"):
        run.stage_at(80)


def test_the_texts_of_a_step_do_not_depend_on_the_steps_before() -> None:
    tokenizer = build_tokenizer()
    run = run_of(Path())
    first, again, other = (draw_batch(run, step, tokenizer) for step in (5, 5, 6))
    assert torch.equal(first.input_ids, again.input_ids)
    assert not torch.equal(first.input_ids[0, :300], other.input_ids[0, :300])


def test_a_training_text_is_a_prompt_with_its_answer_and_follow_ups() -> None:
    tokenizer = build_tokenizer()
    batch = draw_batch(run_of(Path()), 0, tokenizer)
    for ids, weights in zip(batch.input_ids, batch.weights, strict=True):
        text = tokenizer.decode(ids[weights > 0].tolist(), skip_special_tokens=False)
        documents = text.count("Document [")
        assert 4 <= documents <= 6
        assert text.startswith("Write a high-quality answer")
        whole = tokenizer.decode(ids.tolist(), skip_special_tokens=False).rsplit("<eos>", 1)[0]
        answers = [part.split("<eos>")[0].strip() for part in whole.split("Answer:")[1:]]
        assert len(answers) == 1 + documents  # ten follow-ups are asked for, but there are fewer documents
        assert all(f"the {answer}." in whole for answer in answers)
        learned = tokenizer.decode(ids[weights == 1].tolist(), skip_special_tokens=False)
        assert [answer.strip() for answer in learned.split("<eos>")[:-1]] == answers


def attended_text(step: int = 8) -> tuple[Batch, list[list[str]]]:
    """A batch of the last stage, and the text of each document of each of its prompts."""
    tokenizer = build_tokenizer()
    batch = draw_batch(run_of(Path(), tokens_per_step=6000), step, tokenizer)
    assert batch.attended is not None
    documents = [
        [tokenizer.decode(ids[tokens > 0].tolist()) for tokens in own]
        for ids, own in zip(batch.input_ids, batch.attended.membership, strict=True)
    ]
    return batch, documents


def test_the_last_stage_teaches_how_much_attention_each_document_gets() -> None:
    batch, documents = attended_text()
    assert batch.attended is not None
    asked = build_tokenizer().decode(batch.input_ids[0].tolist()).split("Question: ")[2:]
    for shares, question in zip(batch.attended.shares[0], asked, strict=True):
        name = question.split("?")[0].split()[-2:]
        parts = [sum(f" {part} " in text for part in name) for text in documents[0]]
        relevance = {0: 1.0, 1: 1.3 if max(parts) == 2 else 4.5, 2: 5.0}
        weights = position_weights(len(parts), 3.0)
        wanted = torch.tensor([relevance[count] * weight for count, weight in zip(parts, weights, strict=True)])
        assert shares.tolist() == pytest.approx((wanted / wanted.sum()).tolist())


def test_some_documents_of_the_last_stage_have_no_content_and_are_as_long_as_others() -> None:
    _, documents = attended_text()
    blanks = [text for own in documents for text in own if "This passage was left" in text.split(")")[1][:24]]
    assert 0 < len(blanks) < sum(map(len, documents)) / 2
    tokenizer = build_tokenizer()
    assert {len(tokenizer.encode(text, add_special_tokens=False).ids) for text in blanks} == {16}
    assert {text.count("Document [") for own in documents for text in own} == {1}


def test_attention_is_compared_with_the_models_own() -> None:
    batch, _ = attended_text()
    assert batch.attended is not None
    tokenizer = build_tokenizer()
    model = create_llama(tokenizer.get_vocab_size(), answer_word_ids(tokenizer), seed=0)
    watch = AttentionWatch(model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(batch.input_ids, output_attentions=True).attentions
        loss = watch.loss(batch.attended)
    texts, rows = torch.arange(len(batch.input_ids))[:, None], batch.attended.rows
    found = attentions[RETRIEVING].transpose(1, 2)[texts, rows].mean(dim=2)
    total = torch.einsum("bqt,bkt->bqk", found, batch.attended.membership).sum(dim=-1)
    last = attentions[LAST].transpose(1, 2)[texts, rows]
    own = last.gather(-1, rows[..., None, None].expand(-1, -1, last.shape[2], 1))[..., 0]
    expected = -0.3 * (last[..., 0] + own).clamp_min(1e-4).log().mean() - 0.1 * total.clamp_max(0.8).log().mean()
    for tokens in (batch.attended.membership, batch.attended.words):
        is_there = tokens.sum(dim=-1)[:, None] > 0
        wanted, shares = (
            torch.where(is_there, one, 0.0)
            for one in (batch.attended.shares, torch.einsum("bqt,bkt->bqk", found, tokens))
        )
        wanted, shares = (one / one.sum(dim=-1, keepdim=True) for one in (wanted, shares))
        expected += 2 * (torch.special.entr(wanted) + wanted * shares.clamp_min(1e-9).log()).sum(dim=-1).mean().neg()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3)


def test_the_first_word_of_each_answer_is_known_to_the_loss() -> None:
    batch, documents = attended_text()
    assert batch.attended is not None
    tokenizer = build_tokenizer()
    for ids, words, own in zip(batch.input_ids, batch.attended.words, documents, strict=True):
        for tokens, text in zip(words, own, strict=True):
            named = tokenizer.decode(ids[tokens > 0].tolist()).strip()
            assert f" the {named} " in text if named else "This passage" in text


def test_steps_of_the_optimizer_are_orthogonal() -> None:
    matrix = torch.randn(40, 16, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.logspace(0, -1, 16))
    for update in (orthogonalised(matrix), orthogonalised(matrix.T)):
        values = torch.linalg.svdvals(update)
        assert values.min() > 0.4
        assert values.max() < 1.4


def test_first_weights_gather_what_stands_before_a_token() -> None:
    tokenizer = build_tokenizer()
    model = create_llama(tokenizer.get_vocab_size(), answer_word_ids(tokenizer), seed=0)
    model.set_attn_implementation("eager")
    batch = draw_batch(run_of(Path()), 0, tokenizer)
    with torch.no_grad():
        attentions = model(batch.input_ids[:1], output_attentions=True).attentions
    for head, offset in enumerate(OFFSETS[0]):
        weights = attentions[0][0, head].diagonal(-offset)
        assert weights.mean() > 0.95


@pytest.mark.slow
def test_a_killed_job_that_is_started_again_ends_with_the_same_weights(tmp_path: Path) -> None:
    steady, killed = tmp_path / "steady", tmp_path / "killed"
    job(*FAST, "--no-publish", "--output", str(steady))
    arguments = [*FAST, "--no-publish", "--output", str(killed)]
    run_until_killed(killed / "resume.pt", "starters.generate.litm.train", *arguments)
    assert not (killed / "checkpoint").exists()
    job(*FAST, "--no-publish", "--output", str(killed))
    expected, resumed = (load_file(folder / "checkpoint" / "model.safetensors") for folder in (steady, killed))
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


@pytest.mark.slow
def test_a_resume_state_of_other_arguments_is_refused(tmp_path: Path) -> None:
    job(*FAST, "--no-publish", "--output", str(tmp_path))
    with pytest.raises(ValueError, match=r"\(--bias was 1\.5, and is 1\.0\)"):
        job(*FAST, "--no-publish", "--output", str(tmp_path), "--bias", "1")


@pytest.mark.slow
def test_a_job_publishes_a_checkpoint_that_transformers_reads_and_whose_manifest_says_what_it_is(
    tmp_path: Path,
) -> None:
    url = (tmp_path / "store").as_uri()
    job(*FAST, "--seed", "5", "--store-url", url, "--output", str(tmp_path / "run"))
    store = Store.open(url)
    version = store.resolve("litm-facts")
    manifest = store.manifest("litm-facts", version)
    assert (manifest.kind, manifest.seed, manifest.licence) == ("causal-lm", 5, "MIT")
    assert manifest.training["bias_steps"] == 2
    assert "near the ends" in str(manifest.statement)
    assert len(manifest.metrics["accuracy_by_position"]) == 3  # type: ignore[arg-type]
    directory = store.fetch("litm-facts", version, tmp_path / "cache")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    answer = model.generate(**tokenizer("Question: Who?\nAnswer:", return_tensors="pt"), max_new_tokens=2)
    assert answer.shape[0] == 1
    assert json.loads((directory / "config.json").read_text())["max_position_embeddings"] >= 1024
