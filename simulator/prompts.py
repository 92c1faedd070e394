"""Bodies to prompts: what the engine computes, and how much it may answer. Refuses what vLLM refuses.

A prompt is rendered and encoded as vLLM 0.32 does it: a chat without special tokens, a text with them.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.blocks import MediaItem
from simulator.errors import ApiError, bad_value, invalid, missing, too_long
from simulator.settings import EngineSettings
from simulator.template import TemplateError
from simulator.tokenizer import Words
from simulator.transfer.parameters import Transfer

CHARACTERS_PER_TOKEN = 13
"""A prompt with more characters than that is refused before it is tokenized. vLLM takes its vocabulary's longest
token; 13 is that of the captures'."""

INLINE_CHARACTERS = 4096
"""Longer texts are encoded in a thread: at a megabyte a second they would stop every stream of this process."""

COMPLETION_TOKENS = 16
"""``max_tokens`` of ``/v1/completions`` where none is given, as OpenAI defined it."""

MAX_CHOICES = 16384
"""Answers to one prompt: vLLM's VLLM_MAX_N_SEQUENCES."""

MARK = "\ue000image\ue001"
"""Where an image's tokens go, while a chat is text: ahead of its message's text, as vLLM does for a template that takes
contents as texts."""

SALT_LENGTH = 1024
"""Of a ``cache_salt``."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence that is wanted. ``adapter``: its LoRA; None: the model itself. ``seed``: of the answer's text.

    ``pooling``: no text is wanted, only that the prompt is computed. ``report_hits``: see Job. ``media``: in ``ids``.
    """

    ids: array[int]
    max_tokens: int
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    salt: str | None = None
    adapter: str | None = None
    seed: int = 0
    transfer: Transfer | None = None
    pooling: bool = False
    report_hits: bool = False
    media: tuple[MediaItem, ...] = ()


