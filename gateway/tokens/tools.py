"""Tools as vLLM 0.32 hands them to a chat template: its pydantic models, dumped.

Source: ``ChatCompletionToolsParam`` and ``FunctionDefinition`` of vLLM 0.32.0: fields in the model's order, unknown
keys dropped, ``description`` and ``parameters`` null where they are missing, ``strict`` and ``defer_loading`` left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.tokens.reasons import Unrenderable, Why


def dump_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a template sees as ``tools``.

    Raises:
        Unrenderable: a tool is no function with a name.
    """
    return [_dump(tool) for tool in tools]


def _dump(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise Unrenderable(Why.TOOLS)
    if not isinstance(function.get("name"), str):
        raise Unrenderable(Why.TOOLS)
    dumped = {name: function.get(name) for name in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        dumped["strict"] = function["strict"]
    deferred = tool.get("defer_loading")
    inner = function.get("defer_loading")
    if inner is not None or deferred is not None:
        dumped["defer_loading"] = deferred if inner is None else inner
    out: dict[str, Any] = {"type": "function", "function": dumped}
    if deferred is not None:
        out["defer_loading"] = deferred
    return out
