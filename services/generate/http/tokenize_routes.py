"""vLLM's `/tokenize`: the tokens of a text or a conversation, as for completions and chat."""

from typing import Any, Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, model_validator

from services.core.exchange import context_of
from services.core.http.bodies import JsonRoute, OpenRequest, refuse_unsupported
from services.generate.generation.input_processor import InputProcessor
from services.generate.http.openai_calls import messages_of
from services.generate.http.openai_schemas import Messages
from services.generate.service import GenerateService

# Fields of vLLM's, with the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "mm_processor_kwargs": ({},),
    "return_token_strs": (False,),
    "tools": ([],),
}


class TokenizeRequest(OpenRequest):
    """Either a text, tokenised as `/v1/completions` would, or messages, as `/v1/chat/completions` would."""

    model: str | None = Field(None, description="Model that answers; the first served one by default.")
    prompt: str | None = None
    messages: Messages | None = None

    @model_validator(mode="after")
    def holds_one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("a request holds either a prompt or messages")
        return self


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int = Field(description="Most tokens of a prompt and its answer together.")
    tokens: list[int]


def tokenize_router(service: GenerateService) -> APIRouter:
    """Create the route that tokenises."""
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/tokenize")
    async def tokenize(request: Request, body: TokenizeRequest) -> TokenizeAnswer:
        """The tokens of a prompt, in vLLM's form; a text that no prompt could hold is refused."""
        refuse_unsupported(body.model_extra, {**UNSUPPORTED, "add_special_tokens": (body.messages is None,)})

        def tokens(processor: InputProcessor) -> list[int]:
            if body.messages is not None:
                return list(processor.tokens_of_chat(messages_of(body.messages)))
            return list(processor.tokens_of_text(body.prompt or ""))

        found, limit = await service.tokenize(body.model, tokens, context_of(request.scope))
        return TokenizeAnswer(count=len(found), max_model_len=limit, tokens=found)

    return router
