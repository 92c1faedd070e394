"""What vLLM makes of bodies, without an engine: run by the engines' Python, not by pytest.

    python rendering.py MODEL < question.json > answer.json

``question``: ``{"templates": {name: text or null}, "bodies": {path: {name: body}}, "now": seconds since the epoch}``,
the last of which may be missing: what a template takes for now. ``answer``: template -> path -> name -> ``{"text",
"ids"}``, or null where vLLM refuses or fails. All of it is vLLM's own code, down from the models that its routes read a
body with.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

from transformers.utils import chat_template_utils
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.renderers import hf, renderer_from_config
from vllm.renderers.online_renderer import OnlineRenderer

rendered: list[str] = []
apply = hf.safe_apply_chat_template


def overheard(*arguments: Any, **more: Any) -> Any:
    text = apply(*arguments, **more)
    rendered.append(text)
    return text


def stand_still(now: float) -> None:
    """``strftime_now`` reads this time of the machine's zone from now on."""

    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return cls.fromtimestamp(now, tz)

    chat_template_utils.datetime = Fixed


class Vllm:
    """Renders with one template."""

    def __init__(self, model_config: Any, renderer: Any, template: str | None) -> None:
        self.renderer = OnlineRenderer(
            model_config,
            renderer,
            request_logger=None,
            chat_template=template,
            chat_template_content_format="auto",
            enable_auto_tools=True,
            tool_parser="hermes",
        )
        self.messages = AnthropicServingMessages.__new__(AnthropicServingMessages)  # without an engine
        self.messages.online_renderer = self.renderer
        self.messages.model_config = model_config

    async def render(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        rendered.clear()
        try:
            ids = await self._ids(path, body)
        except Exception as error:
            print(f"{path}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            return None
        return {"text": rendered[-1], "ids": list(ids)}

    async def _ids(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/responses":
            result = await self.renderer.render_responses(ResponsesRequest.model_validate(body))
            return result.engine_input["prompt_token_ids"]
        if path == "/v1/messages":
            request = AnthropicMessagesRequest.model_validate(body)
            chat = self.messages.to_chat_completion_request(
                request,
                merge_inline_system=AnthropicServingMessages._should_merge_inline_system(self.renderer),
                disabled_thinking_effort=await self.messages._probe_disabled_thinking_effort(),
            )
        else:
            chat = ChatCompletionRequest.model_validate(body)
        _, (engine_input,) = await self.renderer.render_chat(chat)
        return engine_input["prompt_token_ids"]


async def main(model: str) -> None:
    hf.safe_apply_chat_template = overheard
    model_config = AsyncEngineArgs(model=model, dtype="float32", max_model_len=4096).create_model_config()
    renderer = renderer_from_config(VllmConfig(model_config=model_config))
    question = json.load(sys.stdin)
    if "now" in question:
        stand_still(question["now"])
    answer: dict[str, Any] = {}
    for name, template in question["templates"].items():
        vllm = Vllm(model_config, renderer, template)
        answer[name] = {
            path: {one: await vllm.render(path, {"model": "m", **body}) for one, body in bodies.items()}
            for path, bodies in question["bodies"].items()
        }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
