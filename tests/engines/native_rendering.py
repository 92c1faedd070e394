"""What vLLM makes of chats that no template renders, without an engine: run by the engines' Python, not by pytest.

    python native_rendering.py TEKKEN_FOLDER < question.json > answer.json

``question``: ``{name: body}``, of ``/v1/chat/completions``. ``answer``: ``{"harmony" | "mistral": {name: ids}}``; null
where vLLM refuses or fails. All of it is vLLM's own code, down from the model that its route reads a body with.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.mistral import safe_apply_chat_template
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tokenizers import mistral


def by_harmony(body: dict[str, Any]) -> list[int]:
    renderer = OnlineRenderer.__new__(OnlineRenderer)  # without a model
    renderer.renderer = None  # type: ignore[assignment]
    renderer.supports_browsing = renderer.supports_code_interpreter = False
    request = ChatCompletionRequest.model_validate(body)
    _, (made,) = renderer._make_request_with_harmony(request, request.tools is not None)
    return list(made["prompt_token_ids"])


def by_mistral(tokenizer: Any) -> Callable[[dict[str, Any]], list[int]]:
    def render(body: dict[str, Any]) -> list[int]:
        request = ChatCompletionRequest.model_validate(body)
        mistral.maybe_serialize_tool_calls(request)  # type: ignore[arg-type]
        mistral.truncate_tool_call_ids(request)  # type: ignore[arg-type]
        mistral.validate_request_params(request)
        tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
        arguments = request.build_chat_params(None, "auto").get_apply_chat_template_kwargs()
        made = safe_apply_chat_template(tokenizer, request.messages, **(arguments | {"tools": tools}))
        return list(made)  # type: ignore[arg-type]

    return render


def main() -> None:
    bodies = json.load(sys.stdin)
    tokenizer = mistral.MistralTokenizer.from_pretrained(sys.argv[1])
    answer: dict[str, dict[str, list[int] | None]] = {}
    for name, render in {"harmony": by_harmony, "mistral": by_mistral(tokenizer)}.items():
        answer[name] = {}
        for chat, body in bodies.items():
            try:
                answer[name][chat] = render(body)
            except Exception as error:
                print(f"{name}: {chat}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
                answer[name][chat] = None
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
