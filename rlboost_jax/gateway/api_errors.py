"""Refusals of calls, in OpenAI's form.

Clients of OpenAI's repeat calls that end with 408, 409, 429 or 5xx by themselves. So what would be
refused again has none of these.
"""

from typing import Any, Final

INVALID: Final = "invalid_request_error"
CONTEXT_FULL: Final = "context_length_exceeded"


class ApiError(Exception):
    """A refusal; the message names value, limit and setting.

    Args:
        status: of HTTP.
        code: for programs.
        param: field of the request that it is about.
    """

    def __init__(
        self, status: int, code: str, message: str, *, kind: str = INVALID, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.kind, self.param = status, code, kind, param

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def invalid(message: str, param: str | None = None, *, code: str = "invalid_value") -> ApiError:
    return ApiError(400, code, message, param=param)


def unauthorized() -> ApiError:
    return ApiError(
        401,
        "invalid_api_key",
        "no session or gateway has this key, or there is none in `Authorization: Bearer KEY`; "
        "OPENAI_API_KEY is the session's token, or the gateway's own",
        kind="authentication_error",
    )


def exhausted(message: str, code: str) -> ApiError:
    """Error for a resource that may be available later."""
    return ApiError(429, code, message, kind="rate_limit_error")


def over(reason: str) -> ApiError:
    """Error for a session that takes no more calls."""
    return ApiError(410, "session_over", f"the session is over: {reason}")


def failed(message: str, code: str = "sampling_failed") -> ApiError:
    """Error that is not the caller's fault; the same call may be repeated."""
    return ApiError(503, code, message, kind="server_error")
