"""The reader's training: its network is a Llama, its first weights find sentences, its texts are prompts."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from typer.testing import CliRunner

from services.core.refusals import Refused
from services.core.store.store import Store
from services.generate.model.profile import read_profile
from services.generate.prompts.templates import QUERY_AWARE
from starters.generate.llama import BOS_ID
from starters.generate.reader.first_weights import set_first_weights
from starters.generate.reader.loop import draw_batch
from starters.generate.reader.network import Network, Shape, llama, network_of
from starters.generate.reader.stages import stages
from starters.generate.reader.texts import FIRST_WEIGHT, UNKNOWN, Mixture, draw_rows, draw_text, prompt_text
from starters.generate.reader.tokenizer import build_tokenizer, common_tokens
from starters.generate.reader.train import app, digest
from starters.generate.run import Run
from starters.generate.world.documents import REFUSAL, Scope, draw_world
from starters.generate.world.subjects import GROUPS

MIXED = Mixture(Scope((1, 4), 3), pasted=0.2, history=0.3, closed_book=0.1, narrow=0.1)


@cache
def tokenizer() -> Tokenizer:
    return build_tokenizer(400)


def first_network() -> Network:
    network = Network(Shape(tokenizer().get_vocab_size()))
    set_first_weights(network, common_tokens(tokenizer()), seed=0)
    return network


def test_the_network_computes_what_transformers_does() -> None:
    network = first_network()
    ids = torch.tensor([draw_text(random.Random(0), MIXED, tokenizer(), 128).ids[:100]])
    with torch.no_grad():
        own = network(ids, torch.arange(100), torch.arange(1))[0].log_softmax(-1)
        other = llama(network)(ids).logits[0].log_softmax(-1)
    moved = (own.exp() - other.exp()).abs().sum(-1) / 2
    assert moved.mean() < 0.02  # bfloat16, whose rounding differs between processors


def test_first_weights_attend_to_the_document_about_the_name() -> None:
    model = llama(first_network())
    model.set_attn_implementation("eager")
    generator = random.Random(0)
    found: list[bool] = []
    while len(found) < 30:
        world = draw_world(generator, Scope((3, 3), 1, reversed=0.0, refused=0.0, titled=0.0, similar=0.0, mixed=0.0))
        asked = world.ask(generator)
        if asked.gold is None:
            continue
        ids, spans = [BOS_ID], []
        for piece in QUERY_AWARE.render(asked.question, world.documents):
            start = len(ids)
            ids += tokenizer().encode(piece.text, add_special_tokens=False).ids
            if piece.document is not None:
                spans.append((start, len(ids)))
        with torch.no_grad():
            row = model(torch.tensor([ids]), output_attentions=True).attentions[1][0, 1, -1]
        masses = [float(row[start:end].sum()) for start, end in spans]
        found.append(max(range(3), key=masses.__getitem__) == asked.gold)
    assert sum(found) > 18  # a third by chance


def test_a_network_of_another_shape_has_no_first_weights() -> None:
    with pytest.raises(ValueError, match="another shape"):
        set_first_weights(Network(Shape(300, width=96)), [0, 1], seed=0)


def test_a_row_is_a_prompt_with_answers_that_end() -> None:
    text = draw_text(random.Random(1), Mixture(Scope((2, 3), 1)), tokenizer(), 200)
    told = tokenizer().decode(text.ids, skip_special_tokens=False)
    assert told.startswith("<bos>Write a high-quality answer")
    parts = told.split("Answer:")[1:]
    assert len(parts) > 1
    assert all("<eos>" in part for part in parts)
    assert text.weights.count(FIRST_WEIGHT) == len(parts)


def test_questions_without_documents_are_refused() -> None:
    text = draw_text(random.Random(2), Mixture(Scope((1, 1), 1), closed_book=1.0), tokenizer(), 200)
    told = tokenizer().decode(text.ids, skip_special_tokens=False)
    assert told.startswith("<bos>Question: ")
    assert told.split("Answer:")[1].startswith(f" {REFUSAL}<eos>")


def test_keywords_are_answered_by_the_sentence_about_them_or_refused() -> None:
    mixture = Mixture(Scope((3, 3), 1, refused=0.4), topical=1.0)
    answers = set()
    for seed in range(20):
        text = draw_text(random.Random(seed), mixture, tokenizer(), 300)
        told, answer, *_ = tokenizer().decode(text.ids, skip_special_tokens=False).split("Answer:")
        answer = answer.split("<eos>")[0].strip()
        answers.add(answer == REFUSAL)
        assert answer == REFUSAL or answer in told
    assert answers == {True, False}


def test_rows_have_one_length_and_the_loss_falls_on_what_follows_a_place() -> None:
    rows = draw_rows(random.Random(3), MIXED, tokenizer(), 4, 256)
    assert rows.input_ids.shape == (4, 256)
    assert torch.equal(rows.input_ids.flatten()[rows.places + 1], rows.targets)
    assert len(rows.places) == len(rows.weights)
    assert (rows.weights == FIRST_WEIGHT).sum() >= 4


def test_signs_tell_relations_and_the_sentence_that_answers() -> None:
    generator = random.Random(4)
    answering = told = 0
    for _ in range(20):
        text = draw_text(generator, Mixture(Scope((3, 3), 3, refused=0.3)), tokenizer(), 300)
        for token, relation, answers in text.signs:
            ending = tokenizer().decode([text.ids[token]])
            answering += answers == 1
            told += relation != UNKNOWN
            if relation != UNKNOWN and answers != UNKNOWN:
                assert ending.endswith(".")
    assert answering > 10
    assert told > 100
    rows = draw_rows(random.Random(3), MIXED, tokenizer(), 4, 256)
    assert len(rows.signs) == len(rows.relations) == len(rows.answering) == 4 * (256 // 5)
    assert rows.relations.max() < len(GROUPS)


def test_a_training_begins_with_the_weights_of_a_checkpoint(tmp_path: Path) -> None:
    network = first_network()
    llama(network).save_pretrained(tmp_path)
    again = network_of(tmp_path)
    assert torch.equal(network.embeddings, again.embeddings)
    for own, read in zip(network.matrices(), again.matrices(), strict=True):
        assert torch.equal(own, read)
    with pytest.raises(Refused, match=r"has no tokenizer\.json: give the folder of a reader's checkpoint"):
        digest(tmp_path)


def test_the_texts_of_a_step_depend_on_the_step_alone() -> None:
    run = Run(Path(), 0, stages((4, 4, 4), 6, 3.0), tokens_per_step=512)
    first, again, other = (draw_batch(run, step, tokenizer()) for step in (9, 9, 11))
    assert torch.equal(first.input_ids, again.input_ids)
    assert not torch.equal(first.input_ids, other.input_ids)


def test_the_chat_template_keeps_system_prompt_and_history() -> None:
    from services.nn.loading import transformers
    from starters.generate.reader.tokenizer import tokenizer_config

    fast: Any = transformers().PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **_known(tokenizer_config()))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who has the cat?"},
        {"role": "assistant", "content": "Ann"},
        {"role": "user", "content": "And the dog?"},
    ]
    told = fast.apply_chat_template(messages, tokenize=False)
    assert told == ("<bos>Be brief.\n\nQuestion: Who has the cat?\nAnswer: Ann<eos>\n\nQuestion: And the dog?\nAnswer:")
    documents = [{"title": "", "text": "Bob has the dog."}]
    over = fast.apply_chat_template(messages, documents=documents, tokenize=False)
    prompt = prompt_text(QUERY_AWARE, "And the dog?", draw_documents("Bob has the dog."))
    assert over == f"<bos>Be brief.\n\nQuestion: Who has the cat?\nAnswer: Ann<eos>\n\n{prompt}"


def draw_documents(*texts: str) -> list[Any]:
    from services.generate.prompts.templates import Document

    return [Document(text) for text in texts]


def _known(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "tokenizer_class"}


@pytest.mark.slow
@pytest.mark.timeout(900)  # compiles the network
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler, when it is imported
def test_a_job_publishes_a_reader_with_its_fitted_refusal(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    arguments = ["--copy-steps", "1", "--choice-steps", "0", "--length-steps", "1", "--documents", "2"]
    arguments += ["--tokens", "512", "--questions", "2", "--store-url", url, "--output", str(tmp_path / "run")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    store = Store.open(url)
    version = store.resolve("open-facts")
    manifest = store.manifest("open-facts", version)
    assert manifest.kind == "causal-lm"
    assert "copies its answers" in str(manifest.statement)
    profile = read_profile(store.fetch("open-facts", version, tmp_path / "cache"))
    assert profile is not None
    assert profile.answerability is not None
    assert profile.answerability.refusal == REFUSAL
    assert not profile.enabled
