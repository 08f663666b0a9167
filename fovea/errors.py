"""The one error that a client raises, whatever a call fails for."""

from typing import Any

import httpx2

TIMEOUT = "timeout_error"
CONNECTION = "connection_error"
UNREADABLE = "unreadable_response"


class FoveaError(Exception):
    """A call that failed, as Fovea's error envelope describes it.

    `status` is None where no response arrived; `type` is then `timeout_error` or `connection_error`, and with a
    response that is none of Fovea's `unreadable_response`. `retry_after_s` is set for what may succeed later.
    """

    def __init__(
        self,
        message: str,
        *,
        type: str | None = None,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message if status is None else f"{status}: {message}")
        self.message = message
        self.type = type
        self.status = status
        self.code = code
        self.param = param
        self.request_id = request_id
        self.retry_after_s = retry_after_s


def error_of(response: httpx2.Response) -> FoveaError:
    """Return what a response that has been read says."""
    try:
        envelope = response.json()
    except ValueError:
        envelope = None
    return error_of_envelope(envelope, response, response.status_code)


def error_of_envelope(envelope: Any, response: httpx2.Response, status: int | None) -> FoveaError:
    """Return the error of an envelope, which a proxy may have replaced; a stream holds one without a status."""
    error = envelope.get("error") if isinstance(envelope, dict) else None
    told = error if isinstance(error, dict) else {}
    return FoveaError(
        told.get("message") or response.reason_phrase or "no reason given",
        type=told.get("type"),
        status=status,
        code=told.get("code"),
        param=told.get("param"),
        request_id=response.headers.get("x-request-id"),
        retry_after_s=_retry_after_s(response.headers),
    )


def error_of_transport(error: httpx2.RequestError, url: str) -> FoveaError:
    """Return an error for a response that did not arrive. A request that was never sent may be sent again."""
    if isinstance(error, httpx2.TimeoutException):
        return FoveaError(f"{url} has not answered in time; `timeout` of the client allows more.", type=TIMEOUT)
    was_sent = not isinstance(error, httpx2.ConnectError)
    reason = str(error).rstrip(".") or type(error).__name__
    retry_after_s = None if was_sent else 0.0
    return FoveaError(f"no answer from {url}: {reason}", type=CONNECTION, retry_after_s=retry_after_s)


def unreadable(response: httpx2.Response) -> FoveaError:
    """Return an error for a response that is not Fovea's."""
    told = f"{response.url} has not answered in Fovea's form; is `base_url` the address of a Fovea?"
    return FoveaError(told, type=UNREADABLE, status=response.status_code)


def _retry_after_s(headers: httpx2.Headers) -> float | None:
    for header, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[header]) * unit_s)
        except (KeyError, ValueError):
            continue
    return None
