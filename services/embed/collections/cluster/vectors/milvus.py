"""The connection to Milvus, and its errors as those of the service."""

import logging
import re
import threading
from collections.abc import Callable
from typing import TypeVar

import grpc
import structlog
from pymilvus import MilvusClient, MilvusException

from services.core.errors import Overloaded
from services.core.printable import first_line

# Longest wait for an answer, unless a call needs more: shorter than a request's deadline, so that the answer says what
# is missing.
TIMEOUT_S = 10.0
OPEN_TIMEOUT_S = 5.0
RETRY_AFTER_S = 2.0
# Milvus's codes of a collection and of a partition that do not exist. Some calls have no code for it, only the words.
MISSING = (100, 200)
MISSING_WORDS = "not found"
# What it says while its parts look for each other and vectors are loaded, after a restart or where a node is gone.
UNSETTLED = re.compile(
    r"not (fully )?loaded|\b(node|channel|segment|replica|leader|server)s? [^.:\[]*not (found|available|ready)"
)
# What pymilvus calls a server that it can't connect to, and grpc's codes for one that does not answer.
CONNECT_FAILED = 2
NOT_ANSWERING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)

Result = TypeVar("Result")

# It logs each failed call with its traceback; what is worth a line is logged here.
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)


class VectorsUnreachable(Overloaded):
    """Milvus can't be reached, or can't answer at the moment. A change may have been made, so it is to be repeated."""

    def __init__(self) -> None:
        super().__init__(
            "The vectors of the collections currently can't be reached.",
            code="vectors_unreachable",
            retry_after_s=RETRY_AFTER_S,
        )


class VectorsMissing(Overloaded):
    """Milvus does not have the vectors of this index: they were dropped or lost, and have to be written again."""

    def __init__(self) -> None:
        super().__init__(
            "The vectors of this index are missing, and are made again.",
            code="vectors_missing",
            retry_after_s=RETRY_AFTER_S,
        )


class VectorsRefused(Overloaded):
    """Milvus refused an operation, for example because of a limit or of rights that the token lacks."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"The vector database refused to {operation}.", code="vectors_refused", retry_after_s=RETRY_AFTER_S
        )


def reason_of(error: BaseException) -> str:
    """Return what Milvus, or the connection to it, says first; grpc tells all of a call."""
    details = error.details() if isinstance(error, grpc.RpcError) and hasattr(error, "details") else None
    text = error.message if isinstance(error, MilvusException) else details or first_line(error)
    return " ".join(next(iter(str(text).splitlines()), type(error).__name__).split())


class MilvusVectors:
    """A thread-safe connection, opened when it is first used. Methods raise VectorsUnreachable, VectorsMissing and
    VectorsRefused, and RuntimeError once it is closed."""

    def __init__(self, url: str, token: str = "") -> None:
        """`url` is http(s)://host:port; `token` is user:password or an API key."""
        self._url = url
        self._token = token
        self._opening = threading.Lock()
        self._client: MilvusClient | None = None
        self._is_closed = False

    def close(self) -> None:
        """Close the connection. Closing again has no effect."""
        with self._opening:
            self._is_closed = True
            if self._client is not None:
                self._client.close()
                self._client = None

    def run(self, operation: str, call: Callable[[MilvusClient], Result]) -> Result:
        """Return what `call` returns for the client. `operation`, a verb and its object, is what a refusal names.

        Each call has to set a timeout, as pymilvus repeats some calls until then and would wait for others for ever.
        """
        try:
            return call(self._open())
        except MilvusException as error:
            if UNSETTLED.search(error.message):
                raise VectorsUnreachable from error
            if error.code in MISSING or MISSING_WORDS in error.message:
                raise VectorsMissing from error
            if error.code == CONNECT_FAILED or error.code in NOT_ANSWERING:
                raise VectorsUnreachable from error
            structlog.get_logger(__name__).warning("refused by Milvus", operation=operation, reason=error.message)
            raise VectorsRefused(operation) from error
        except grpc.RpcError as error:
            raise VectorsUnreachable from error
        except ValueError as error:
            # grpc's word for a connection that another thread has replaced meanwhile
            if "closed channel" not in str(error):
                raise
            raise VectorsUnreachable from error

    def _open(self) -> MilvusClient:
        if (client := self._client) is not None:
            return client
        with self._opening:
            if self._is_closed:
                raise RuntimeError("The vectors are closed.")
            if self._client is None:
                self._client = MilvusClient(self._url, token=self._token, timeout=OPEN_TIMEOUT_S, dedicated=True)
            return self._client
