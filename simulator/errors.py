"""Errors as vLLM answers them: OpenAI's shape, Anthropic's on ``/v1/messages``, FastAPI's for unknown paths."""

from __future__ import annotations

from typing import Any

BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."


class ApiError(Exception):
    """An answer with an error's body. ``kind`` is its ``type``, ``param`` the field at fault."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}

    def anthropic_body(self) -> dict[str, Any]:
        return {"type": "error", "error": {"type": self.kind, "message": self.message}}


class EngineDead(Exception):
    """The request killed the engine: no answer comes, and the process goes down."""


def bad_value(message: str, param: str, value: Any) -> ApiError:
    """A field that was understood and refused."""
    return ApiError(400, f"{message} (parameter={param}, value={value})", param=param)


def invalid(kind: str, place: str, message: str, body: Any, context: dict[str, str] | None = None) -> ApiError:
    """A body that does not validate: pydantic's words, and a ``type`` with a blank in it."""
    fields = len(body) if isinstance(body, dict) else 0
    detail: dict[str, Any] = {"type": kind, "loc": place, "msg": message, "input": f"<dict of {fields} items>"}
    if context:
        detail["ctx"] = context
    return ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", place)


def missing(field: str, body: Any) -> ApiError:
    return invalid("missing", f"body.{field}", "Field required", body)


def no_such_model(name: str, names: tuple[str, ...]) -> ApiError:
    known = ", ".join(names)
    return ApiError(404, f"The model `{name}` does not exist. Valid aliases: {known}.", "NotFoundError", "model")


def too_long(limit: int, tokens: int) -> ApiError:
    """A prompt that does not fit. (One that leaves less room than is asked for gets a shorter answer.)"""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {tokens} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    )
    return bad_value(message, "input_tokens", tokens)


def busy() -> ApiError:
    """Admission is full: made for whoever balances load, and without a Retry-After."""
    return ApiError(503, BUSY, "Service Unavailable")


def internal() -> ApiError:
    return ApiError(500, "Internal server error", "InternalServerError")
