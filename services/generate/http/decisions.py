"""Decisions by a language model: any question about a text or a conversation.

Each question is a prompt of its own, at whose end the options' letters, or Yes and No, are the only answers: the
probability of an option is that of its letter's token among them. Documents stand in the prompt as in a chat.
"""

from collections.abc import Callable, Sequence
from string import ascii_uppercase
from typing import Any

from services.core.decisions import (
    AssistantMessage,
    DecisionImage,
    DecisionOutputRefusal,
    DecisionOutputText,
    DecisionRequest,
    InstructionMessage,
    PredicateQuestion,
    UserMessage,
    instructions_of,
    options_of,
    text_of,
)
from services.core.errors import InvalidField, blaming
from services.core.exchange import RequestContext
from services.core.http.decisions import Decided, Distribution
from services.generate.generation.input_processor import InputProcessor
from services.generate.http.documents import documents_of
from services.generate.prompts.ranking import RankingJob
from services.generate.prompts.templates import Document
from services.generate.service import GenerateService

# As many tokens as a server of vLLM gives the log-probabilities of.
LETTERS = ascii_uppercase[:20]
ANSWER_YES_OR_NO = "Answer Yes or No."
ANSWER_A_LETTER = "Answer with the letter of one option."


async def decide(service: GenerateService, body: DecisionRequest, context: RequestContext) -> Decided:
    """Answer each question by the probabilities of its options' letters.

    Raises InvalidField for what the model can't read or decide, and what `GenerateService.decide` raises.
    """
    messages = _messages(body)
    documents = documents_of(body.documents or (), service.limits.max_documents)
    asked = [_prepared(messages, documents, body, index) for index in range(len(body.questions))]
    ranked = await service.decide(body.model, asked, context)
    return Decided(
        ranked[0].model,
        [Distribution(one.ranking.relevance_scores) for one in ranked],
        sum(one.ranking.prompt_tokens for one in ranked),
    )


def _prepared(
    messages: list[dict[str, Any]], documents: Sequence[Document], body: DecisionRequest, index: int
) -> Callable[[InputProcessor], RankingJob]:
    """Return what prepares one question. Raises InvalidField for more options than there are letters."""
    question, param = body.questions[index], f"questions.{index}"
    lines, answers = [instructions_of(question)], ["Yes", "No"]
    if isinstance(question, PredicateQuestion):
        lines.append(ANSWER_YES_OR_NO)
    else:
        options = options_of(question, param)
        if len(options) > len(LETTERS):
            param = options[0].param.rpartition(".")[0]
            told = f"A language model decides between at most {len(LETTERS)} options"
            raise InvalidField(f"{param}: {told}, not {len(options)}.", param=param)
        answers = list(LETTERS[: len(options)])
        for letter, one in zip(answers, options, strict=True):
            lines.append(f"{letter}. {one.name}" + (f": {one.text}" if one.text != one.name else ""))
        lines.append(ANSWER_A_LETTER)
    said, text = messages, "\n".join(lines)
    if said and said[-1]["role"] == "user":  # templates may refuse two messages of one role in a row
        said, text = said[:-1], f"{said[-1]['content']}\n\n{text}"

    def prepare(processor: InputProcessor) -> RankingJob:
        with blaming("documents" if documents else "input"):
            return processor.prepare_options([*said, {"role": "user", "content": text}], answers, documents)

    return prepare


def _messages(body: DecisionRequest) -> list[dict[str, Any]]:
    """Return roles and texts for a chat template. Raises InvalidField for images and for calls of tools."""
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(body.input):
        param = f"input.{index}"
        if not isinstance(item, UserMessage | InstructionMessage | AssistantMessage):
            raise InvalidField(f"{param}: This model reads no calls of tools; write them as texts.", param=param)
        if isinstance(item.content, str):
            text = item.content
        else:
            text = "\n".join(_text(part, f"{param}.content.{place}") for place, part in enumerate(item.content))
        role = "system" if isinstance(item, InstructionMessage) else item.role
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{text}"
        else:
            messages.append({"role": role, "content": text})
    return messages


def _text(part: Any, param: str) -> str:
    if isinstance(part, DecisionImage):
        raise InvalidField(f"{param}: This model reads no images.", param=param)
    if isinstance(part, DecisionOutputText | DecisionOutputRefusal):
        return part.text if isinstance(part, DecisionOutputText) else part.refusal
    return text_of(part)
