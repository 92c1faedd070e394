"""Tokenizes with mistral-common, for models that vLLM tokenizes with it (``tekken.json``, ``tokenizer.model.v3``).

Source: ``vllm/tokenizers/mistral.py`` and ``vllm/renderers/mistral.py`` of vLLM 0.32.0. vLLM uses the mistral-common
backend of ``transformers``, in that library's test mode. Nothing is cached between turns.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from gateway.core.prompt import ChatInput
from gateway.tokens.native import refuse_converted
from gateway.tokens.reasons import Unrenderable, Why
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tools import dump_tools

ID_LENGTH = 9
"""Characters of a tool call's id that the format takes; vLLM keeps the last ones."""

CALLS_VERSION = 3
"""Version of the tokenizer from which its chats keep the calls and results before the last question."""

EFFORT_VERSION = 15
"""Version of the tokenizer from which its chats know a reasoning effort."""


class Mistral:
    """The tokenizer that ``settings`` name."""

    texts = True

    def __init__(self, settings: TokenSettings) -> None:
        from mistral_common.protocol.instruct.validator import ValidationMode
        from transformers.tokenization_mistral_common import MistralCommonBackend

        self._backend: Any = MistralCommonBackend.from_pretrained(
            settings.tokenizer or "", mode=ValidationMode.test, revision=settings.revision or "main"
        )
        self._tokenizer: Any = self._backend.tokenizer.instruct_tokenizer.tokenizer
        self._version = int(str(self._tokenizer.version.value).split("v")[-1])
        self.longest_token = max(map(len, self._tokenizer.vocab()))

    def chat(self, chat: ChatInput, most: int) -> array[int]:
        refuse_converted(chat)
        if chat.template_kwargs:
            raise Unrenderable(Why.TEMPLATE_KWARGS)  # vLLM refuses them
        messages = [_message(one) for one in chat.messages]
        _check_end(messages, chat)
        if sum(map(self._characters, messages)) > most:
            raise Unrenderable(Why.TOO_LONG)
        more = {"reasoning_effort": chat.reasoning_effort} if self._version >= EFFORT_VERSION else {}
        try:
            ids = self._backend.apply_chat_template(
                conversation=messages,
                tools=None if chat.tools is None else dump_tools(chat.tools),
                continue_final_message=chat.continue_final_message,
                tokenize=True,
                padding=False,
                truncation=False,
                max_length=None,
                return_tensors=None,
                return_dict=False,
                **more,
            )
        except Exception as error:  # the library refuses chats with asserts; vLLM answers 400 to all
            raise Unrenderable(Why.TEMPLATE_ERROR) from error
        return array("I", ids)

    def _characters(self, message: Mapping[str, Any]) -> int:
        """Characters of its content, which is encoded unchanged. Tool calls are not counted, as the library rewrites
        them."""
        if self._version < CALLS_VERSION and (message.get("role") == "tool" or message.get("tool_calls")):
            return 0
        content = message.get("content")
        texts = [_text(part) for part in content] if isinstance(content, list) else [content]
        return sum(len(text) for text in texts if isinstance(text, str))

    def text(self, text: str, *, add_special_tokens: bool) -> array[int]:
        return array("I", self._backend(text, add_special_tokens=add_special_tokens)["input_ids"])


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as vLLM passes it on: ids of tool calls are shortened, and an assistant always has ``tool_calls``."""
    out = dict(message)
    if out.get("role") == "assistant":
        calls = out.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
            raise Unrenderable(Why.MESSAGES)
        out["tool_calls"] = [_call(call) for call in calls]
    elif out.get("role") in ("tool", "tool_results") and isinstance(out.get("tool_call_id"), str):
        out["tool_call_id"] = out["tool_call_id"][-ID_LENGTH:]
    return out


def _text(part: Any) -> Any:
    return part.get("text") if isinstance(part, Mapping) else None


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    name = call.get("id")
    if not isinstance(name, str):
        raise Unrenderable(Why.MESSAGES)
    return {**call, "id": name[-ID_LENGTH:]}


def _check_end(messages: list[dict[str, Any]], chat: ChatInput) -> None:
    """Raises Unrenderable if vLLM refuses the last message's role."""
    answered = bool(messages) and messages[-1].get("role") == "assistant"
    wrong = chat.add_generation_prompt if answered else chat.continue_final_message
    if not messages or wrong or (chat.add_generation_prompt and chat.continue_final_message):
        raise Unrenderable(Why.TEMPLATE_ERROR)
