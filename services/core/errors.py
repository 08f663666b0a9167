"""The errors that a client can see, with their statuses; `http/protocol.py` adds those of a request's head (414, 431).

    FoveaError                      status  type
    ├── InvalidRequest                 400  invalid_request_error
    ├── Unauthenticated                401  authentication_error
    ├── PermissionDenied               403  permission_error
    ├── NotFound                       404  not_found_error
    ├── MethodNotAllowed               405  invalid_request_error
    ├── BodyTimeout                    408  timeout_error           (the body came too slowly)
    ├── Conflict                       409  conflict_error
    ├── TooLarge                       413  request_too_large
    ├── UnsupportedMediaType           415  unsupported_media_type
    ├── Misdirected                    421  misdirected_request     (another process of the service has it)
    ├── InvalidField                   422  invalid_request_error   (param names the field)
    ├── RateLimited                    429  rate_limit_error        (retry_after_s)
    ├── Overloaded                     503  overloaded_error        (retry_after_s)
    ├── DeadlineExceeded               504  timeout_error
    └── InternalError                  500  internal_error          (the message never carries a cause)

Handlers raise these and never catch them; `http/middleware.py` has `http/error_responses.py` render them.
"""

import errno
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

# OpenAI's client ignores a longer one instead of waiting.
MAX_RETRY_AFTER_S = 120.0


class FoveaError(Exception):
    """An error meant for the client: `message` is shown unchanged.

    `param` names the request field at fault, `code` is a machine-readable detail, `retry_after_s` (seconds)
    becomes `Retry-After`; both are None where they do not apply.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    is_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error envelope."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Return `Retry-After` in whole seconds and `retry-after-ms`, or `x-should-retry: false` if no retry helps."""
        if not self.is_retryable:
            return {"x-should-retry": "false"}
        retry_after_s = min(self.retry_after_s if self.retry_after_s is not None else 1.0, MAX_RETRY_AFTER_S)
        return {
            "retry-after": str(max(1, math.ceil(retry_after_s))),
            "retry-after-ms": str(max(1, math.ceil(retry_after_s * 1000))),
        }


class InvalidRequest(FoveaError):
    status = 400
    type = "invalid_request_error"


class Unauthenticated(FoveaError):
    status = 401
    type = "authentication_error"


class PermissionDenied(FoveaError):
    status = 403
    type = "permission_error"


class NotFound(FoveaError):
    status = 404
    type = "not_found_error"


class MethodNotAllowed(FoveaError):
    status = 405
    type = "invalid_request_error"


class BodyTimeout(FoveaError):
    status = 408
    type = "timeout_error"
    is_retryable = True


class Conflict(FoveaError):
    status = 409
    type = "conflict_error"


class TooLarge(FoveaError):
    status = 413
    type = "request_too_large"


class UnsupportedMediaType(FoveaError):
    status = 415
    type = "unsupported_media_type"


class Misdirected(FoveaError):
    status = 421
    type = "misdirected_request"


class InvalidField(FoveaError):
    status = 422
    type = "invalid_request_error"


class RateLimited(FoveaError):
    status = 429
    type = "rate_limit_error"
    is_retryable = True


class Overloaded(FoveaError):
    status = 503
    type = "overloaded_error"
    is_retryable = True


class DeadlineExceeded(FoveaError):
    status = 504
    type = "timeout_error"


class InternalError(FoveaError):
    status = 500
    type = "internal_error"


def check_count(param: str, value: int, limit: int, what: str | None = None) -> None:
    """Raises TooLarge for more than `limit` of `what` (by default the name of the field)."""
    if value > limit:
        raise TooLarge(f"{param}: The request asks for {value} {what or param}; the limit is {limit}.", param=param)


@contextmanager
def blaming(param: str | None) -> Iterator[None]:
    """Let errors that name no field of the request name this one."""
    try:
        yield
    except FoveaError as error:
        error.param = error.param or param
        raise


# The wordings of torch, oneDNN, C++ and the system, each an error of another type.
_NO_MEMORY = ("can't allocate", "out of memory", "could not create a primitive", "bad_alloc", "can't start new thread")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this was raised for lack of memory, of the process or of its device: no fault of a client."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)


def no_memory() -> Overloaded:
    """Return a new exception at each call: one that is raised twice carries the tracebacks of both."""
    return Overloaded("The service currently has too little memory for this request.", code="out_of_memory")
