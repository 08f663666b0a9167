"""Generated facts, and the tokenizer whose words they are written with."""

import json
import random
from collections import Counter
from typing import Any

import pytest

from services.generate.prompts.templates import FILLER, QUERY_AWARE, Document, tokenise
from services.nn.loading import transformers
from starters.generate.facts import KINDS, Fact, FactQuestion, Naming, ask, draw_facts
from starters.generate.litm.initialisation import INSTRUCTION, build_tokenizer, tokenizer_config
from starters.generate.llama import BOS_ID, EOS_ID
from tests.generate.round_trip import check_round_trip


def questions(naming: Naming, count: int = 400, num_documents: int = 8) -> list[FactQuestion]:
    generator = random.Random(0)
    return [ask(generator, draw_facts(generator, num_documents, naming), 3, naming) for _ in range(count)]


def right_parts(question: FactQuestion, fact: Fact) -> int:
    return (question.first == fact.first) + (question.last == fact.last)


def test_a_fact_reads_as_a_sentence_and_a_question_asks_for_it() -> None:
    fact = Fact("Belan", "Ashford", "instrument", "amber", "flute", "It is only a short note.")
    assert (fact.title, fact.answer) == ("Belan Ashford", "amber flute")
    assert fact.text == "Belan Ashford plays the amber flute. It is only a short note."
    asked = FactQuestion("Belan", "Ashford", (fact,), 0)
    assert (asked.question, asked.answer) == ("What is the instrument of Belan Ashford?", "amber flute")


def test_facts_of_a_question_are_of_one_kind_and_no_answer_word_occurs_twice() -> None:
    for question in questions(Naming()):
        assert len({fact.kind for fact in question.facts}) == 1
        answers = Counter(word for fact in question.facts for word in fact.answer.split())
        assert set(answers.values()) == {1}


def test_names_are_all_different_and_right_where_nothing_is_in_doubt() -> None:
    for question in questions(Naming(half_wrong=0, all_wrong=0, shared=0)):
        assert [right_parts(question, fact) for fact in question.facts] == [0, 0, 0, 2, 0, 0, 0, 0]


def test_names_are_as_wrong_as_asked_for_and_never_wrongly_another_documents() -> None:
    asked = questions(Naming(half_wrong=0.5, all_wrong=0.2, shared=0))
    parts = Counter(right_parts(question, question.facts[3]) for question in asked)
    assert parts[1] == pytest.approx(200, abs=40)
    assert parts[0] == pytest.approx(80, abs=30)
    assert all(right_parts(q, fact) == 0 for q in asked for k, fact in enumerate(q.facts) if k != 3)


def test_names_are_shared_as_often_as_asked_for() -> None:
    asked = questions(Naming(half_wrong=0, all_wrong=0, shared=0.5))
    firsts = sum(8 - len({fact.first for fact in question.facts}) for question in asked)
    lasts = sum(8 - len({fact.last for fact in question.facts}) for question in asked)
    # half of 8 × 400 facts take a part over, one in eight of them from itself, one in four of a fact that gave it up
    assert firsts + lasts == pytest.approx(1600 * 7 / 8 * 3 / 4, abs=150)


def test_more_documents_than_words_are_refused() -> None:
    with pytest.raises(ValueError):
        draw_facts(random.Random(0), len(KINDS["pet"].things) + 1)


def test_notes_follow_as_often_as_asked_for() -> None:
    facts = [fact for _ in range(50) for fact in draw_facts(random.Random(1), 8, Naming(), note_rate=1.0)]
    assert all(fact.note and fact.text.endswith(fact.note) for fact in facts)
    assert not any(fact.note for fact in draw_facts(random.Random(1), 8, Naming()))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """As it is read from a checkpoint."""
    directory = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))
    return transformers().AutoTokenizer.from_pretrained(directory, local_files_only=True)


def test_every_generated_prompt_is_whole_words(tokenizer: Any) -> None:
    generator = random.Random(2)
    for question in questions(Naming(), count=100):
        facts = [*question.facts, *draw_facts(generator, 4, note_rate=1.0)]
        pieces = QUERY_AWARE.render(question.question, [Document(fact.text, fact.title) for fact in facts])
        prompt = tokenise(tokenizer, pieces)
        bytes_alone = [i for i in prompt.input_ids if 2 <= i < 258 and tokenizer.decode([i]) not in ".?-()\n"]
        assert not bytes_alone or {tokenizer.decode([i]) for i in bytes_alone} <= set("0123456789")
        check_round_trip(tokenizer, pieces, prompt)
        assert len(tokenizer(f" {question.answer}", add_special_tokens=False).input_ids) == 2


def test_the_template_and_the_filler_are_whole_words(tokenizer: Any) -> None:
    assert QUERY_AWARE.head.startswith(INSTRUCTION)
    assert len(tokenizer(FILLER, add_special_tokens=False).input_ids) == len(FILLER.split()) + 1


@pytest.mark.parametrize(
    "text", ["", "  two  spaces ", "Grüße, 漢字 and 🎉\r\n\t\n", "Answer:Question: [12](x) <eos", "\x00"]
)
def test_any_text_comes_back_from_its_tokens(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_a_text_opens_with_bos_and_padding_is_the_end(tokenizer: Any) -> None:
    assert tokenizer("x").input_ids[0] == tokenizer.bos_token_id == BOS_ID
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == EOS_ID


def test_the_chat_template_gives_the_prompt_that_the_model_was_trained_on(tokenizer: Any) -> None:
    [asked] = questions(Naming(), count=1)
    # every other one without a title, as users may send them
    documents = [Document(fact.text, fact.title if k % 2 else "") for k, fact in enumerate(asked.facts)]
    expected = "".join(piece.text for piece in QUERY_AWARE.render(asked.question, documents))
    passages = [{"title": document.title, "text": document.text} for document in documents]
    for message, given in ((asked.question, passages), (expected, None)):
        chat = [{"role": "system", "content": "ignored"}, {"role": "user", "content": message}]
        rendered = tokenizer.apply_chat_template(chat, documents=given, tokenize=False)
        assert rendered == f"<bos>{expected}"
    plain = tokenizer.apply_chat_template([{"role": "user", "content": "Who?"}], tokenize=False)
    assert plain == "<bos>Question: Who?\nAnswer:"
