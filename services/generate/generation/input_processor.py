"""Preparation of requests for the queue: prompts are rendered, tokenised and checked against the context length.

Shapes: K documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from services.core.errors import InvalidField, TooLarge, blaming
from services.generate.generation.generation import JOINT_TOKENS, AnswerOptions, Generation, ReorderedGeneration
from services.generate.model.language_model import ModelConfig
from services.generate.model.profile import CalibrationProfile, SpanRule
from services.generate.prompts.chat import Message, render_chat, render_question, render_tool_chat
from services.generate.prompts.ranking import RankingJob, RankMethod, prepare_options, prepare_ranking
from services.generate.prompts.templates import Document, Piece, Prompt, least_tokens, tokenise, tokenise_whole
from services.nn.plain_texts import PlainTexts, is_blank

# Approximate cost of estimating a prompt's bias, in runs of the prompt; `exact` has one pass per document.
BIAS_PROMPTS = {"tree": 2, "single": 1, "query": 0, "cached": 0}

Item = Generation | RankingJob


class InputProcessor:
    """Turns requests into items for one checkpoint's queue, on any thread.

    `context_length` limits a prompt and its answer together.
    """

    def __init__(self, tokenizer: Any, config: ModelConfig, profile: CalibrationProfile, context_length: int) -> None:
        """Raises BadProfile for a profile with layers or heads that the model does not have."""
        self.profile = profile.check_layers(config.num_layers, config.num_heads).completed(config.num_layers)
        self.tokenizer = tokenizer
        # A checkpoint's own truncation settings would cut prompts, and would change while another thread reads them.
        self.tokenizer.backend_tokenizer.no_truncation()
        self.tokenizer.backend_tokenizer.no_padding()
        self.context_length = context_length
        self.num_layers = config.num_layers
        self.vocab_size = config.vocab_size
        self.is_greedy = config.is_greedy
        self._max_token_characters = max(map(len, self.tokenizer.get_vocab()), default=1)
        self._plain = PlainTexts.of(self.tokenizer)

    def prepare_question(self, query: str, documents: Sequence[Document], options: AnswerOptions) -> Generation:
        """Prepare a question over documents, in the question-aware prompt.

        Raises TooLarge, naming tokens and limit, and InvalidField for a query without any character to be seen.
        """
        longest = "query" if len(query) > sum(len(one.title) + len(one.text) for one in documents) else "documents"
        with blaming(longest):
            self._check_characters(query, documents=documents)
        query, documents = self._plain_query(query), self._plain_documents(documents)
        span_rule = self._span_rule(options)

        def prompt_of(ordered: Sequence[Document]) -> Prompt:
            return self._tokenised(render_question(self.tokenizer, query, ordered, span_rule=span_rule))

        return self._prepare(prompt_of, query, tuple(documents), options, longest)

    def prepare_chat(
        self, messages: Sequence[Message], documents: Sequence[Document], options: AnswerOptions
    ) -> Generation:
        """Prepare a conversation, over documents if there are any; these are ranked for the user's last message.

        A conversation with tools is one that vLLM renders itself. Raises TooLarge, naming tokens and limit, and
        InvalidRequest if the chat template rejects the messages.
        """
        self._check_characters(*(message["content"] for message in messages), documents=documents)
        messages = self._plain_messages(messages, has_documents=bool(documents))
        documents = self._plain_documents(documents)
        asked = [message["content"] for message in messages if message["role"] == "user"]
        query = asked[-1] if asked else ""
        if documents and asked and is_blank(query):
            raise InvalidField("messages: The user's last message asks nothing about the documents.", param="messages")
        span_rule, tools = self._span_rule(options), options.for_vllm.get("tools", ())

        def prompt_of(ordered: Sequence[Document]) -> Prompt:
            if not tools and not any(message.get("tool_calls") for message in messages):
                return self._tokenised(render_chat(self.tokenizer, messages, ordered, span_rule=span_rule))
            pieces, sent = render_tool_chat(self.tokenizer, messages, tools, ordered, span_rule)
            self._check_characters(*(piece.text for piece in pieces))
            return replace(tokenise_whole(self.tokenizer, pieces), messages=sent)

        return self._prepare(prompt_of, query, tuple(documents), options, "documents" if documents else "messages")

    def prepare_completion(self, prompt: str | Sequence[int], options: AnswerOptions) -> Generation:
        """Prepare a text, or token ids, to be continued.

        Raises TooLarge, naming tokens and limit, and InvalidField for an empty prompt.
        """
        tokenised = self._tokenised([Piece(prompt)]) if isinstance(prompt, str) else Prompt(tuple(prompt), (), 0)
        if not tokenised.input_ids:
            raise InvalidField("prompt: There is nothing to continue.", param="prompt")
        echo: str | None = None
        if options.echo:
            echo = prompt if isinstance(prompt, str) else self.tokenizer.backend_tokenizer.decode(tokenised.input_ids)
        return replace(self._generation(tokenised, options, echo), continues_prompt=True)

    def prepare_options(
        self, messages: Sequence[Message], answers: Sequence[str], documents: Sequence[Document] = ()
    ) -> RankingJob:
        """Prepare the ranking of answers to a conversation, over documents if there are any.

        Raises what `prepare_options` of `prompts` raises.
        """
        self._check_characters(*(message["content"] for message in messages), documents=documents)
        asked = self._plain_messages(messages), answers, self._plain_documents(documents), self.profile.span_rule
        return prepare_options(self.tokenizer, self.context_length, *asked)

    def prepare_ranking(self, query: str, documents: Sequence[Document], method: RankMethod) -> RankingJob:
        """Prepare documents to be ranked. Raises TooLarge, with tokens and limit, per document if each has a prompt."""
        self._check_characters(query, documents=documents if method in ("calibrated", "attention") else ())
        for k, document in enumerate(documents):
            with blaming(f"documents.{k}"):
                self._check_characters(query, documents=[document])
        query, documents = self._plain_query(query), self._plain_documents(documents)
        return prepare_ranking(self.tokenizer, self.context_length, query, documents, method, self.profile)

    def tokens_of_text(self, text: str) -> Sequence[int]:
        """The tokens of a text as for a completion. Raises TooLarge for a text that is too long for any prompt."""
        self._check_characters(text)
        return self._tokenised([Piece(text)]).input_ids

    def tokens_of_chat(self, messages: Sequence[Message]) -> Sequence[int]:
        """The tokens of a conversation as for a chat. Raises what `prepare_chat` raises."""
        self._check_characters(*(message["content"] for message in messages))
        messages = self._plain_messages(messages)
        return self._tokenised(render_chat(self.tokenizer, messages, (), span_rule=self.profile.span_rule)).input_ids

    def cost(self, item: Item) -> int:
        """Approximate number of tokens run until the answer's first token, or the ranking; at least 1."""
        if isinstance(item, RankingJob) and item.method == "options":
            return self.cost(Generation(item.prompts[0], 1, calibration=self.profile))
        if isinstance(item, RankingJob):
            num_prompts = _num_bias_prompts(self.profile, item.num_documents) if item.method == "calibrated" else 0
            return max(1, item.prompt_tokens * (1 + num_prompts))
        profile = item.calibration
        num_prompts = _num_bias_prompts(profile, len(item.prompt.spans)) if profile and item.num_rerun else 0
        if isinstance(item, ReorderedGeneration):
            num_prompts += 1
            if item.method == "calibrated":
                num_prompts += _num_bias_prompts(profile or self.profile, len(item.documents))
        return len(item.prompt.input_ids) * (1 + num_prompts)

    def _prepare(
        self,
        prompt_of: Callable[[Sequence[Document]], Prompt],
        query: str,
        documents: tuple[Document, ...],
        options: AnswerOptions,
        param: str,
    ) -> Generation:
        """Prepare a prompt; `param` is the field to report as too long."""
        with blaming(param):
            generation = self._generation(prompt_of(documents), options)
        if options.reorder == "none" or len(documents) < 2:
            return generation
        return ReorderedGeneration(
            **{name: getattr(generation, name) for name in Generation.__dataclass_fields__},
            method=options.reorder,
            query=query,
            documents=documents,
            render=prompt_of,
            room=min(generation.num_tokens + JOINT_TOKENS * len(documents), self.context_length),
        )

    def _generation(self, prompt: Prompt, options: AnswerOptions, echo: str | None = None) -> Generation:
        num_prompt_tokens = len(prompt.input_ids)
        left = self.context_length - num_prompt_tokens
        max_tokens = left if options.max_tokens is None else options.max_tokens
        if left < (1 if options.max_tokens is None else max_tokens):
            wanted = f" and its answer up to {options.max_tokens}" if options.max_tokens else ""
            raise TooLarge(
                f"The prompt has {num_prompt_tokens} tokens{wanted}; "
                f"the limit is {self.context_length}, prompt and answer together.",
                code="context_length_exceeded",
            )
        return Generation(
            prompt,
            max_tokens,
            options.sampling,
            options.stop,
            options.calibration or self.profile,
            ignore_eos=options.ignore_eos,
            echo=echo,
            for_vllm=options.for_vllm,
            explains=options.explain,
            cites=options.cite and bool(prompt.spans),
        )

    def _span_rule(self, options: AnswerOptions) -> SpanRule:
        return (options.calibration or self.profile).span_rule

    def _plain_query(self, query: str) -> str:
        if is_blank(plain := self._plain.characters(query)):
            raise InvalidField("query: It has no character that can be seen.", param="query")
        return plain

    def _plain_documents(self, documents: Sequence[Document]) -> Sequence[Document]:
        plain = self._plain.characters
        return [replace(one, title=plain(one.title), text=plain(one.text)) for one in documents]

    def _plain_messages(self, messages: Sequence[Message], *, has_documents: bool = False) -> Sequence[Message]:
        """Make the messages plain, with their lines; the last one of the user's about documents is a question."""
        plain = [{**message, "content": self._plain.lines(message["content"])} for message in messages]
        asked = next((one for one in reversed(plain) if has_documents and one["role"] == "user"), None)
        if asked is not None:
            asked["content"] = self._plain.characters(asked["content"])
        return plain

    def _tokenised(self, pieces: Sequence[Piece]) -> Prompt:
        """Tokenise rendered pieces. A template can turn few words into much text, so the result is checked again."""
        self._check_characters(*(piece.text for piece in pieces))
        self._check_tokens(least_tokens(self.tokenizer, pieces, self.context_length))
        return tokenise(self.tokenizer, pieces)

    def _check_characters(self, *texts: str, documents: Sequence[Document] = ()) -> None:
        """Refuse texts that cannot fit before they are tokenised, which takes more than linear time."""
        num_characters = sum(map(len, texts)) + sum(len(one.title) + len(one.text) for one in documents)
        if num_characters > self.context_length * self._max_token_characters:
            self._check_tokens(-(-num_characters // self._max_token_characters))

    def _check_tokens(self, at_least: int) -> None:
        if at_least > self.context_length:
            raise TooLarge(
                f"The texts have at least {at_least} tokens; the limit is {self.context_length}.",
                code="context_length_exceeded",
            )


def _num_bias_prompts(profile: CalibrationProfile, num_documents: int) -> int:
    if profile.bias == "exact":
        return -(-num_documents // 2)  # each pass begins at its own document, on average in the middle
    return BIAS_PROMPTS[profile.bias]
