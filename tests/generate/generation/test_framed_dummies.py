"""Framed dummies keep what the template writes around a document, so that a bias which lies there is taken off."""

from typing import Any

import pytest

from services.generate.generation.bias import BiasJob, DummyOptions, EstimateKind, estimate_bias
from services.generate.generation.ranking import rank
from services.generate.model.language_model import LanguageModel, Prefill
from services.generate.model.profile import CalibrationProfile, DummyForm
from services.generate.prompts.chat import render_question
from services.generate.prompts.templates import Document, filler_ids, tokenise
from tests.generate.tiny_models import tiny_model, tiny_tokenizer

QUERY = "who kept it?"
# the second has no title, and so no bracket before one
DOCUMENTS = [Document("Ada kept the lighthouse.", "Ada"), Document("The island is far."), Document("A sea.", "Sea")]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """One layer, whose head attends to the brackets before titles and to hardly anything else."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    model: Any = tiny_model(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    embeddings, layer = model.model.embed_tokens.weight, model.model.layers[0]
    query, key = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
    layer.input_layernorm.weight.fill_(1.0)
    for weights in (embeddings, query, key):
        weights.zero_()
    embeddings[:, 1] = 1.0
    embeddings[tokenizer.convert_tokens_to_ids("]("), 0] = 1.0
    # the dimension of a head that turns least with the position
    query[-1, 1] = key[-1, 0] = 1.0
    return LanguageModel(model, tokenizer)


@pytest.mark.parametrize(("kind", "dummy_tokens"), [("exact", None), ("tree", None), ("single", None), ("tree", 2)])
def test_a_framed_dummy_is_paid_what_its_document_is_paid_for_the_frame(
    model: LanguageModel, kind: EstimateKind, dummy_tokens: int | None
) -> None:
    prompt = tokenise(model.tokenizer, render_question(model.tokenizer, QUERY, DOCUMENTS))
    slot = model.new_cache(200).open(200)
    (prefilled,) = model.prefill([Prefill(slot, prompt.input_ids, prompt.spans)])
    assert prefilled.attention is not None
    document = prefilled.attention[0, 0]
    job = BiasJob(slot, prompt, filler_ids(model.tokenizer))
    forms: tuple[DummyForm, ...] = ("framed", "whole")
    framed, whole = (
        estimate_bias(model, [job], kind, options=DummyOptions(form, dummy_tokens))[0].attention[0, 0] for form in forms
    )

    assert document[[0, 2]].min() > 100 * document[1]
    # shorter filler leaves more of the row's weight to the rest of the prompt
    assert framed.tolist() == pytest.approx(document.tolist(), rel=1e-4 if dummy_tokens is None else 0.02)
    assert whole[0] < document[0] / 2
    assert whole[2] < document[2] / 2


def test_documents_that_differ_in_their_frames_alone_are_equally_relevant(model: LanguageModel) -> None:
    def ranked(dummy: DummyForm) -> list[float]:
        profile = CalibrationProfile(enabled=True, bias="exact", layers=(0,), rel_layers=(0,), dummy=dummy)
        return list(rank(model, QUERY, DOCUMENTS, "calibrated", profile).scores)

    assert ranked("framed") == pytest.approx([0.0] * 3, abs=1e-6)
    assert min(ranked("whole")[0], ranked("whole")[2]) > 0.01 > abs(ranked("whole")[1])