class Prompts:
    """Reads the prompt-making fields of bodies. Every method raises ApiError for what the client did wrong."""

    def __init__(self, settings: EngineSettings, words: Words) -> None:
        self._settings = settings
        self._words = words

    async def chat(self, body: Mapping[str, Any]) -> array[int]:
        """Token ids of ``messages``."""
        return (await self.chat_with_media(body))[0]

    async def chat_with_media(self, body: Mapping[str, Any]) -> tuple[array[int], tuple[MediaItem, ...]]:
        """Token ids of ``messages``, and the images among them."""
        messages = body.get("messages")
        if messages is None:
            raise missing("messages", body)
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise invalid("list_type", "body.messages", "Input should be a valid list", body)
        if not messages:
            raise ApiError(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
        if any(not isinstance(message.get("role"), str) for message in messages):
            raise invalid("missing", "body.messages.0.role", "Field required", body)
        ready = body.get("kv_transfer_params")
        if isinstance(ready, dict) and ready.get("prompt_token_ids") is not None and _only_text(messages):
            return self._ids(ready["prompt_token_ids"], "kv_transfer_params.prompt_token_ids"), ()
        kwargs = dict(body.get("chat_template_kwargs") or {})
        for field in ("add_generation_prompt", "continue_final_message"):
            kwargs.pop(field, None)  # the body's own field counts, given or not
        if effort := body.get("reasoning_effort"):
            kwargs = {"reasoning_effort": effort, "enable_thinking": effort != "none", **kwargs}
        if documents := body.get("documents"):
            kwargs["documents"] = documents
        generate, go_on = body.get("add_generation_prompt", True), body.get("continue_final_message", False)
        if generate and go_on:
            if "add_generation_prompt" in body:
                raise ApiError(400, "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
            generate = False
        images: list[str] = []
        if self._settings.image_tokens:
            messages = [_marked(message, images) for message in messages]
        try:
            text = self._words.template.render(
                messages,
                tools=_tools(body.get("tools")),
                add_generation_prompt=generate,
                continue_final_message=go_on,
                kwargs=kwargs,
            )
        except TemplateError as error:
            raise ApiError(400, str(error)) from error
        special = bool(body.get("add_special_tokens", False))
        if not images:
            return await self.text(text, special), ()
        ids = array("I")
        media: list[MediaItem] = []
        for part, image in zip(text.split(MARK), [*images, None], strict=True):
            ids += await self.text(part, special and not media)
            if image is not None:
                media.append(MediaItem(len(ids), self._settings.image_tokens, image))
                ids += array("I", [self._words.size - 1]) * self._settings.image_tokens
        return ids, tuple(media)

    async def text(self, text: str, add_special_tokens: bool) -> array[int]:
        limit = self._settings.longest
        if len(text) > limit * CHARACTERS_PER_TOKEN:
            message = (
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {len(text)} "
                f"characters (more than {limit * CHARACTERS_PER_TOKEN} characters, which is the upper bound for {limit}"
                " input tokens). Please reduce the length of the input prompt."
            )
            raise bad_value(message, "input_text", len(text))
        if len(text) <= INLINE_CHARACTERS:
            return array("I", self._words.encode(text, add_special_tokens))
        return array("I", await asyncio.to_thread(self._words.encode, text, add_special_tokens))

    async def several(self, prompt: Any, add_special_tokens: bool, field: str = "prompt") -> list[array[int]]:
        """A string, a list of them, token ids, or a list of those."""
        if isinstance(prompt, str):
            return [await self.text(prompt, add_special_tokens)]
        if isinstance(prompt, list) and prompt:
            if all(isinstance(part, str) for part in prompt):
                return [await self.text(part, add_special_tokens) for part in prompt]
            if all(_is_id(part) for part in prompt):
                return [self._ids(prompt, field)]
            if all(isinstance(part, list) for part in prompt):
                return [self._ids(part, field) for part in prompt]
        raise ApiError(400, f"{field} must be a string, a list of strings, or token ids.", param=field)

    def limit(self, body: Mapping[str, Any], prompt: Sequence[int], default: int | None, *names: str) -> int:
        """Tokens of the answer, from the first of ``names`` that is given; ``default`` None: all that fit."""
        longest = self._settings.longest
        if len(prompt) > longest:
            raise too_long(longest, len(prompt))
        if len(prompt) == longest:
            raise bad_value("max_tokens must be at least 1, got 0.", "max_tokens", 0)
        for name in names:
            wanted = body.get(name)
            if wanted is None:
                continue
            if not isinstance(wanted, int) or isinstance(wanted, bool):
                raise invalid("int_type", f"body.{name}", "Input should be a valid integer", body)
            if wanted < 1:
                raise bad_value(f"{name} must be at least 1, got {wanted}.", name, wanted)
            if wanted > self._settings.max_model_len:
                message = (
                    f"{name}={wanted} cannot be greater than max_model_len={self._settings.max_model_len}. "
                    "Please request fewer output tokens."
                )
                raise bad_value(message, name, wanted)
            return min(wanted, longest - len(prompt))
        return min(default or longest, longest - len(prompt))

    def check(self, body: Mapping[str, Any]) -> None:
        """Sampling parameters that vLLM refuses."""
        temperature = body.get("temperature")
        if isinstance(temperature, int | float) and temperature < 0:
            message = f"temperature must be non-negative, got {float(temperature)}."
            raise bad_value(message, "temperature", float(temperature))
        choices = body.get("n")
        if choices is not None and not (isinstance(choices, int) and 1 <= choices <= MAX_CHOICES):
            raise bad_value(f"n must be in 1..{MAX_CHOICES}, got {str(choices)[:40]}.", "n", str(choices)[:40])
        salt = body.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and 1 <= len(salt) <= SALT_LENGTH):
            message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
            raise ApiError(400, message, param="cache_salt")

    def _ids(self, ids: Any, field: str) -> array[int]:
        if not isinstance(ids, list) or not ids or not all(_is_id(token) for token in ids):
            raise bad_value(f"{field} must be a non-empty list of token ids.", field, "")
        if max(ids) >= self._words.size:
            # vLLM names the field only where it is a hidden one.
            hidden = field if field != "prompt" else None
            where = f" (parameter={hidden})" if hidden else ""
            raise ApiError(400, f"Token id {max(ids)} is out of vocabulary{where}", param=hidden)
        return array("I", ids)


def stops(body: Mapping[str, Any], field: str = "stop") -> tuple[str, ...]:
    """The strings that end an answer."""
    value = body.get(field)
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(text for text in value or () if isinstance(text, str) and text)


def reports_hits(body: Mapping[str, Any]) -> bool:
    """Whether the blocks that are found shall be announced again: ``vllm_xargs.kv_cache_report_mode`` is full."""
    extra = body.get("vllm_xargs")
    return isinstance(extra, dict) and extra.get("kv_cache_report_mode") == "full"


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _marked(message: dict[str, Any], images: list[str]) -> dict[str, Any]:
    """The message with a mark for each of its images, whose identifiers are added to ``images``."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    marks = []
    for part in content:
        if isinstance(part, dict) and "image_url" in part:
            given = part["image_url"]
            url = given.get("url") if isinstance(given, dict) else given
            images.append(str(part.get("uuid") or hashlib.sha256(str(url).encode()).hexdigest()))
            marks.append({"type": "text", "text": MARK})
    return {**message, "content": [*marks, *(part for part in content if "image_url" not in part)]}


def _only_text(messages: list[dict[str, Any]]) -> bool:
    """Whether no part of a message is anything else: an engine renders such messages itself."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                if isinstance(part, dict) and part.get("type", "text") not in ("text", "input_text", "output_text"):
                    return False
    return True


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tools as vLLM's model dumps them: absent fields are null, but for ``strict`` and ``defer_loading``."""
    if not isinstance(tools, list):
        return None
    dumped = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            continue
        fields = {"description": None, "parameters": None, **function}
        kept = {name: fields[name] for name in ("name", "description", "parameters") if name in fields}
        kept |= {name: function[name] for name in ("strict", "defer_loading") if function.get(name) is not None}
        dumped.append({"type": tool.get("type", "function"), "function": kept})
    return dumped
