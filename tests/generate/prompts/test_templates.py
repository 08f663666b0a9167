"""Prompts to the character, their documents to the token, and text that stays text."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from services.core.errors import InvalidRequest
from services.generate.prompts.templates import (
    FILLER,
    PLAIN,
    QUERY_AWARE,
    RANDOM_ORDER,
    Document,
    Piece,
    Prompt,
    SpanRule,
    control_tokens,
    filler_ids,
    tokenise,
)
from tests.generate.question_data import natural_questions, sampled, synthwiki
from tests.generate.round_trip import check_round_trip
from tests.generate.small_tokenizers import TOKENIZERS, byte_level, fast, prepended, unigram

pytestmark = pytest.mark.process

GOLDENS = Path(__file__).parents[2] / "goldens"

AWKWARD = [
    Document("The oldest lighthouse was lit in 1789.", "Lighthouses"),
    Document("Document [2](Title: Harbours) Question: who\nAnswer: nobody\n", "{text} {question}"),
    Document("<s></s><bos><|im_end|><|im_start|>system\n<think><unk>[INST]", "</s>"),
    Document("Ka\u0308the 東京 🎉 e\u0301 \u200d\ufeff naïve  two spaces \t tab", "Ünïcode"),
    Document(""),
    Document("", "only a title"),
    Document("\n\n\n  \n"),
    Document("x"),
]


def _all(tokenizer: Any, prompt_ids: tuple[int, ...]) -> list[int]:
    control = control_tokens(tokenizer)
    return [i for i in prompt_ids if i in control]


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


class TestTemplates:
    def test_lost_in_the_middles_prompts_are_met_to_the_character(self) -> None:
        golden = json.loads((GOLDENS / "litm_prompts.json").read_text())
        rows = natural_questions()
        for case in golden["qa"]:
            is_aware, is_random = case["query_aware_contextualization"], case["mention_random_ordering"]
            template = QUERY_AWARE if is_aware else RANDOM_ORDER if is_random else PLAIN
            documents = [rows[row][1] for row in case["doc_rows"]]
            span_rules: tuple[SpanRule, ...] = ("newline", "text")
            for span_rule in span_rules:
                pieces = template.render(rows[case["question_row"]][0], documents, span_rule)
                assert "".join(piece.text for piece in pieces) == case["prompt"]

    def test_without_documents_the_prompt_is_the_question_alone(self) -> None:
        golden = json.loads((GOLDENS / "litm_prompts.json").read_text())
        pieces = QUERY_AWARE.render("who got the first nobel prize in physics", [])
        assert [piece.text for piece in pieces] == [golden["closedbook_row0"]]

    def test_a_document_without_a_title_has_no_brackets_for_one(self) -> None:
        pieces = PLAIN.render("q", [Document("a b")])
        assert pieces[1] == Piece("Document [1] a b\n", 0, contents=((13, 16),))

    def test_what_looks_like_a_field_is_text(self) -> None:
        pieces = QUERY_AWARE.render("{title}?", [Document("{number} {question}", "{text}")])
        assert pieces[1].text == "Document [1](Title: {text}) {number} {question}\n"
        assert pieces[-1].text == "\nQuestion: {title}?\nAnswer:"

    def test_a_documents_span_ends_with_its_newline_or_before_it(self) -> None:
        documents = [Document("a\n"), Document("b")]
        newline = [p.text for p in PLAIN.render("q", documents, "newline") if p.document is not None]
        text = [p.text for p in PLAIN.render("q", documents, "text") if p.document is not None]
        assert newline == ["Document [1] a\n\n", "Document [2] b\n"]
        assert text == ["Document [1] a\n", "Document [2] b"]


class TestSpans:
    @pytest.mark.parametrize("span_rule", ["newline", "text"])
    def test_every_span_decodes_to_exactly_its_document(self, tokenizer: Any, span_rule: SpanRule) -> None:
        pieces = QUERY_AWARE.render("who lit it?", AWKWARD, span_rule)
        prompt = tokenise(tokenizer, pieces)
        check_round_trip(tokenizer, pieces, prompt)
        assert len(prompt.spans) == len(AWKWARD)

    @pytest.mark.parametrize("span_rule", ["newline", "text"])
    def test_the_tokens_of_titles_and_texts_leave_the_templates_own(self, tokenizer: Any, span_rule: SpanRule) -> None:
        documents = [*AWKWARD, Document("One. Two.", "A title."), Document("ends in lines\n\n", "<s>")]
        prompt = tokenise(tokenizer, QUERY_AWARE.render("who lit it?", documents, span_rule))
        for k, (document, (start, end), contents) in enumerate(
            zip(documents, prompt.spans, prompt.contents, strict=True), start=1
        ):
            frame, given = [], []
            for first, stop in (*contents, (end, end)):
                frame.append(tokenizer.decode(prompt.input_ids[start:first]))
                given.append(tokenizer.decode(prompt.input_ids[first:stop]))
                start = stop
            # what the tokens of a border share is punctuation and line breaks
            assert f"Document [{k}]" in frame[0]
            assert "".join(frame).count("(Title:") == bool(document.title)
            assert not set("".join(frame)) - set(f"Document [](Title: ){k}.\n \t")
            assert "".join("".join(given).split()) in "".join(f"{document.title}{document.text}".split())

    @pytest.mark.parametrize("span_rule", ["newline", "text"])
    @pytest.mark.parametrize("question", ["who lit it?", "A", "Question: {question}\nAnswer:", "<s> 東京 🎉?"])
    def test_the_tokens_of_the_question_are_those_after_the_documents(
        self, tokenizer: Any, span_rule: SpanRule, question: str
    ) -> None:
        prompt = tokenise(tokenizer, QUERY_AWARE.render(question, AWKWARD, span_rule))
        assert prompt.question is not None
        start, stop = prompt.question
        assert prompt.tail_start < start < stop < len(prompt.input_ids)
        others = tokenise(tokenizer, QUERY_AWARE.render("who?", AWKWARD, span_rule))
        assert others.question is not None

        def around(one: Prompt, first: int, last: int) -> tuple[str, str]:
            before = tokenizer.decode(one.input_ids[one.tail_start : first])
            return before.strip(), tokenizer.decode(one.input_ids[last:]).strip()

        # what stands around a question does not depend on it, but for a space that its first token may hold
        assert around(prompt, start, stop) == around(others, *others.question)
        assert tokenise(tokenizer, QUERY_AWARE.render(question, [])).question is None

    def test_a_document_without_title_and_text_is_all_the_templates(self, tokenizer: Any) -> None:
        assert tokenise(tokenizer, QUERY_AWARE.render("who?", [Document("")])).contents == ((),)

    def test_the_whole_prompt_decodes_to_its_text(self, tokenizer: Any) -> None:
        pieces = QUERY_AWARE.render("who lit it?", AWKWARD)
        ids = list(tokenise(tokenizer, pieces).input_ids)
        without_opening = ids[1:] if ids[0] == tokenizer.bos_token_id else ids
        assert tokenizer.decode(without_opening) == "".join(piece.text for piece in pieces)

    def test_spans_follow_each_other_and_the_tail_follows_them(self, tokenizer: Any) -> None:
        prompt = tokenise(tokenizer, QUERY_AWARE.render("who lit it?", AWKWARD))
        borders = [border for span in prompt.spans for border in span]
        assert borders == sorted(borders)
        assert all(end == start for (_, end), (start, _) in zip(prompt.spans, prompt.spans[1:], strict=False))
        assert prompt.tail_start == prompt.spans[-1][1] < len(prompt.input_ids)
        tail = tokenizer.decode(prompt.input_ids[prompt.tail_start :])
        assert tail == "\nQuestion: who lit it?\nAnswer:"

    def test_without_documents_there_is_no_span_and_no_tail(self, tokenizer: Any) -> None:
        prompt = tokenise(tokenizer, QUERY_AWARE.render("who lit it?", []))
        assert (prompt.spans, prompt.tail_start) == ((), 0)

    @pytest.mark.parametrize("make", [prepended, unigram])
    def test_the_tokens_are_those_of_the_whole_text_where_none_crosses_a_border(self, make: Any) -> None:
        tokenizer = make()
        documents = [Document("The oldest lighthouse was lit in 1789.", "Lighthouses"), Document("Ships waited.")]
        pieces = QUERY_AWARE.render("who lit it?", documents)
        whole = tokenizer("".join(piece.text for piece in pieces)).input_ids
        assert tokenise(tokenizer, pieces).input_ids == tuple(whole)

    def test_a_token_that_would_cross_a_border_is_two(self) -> None:
        tokenizer = byte_level()
        pieces = [Piece("a"), Piece("b\n", 0), Piece("\nc")]
        crossing = tokenizer("\n\n", add_special_tokens=False).input_ids
        assert len(crossing) == 1
        prompt = tokenise(tokenizer, pieces)
        assert crossing[0] not in prompt.input_ids
        assert tokenizer.decode(prompt.input_ids[slice(*prompt.spans[0])]) == "b\n"

    def test_a_document_reads_the_same_whatever_stands_before_it(self, tokenizer: Any) -> None:
        first, second = (
            tokenise(tokenizer, QUERY_AWARE.render(question, AWKWARD)) for question in ("who?", "x\n \n what else")
        )
        for a, b in zip(first.spans, second.spans, strict=True):
            assert first.input_ids[slice(*a)] == second.input_ids[slice(*b)]

    def test_a_prompt_longer_than_the_model_takes_is_not_cut(self, tokenizer: Any) -> None:
        limit, tokenizer.model_max_length = tokenizer.model_max_length, 64
        pieces = QUERY_AWARE.render("who lit it?", [Document("lighthouse " * 5000)])
        prompt = tokenise(tokenizer, pieces)
        tokenizer.model_max_length = limit
        check_round_trip(tokenizer, pieces, prompt)
        assert len(prompt.input_ids) > 5000

    def test_the_round_trip_check_names_a_document_whose_span_is_wrong(self, tokenizer: Any) -> None:
        pieces = PLAIN.render("q", [Document("a b c"), Document("d e f")])
        prompt = tokenise(tokenizer, pieces)
        (start, end), other = prompt.spans[1], prompt.spans[0]
        shifted = type(prompt)(prompt.input_ids, (other, (start, end - 1)), prompt.tail_start)
        with pytest.raises(ValueError, match="document 1 decodes to"):
            check_round_trip(tokenizer, pieces, shifted)


class TestControlTokens:
    def test_text_never_becomes_a_control_token(self, tokenizer: Any) -> None:
        everything = "".join(control_tokens(tokenizer).values())
        documents = [*AWKWARD, Document(everything * 3, everything)]
        prompt = tokenise(tokenizer, QUERY_AWARE.render(everything, documents))
        opening = tokenise(tokenizer, [Piece("x")]).input_ids[:-1]
        bos = list(opening[:1]) if tokenizer.bos_token_id in opening else []
        assert _all(tokenizer, prompt.input_ids) == bos

    def test_many_spelt_control_tokens_stay_text(self) -> None:
        tokenizer = byte_level()
        pieces = PLAIN.render("q", [Document("<bos>" * 3000 + "<<bos>bos>")])
        prompt = tokenise(tokenizer, pieces)
        check_round_trip(tokenizer, pieces, prompt)
        assert _all(tokenizer, prompt.input_ids) == [tokenizer.bos_token_id]

    def test_added_white_space_is_text_like_any_other(self) -> None:
        tokenizer = byte_level()
        three = tokenizer.convert_tokens_to_ids("\n\n\n")
        assert three in tokenise(tokenizer, [Piece("a\n\n\nb")]).input_ids

    def test_a_control_token_of_one_character_is_refused(self) -> None:
        tokenizer = copy.deepcopy(byte_level())
        tokenizer.add_special_tokens({"additional_special_tokens": ["§"]})
        with pytest.raises(InvalidRequest, match="'§' is a control token"):
            tokenise(tokenizer, PLAIN.render("q", [Document("see § 3")]))

    def test_what_the_tokenizer_does_not_know_may_be_its_unknown_token(self) -> None:
        words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = fast(words, unk_token="<unk>")
        assert tokenise(tokenizer, [Piece("a b a")]).input_ids == (1, 0, 1)


def test_filler_is_text_in_the_middle_of_a_text(tokenizer: Any) -> None:
    ids = filler_ids(tokenizer)
    assert not _all(tokenizer, ids)
    mark = tokenizer("x", add_special_tokens=False).input_ids
    assert tokenizer.decode([*mark, *ids]) == f"x{FILLER}"


@pytest.mark.parametrize("read", [natural_questions, synthwiki])
@pytest.mark.parametrize(("make", "num_prompts"), [(byte_level, 200), (prepended, 40), (unigram, 40)])
def test_spans_are_right_on_real_prompts(read: Any, make: Any, num_prompts: int) -> None:
    tokenizer = make()
    for question, documents in sampled(read(), num_prompts, num_documents=10):
        pieces = QUERY_AWARE.render(question, documents)
        prompt = tokenise(tokenizer, pieces)
        check_round_trip(tokenizer, pieces, prompt)
        assert len(prompt.spans) == len(documents)
        assert [p.text for p in pieces if p.document is not None] == [
            f"Document [{k + 1}]{f'(Title: {d.title})' if d.title else ''} {d.text}\n" for k, d in enumerate(documents)
        ]
