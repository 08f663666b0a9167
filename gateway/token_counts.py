"""The tokens of one request, as its service tells them: they are taken from the limits of its key, tenant and model."""

import re
from collections.abc import Mapping

from starlette.types import Message, Send

from gateway.access import Access
from gateway.keys.own_key import Admitted
from services.core.exchange import TOKENS_HEADER

# What a service puts before each event of a stream; within one, JSON has no line breaks.
_COMMENT = re.compile(rb"^: tokens (\d+)\n", re.MULTILINE)


class TokenCount:
    """Counts one request: `begin` with the head of its answer, `end` when that is over, however it ended."""

    def __init__(self, access: Access, admitted: Admitted) -> None:
        self._access = access
        self._admitted = admitted
        self._model = ""
        self._is_stream = False
        self._num_told = 0
        self._num_spent = 0

    async def of_model(self, model: str) -> None:
        """Count the request against the limits of a model, once. Raises LimitReached."""
        name = model.partition("@")[0]
        if name != self._model:
            self._model = name
            self._admitted.note(await self._access.count_model(self._admitted.visitor, name))

    async def begin(self, headers: Mapping[str, str], model: str | None) -> None:
        """Take what the head of an answer tells.

        Raises LimitReached for a model that is known only now and has nothing left: the request did not name it.
        """
        if model is not None:
            await self.of_model(model)
        self._is_stream = headers.get("Content-Type", "").startswith("text/event-stream")
        self._num_told = int(headers.get(str(TOKENS_HEADER, "ascii"), 0))
        await self.end()

    def reading(self, send: Send) -> Send:
        """Return a `send` that reads what each piece of a stream tells, and leaves it out."""
        if not self._is_stream:
            return send

        async def read_and_send(message: Message) -> None:
            body = message["body"]
            if told := _COMMENT.findall(body):
                self._num_told = int(told[-1])
                message = {**message, "body": _COMMENT.sub(b"", body)}
            await send(message)

        return read_and_send

    async def end(self) -> None:
        """Take from the limits what was told and not taken yet."""
        num_new, self._num_spent = self._num_told - self._num_spent, self._num_told
        if left := await self._access.spend(self._admitted.visitor, self._model, num_new):
            self._admitted.allowances.pop("tokens", None)
            self._admitted.note(left)
