"""Whether a request must be served by one endpoint, prefill and decode, judged by the client's JSON alone.

Rules: what is harmless is listed, anything else counts. An engine may accept ``"n": "2"`` or ``"echo": 1`` where we do
not, and to keep a request whole is never wrong. So nothing here raises: malformed fields are the engine's to judge.
Checked against the protocol of vLLM 0.32 (``entrypoints/openai``, ``entrypoints/anthropic``).
"""

from __future__ import annotations

import msgspec

from gateway.api.field_filter import Fields
from gateway.api.prompts import FALSE, NULL
from gateway.core.prompt import PromptInput, TextInput, TokenInput
from gateway.framework import Kind

ONE = msgspec.Raw(b"1")
DISABLED = msgspec.Raw(b'"disabled"')

FIELDS: tuple[tuple[str, str, tuple[msgspec.Raw, ...]], ...] = (
    # The first sequence to fetch the KV causes the prefill engine to free it: the others would read other data.
    ("n", "n", (NULL, ONE)),
    ("best_of", "n", (NULL, ONE)),
    # Beam search makes many requests inside the engine, and each would fetch with the same parameters.
    ("use_beam_search", "beam-search", (NULL, FALSE)),
    # They need the logits of all prompt tokens, which an engine that fetched their KV has never computed.
    ("echo", "echo", (NULL, FALSE)),
    ("prompt_logprobs", "prompt-logprobs", (NULL,)),
    # -1 truncates to the context minus the output limit. The prefill leg has a limit of one token, so it would keep
    # other tokens, and compute other KV.
    ("truncate_prompt_tokens", "truncation", (NULL,)),
    # Its length in tokens does not follow from its bytes. Together with ``prompt`` vLLM makes several prompts.
    ("prompt_embeds", "prompt-embeds", (NULL,)),
)
"""Field, reason, and the values with which the request may still be split."""

CHAT_FIELDS = frozenset(name for name, _, _ in FIELDS)
"""All that may make a chat indivisible: a chat without any of them is not."""

RESPONSES_FIELDS: tuple[tuple[str, str, tuple[msgspec.Raw, ...]], ...] = (
    # They read or write state that is in one engine's memory.
    ("background", "background", (NULL, FALSE)),
    ("previous_response_id", "previous-response", (NULL,)),
    ("truncation", "truncation", (NULL, DISABLED)),
)
"""The same for ``/v1/responses``."""


class _Tool(msgspec.Struct):
    type: str


_TOOLS = msgspec.json.Decoder(list[_Tool] | None)


def indivisible(kind: Kind, fields: Fields, prompt: PromptInput) -> str:
    """A short word for why the request must not be split; empty if it may be."""
    rules = (*FIELDS, *RESPONSES_FIELDS) if kind is Kind.RESPONSES else FIELDS
    for name, word, harmless in rules:
        if name in fields and fields[name] not in harmless:
            return word
    if kind is Kind.COMPLETION and _count(prompt) > 1:
        return "several-prompts"
    if kind is Kind.RESPONSES and "tools" in fields and not _only_functions(fields["tools"]):
        return "server-tools"
    return ""


def _count(prompt: PromptInput) -> int:
    if isinstance(prompt, TextInput):
        return len(prompt.texts)
    return len(prompt.ids) if isinstance(prompt, TokenInput) else 1


def _only_functions(tools: msgspec.Raw) -> bool:
    """Whether all tools are functions. An engine calls any other tool itself and continues with a longer prompt under
    the same parameters: it would fetch KV a second time that was freed after the first."""
    try:
        return all(tool.type == "function" for tool in _TOOLS.decode(tools) or ())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
