"""Prompts for ranking documents by every method, tokenised and checked against the limit.

This module does not import torch. Legend: K documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from services.core.errors import InvalidRequest, TooLarge, blaming
from services.generate.model.profile import OFF, CalibrationProfile
from services.generate.prompts.chat import Message, render_chat, render_question
from services.generate.prompts.templates import QUERY_AWARE, Document, Piece, Prompt, SpanRule, tokenise

RankMethod = Literal["calibrated", "attention", "query_likelihood", "query_generation", "relevance_prompt"]
# Options of a question are ranked as documents are: by the tokens of the letters that stand for them in one prompt.
JobMethod = RankMethod | Literal["options"]

# LongLLMLingua's sentence after the question, so that its likelihood is that of a question the document answers.
RESTRICTION = " We can get the answer to this question in the given documents."
WRITE_A_QUESTION = "Please write a question based on this passage."
IS_IT_ANSWERED = "Does the passage answer the query?"


@dataclass(frozen=True)
class RankingJob:
    """One question and its documents, or the options of an answer to it, ready to be run.

    prompts: one of all documents for the methods that use attention, and one of them in reverse if they
    `is_in_both_orders`; else one for each of the K documents, in which the tokens whose likelihood counts begin at
    `tail_start`. firsts: for each document, the first that equals it (K). answer_ids: the tokens that distinguish Yes
    from No, for `relevance_prompt`, or the options of the one prompt, for `options`.
    """

    method: JobMethod
    num_documents: int
    prompts: tuple[Prompt, ...]
    firsts: tuple[int, ...] = ()
    answer_ids: tuple[int, ...] | None = None
    is_in_both_orders: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of all prompts together."""
        return sum(len(prompt.input_ids) for prompt in self.prompts)


def prepare_ranking(
    tokenizer: Any,
    max_model_len: int,
    query: str,
    documents: Sequence[Document],
    method: RankMethod,
    profile: CalibrationProfile = OFF,
) -> RankingJob:
    """Prepare the prompts of a ranking, on any thread.

    max_model_len: the maximum number of tokens of a prompt. profile: its span rule counts, and by a profile that knows
    the relevance of single documents, `calibrated` reads them in both orders, so that none gains by what stands before
    it. Raises TooLarge, naming tokens and limit, if a prompt has more: of all documents together for `calibrated` and
    `attention`, of one document, which it names, for the others.
    """
    if not documents:
        return RankingJob(method, 0, ())
    contents = [(document.title, document.text) for document in documents]
    firsts = tuple(map(contents.index, contents))
    if method in ("calibrated", "attention"):
        is_in_both = profile.relevance is not None and method == "calibrated" and len(documents) > 1
        orders = [documents, documents[::-1]] if is_in_both else [documents]
        rendered = [render_question(tokenizer, query, order, QUERY_AWARE, profile.span_rule) for order in orders]
        prompts = [tokenise(tokenizer, pieces) for pieces in rendered]
        with blaming("documents"):
            for prompt in prompts:
                _check_length(prompt, max_model_len, f"the prompt of {len(documents)} documents")
        return RankingJob(method, len(documents), tuple(prompts), firsts, is_in_both_orders=is_in_both)
    answer_ids = None
    if method == "relevance_prompt":
        prompts, answer_ids = _relevance_prompts(tokenizer, query, documents)
    else:
        prompts = [tokenise(tokenizer, _likelihood_pieces(query, document, method)) for document in documents]
    for k, prompt in enumerate(prompts):
        with blaming(f"documents.{k}"):
            _check_length(prompt, max_model_len, f"the prompt of document {k}")
    return RankingJob(method, len(documents), tuple(prompts), firsts, answer_ids)


def prepare_options(
    tokenizer: Any,
    max_model_len: int,
    messages: Sequence[Message],
    answers: Sequence[str],
    documents: Sequence[Document] = (),
    span_rule: SpanRule = "newline",
) -> RankingJob:
    """Prepare the prompt of a conversation, over documents, whose next message begins with one of these answers.

    Raises InvalidRequest if the tokenizer has no chat template or does not distinguish the answers by one token each,
    and TooLarge, naming tokens and limit.
    """
    pieces = render_chat(tokenizer, messages, documents, span_rule=span_rule)
    prompt, answer_ids = _with_answers(tokenizer, pieces, answers)
    _check_length(prompt, max_model_len, "the prompt of a question")
    return RankingJob("options", len(answers), (prompt,), tuple(range(len(answers))), answer_ids)


def _likelihood_pieces(query: str, document: Document, method: RankMethod) -> list[Piece]:
    passage = document.titled
    if method == "query_likelihood":
        return [Piece(f"{passage}\n", 0), Piece(query + RESTRICTION)]
    return [Piece(f"{WRITE_A_QUESTION}\nPassage: {passage}\nQuestion:", 0), Piece(f" {query}")]


def _relevance_prompts(
    tokenizer: Any, query: str, documents: Sequence[Document]
) -> tuple[list[Prompt], tuple[int, ...]]:
    questions = [f"Passage: {document.titled}\nQuery: {query}\n{IS_IT_ANSWERED}\nAnswer:" for document in documents]
    if tokenizer.chat_template is None:
        rendered: list[Sequence[Piece]] = [[Piece(question)] for question in questions]
    else:
        rendered = [render_chat(tokenizer, [{"role": "user", "content": question}]) for question in questions]
    with blaming("method"):
        prompts, ids = zip(*(_with_answers(tokenizer, pieces, ("Yes", "No")) for pieces in rendered), strict=True)
    return list(prompts), ids[0]


def _with_answers(tokenizer: Any, pieces: Sequence[Piece], answers: Sequence[str]) -> tuple[Prompt, tuple[int, ...]]:
    """Return the prompt with the tokens with which all answers begin, and the first tokens in which they differ."""
    # after a line break the model's answer begins without a space
    space = "" if pieces[-1].text[-1:].isspace() else " "
    tokenised = [tokenise(tokenizer, [Piece("x"), Piece(f"{space}{answer}", 0)]) for answer in answers]
    columns = list(zip(*(one.input_ids[one.spans[0][0] :] for one in tokenised), strict=False))
    place = next((i for i, column in enumerate(columns) if len(set(column)) > 1), None)
    if place is None or len(set(columns[place])) < len(answers):
        raise InvalidRequest(f"this checkpoint's tokenizer does not distinguish the answers {', '.join(answers)}")
    shared = tuple(column[0] for column in columns[:place])
    prompt = tokenise(tokenizer, pieces)
    return replace(prompt, input_ids=prompt.input_ids + shared), columns[place]


def _check_length(prompt: Prompt, max_model_len: int, what: str) -> None:
    if len(prompt.input_ids) > max_model_len:
        message = f"{what} has {len(prompt.input_ids)} tokens; the model takes {max_model_len}"
        raise TooLarge(message, code="context_length_exceeded")
