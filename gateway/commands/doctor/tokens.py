"""Checks whether the engine tokenizes three prompts to the same ids as we do.

The prompts are a plain text, a chat with a system message, and a chat with a tool. If the text fits and a chat does
not, the chat templates differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Any

import orjson

from gateway.commands.doctor.finding import Finding, Level
from gateway.commands.interview import Interview
from gateway.core.prompt import ChatInput, PromptInput, TextInput, joined
from gateway.fleet.engine_client import ProbeFailed
from gateway.tokens.agreement import Form
from gateway.tokens.tokenizer import ModelTokens

CHECK = "tokens"

TEXT = "Kind words: caf\u00e9, \u65e5\u672c\u8a9e, na\u00efve \U0001f600\n\tdef f(x): return x ** 2  # 3.14159"
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "What is the capital of \u00d6sterreich?"},
]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt to compare. ``name``: completes "of a ..."."""

    name: str
    form: Form
    body: dict[str, Any]
    ours: PromptInput


def _chat(**fields: Any) -> ChatInput:
    return ChatInput(messages=CHAT, raw=orjson.dumps(CHAT), **fields)


PROBES = (
    Probe("plain text", Form.TEXT, {"prompt": TEXT}, TextInput((TEXT,))),
    Probe("chat", Form.CHAT, {"messages": CHAT}, _chat()),
    Probe("chat with a tool", Form.CHAT, {"messages": CHAT, "tools": [TOOL]}, _chat(tools=[TOOL])),
)


async def compare(engine: Interview, name: str, root: str | None, tokens: ModelTokens, ours: str | None) -> Finding:
    """Compare the ids. ``name``: the engine's name of the model. ``root``: its path there. ``ours``: our tokenizer."""
    if ours is None:
        said = "the model has no tokenizer here, so that its prompts are estimated and hits cannot be predicted exactly"
        remedy = f"set tokenizer to the engine's: {root or 'the folder or hub id that it was started with'}"
        return Finding(CHECK, Level.WARNING, "none", said, remedy)
    compared: list[str] = []
    for probe in PROBES:
        prompt = await tokens.tokenize(probe.ours)
        if prompt.own is None:
            if probe is PROBES[0]:
                return _not_ours(prompt.why, tokens)
            continue
        if probe.form is Form.CHAT and not tokens.tokenize_agrees:
            continue
        try:
            answer = await engine.post_json("/tokenize", {"model": name, **probe.body})
        except ProbeFailed as failure:
            if failure.reason == "status-400":
                continue  # the template refuses it, as ours did, or supports no tools
            said = f"it does not report its token ids: POST /tokenize gave {failure.reason}"
            remedy = "let requests to /tokenize through to it, or watch kvgate_token_parity"
            return Finding(CHECK, Level.WARNING, failure.reason, said, remedy)
        theirs = answer.get("tokens") if isinstance(answer, dict) else None
        own = joined(prompt.own).tolist()
        if own != theirs:
            return _different(probe, own, theirs if isinstance(theirs, list) else [], root, ours)
        compared.append(probe.name)
    if len(compared) < 2:
        return _text_only(tokens)
    return Finding(CHECK, Level.OK, f"equal ({len(compared)})")


def _not_ours(why: str, tokens: ModelTokens) -> Finding:
    """The finding where texts cannot be tokenized here."""
    obstacle = tokens.obstacles.get(Form.TEXT)
    if obstacle is None:
        said, remedy = f"its prompts are estimated here: {why}", "see the gateway's log"
    else:
        said, remedy = f"its prompts cannot be tokenized here: {obstacle.said}", obstacle.remedy
    return Finding(CHECK, Level.WARNING, "estimated", said, remedy)


def _text_only(tokens: ModelTokens) -> Finding:
    """The finding where texts are equal and no chat could be compared."""
    obstacle = tokens.obstacles.get(Form.CHAT)
    if obstacle is not None:
        if obstacle.engine_knows and tokens.asks_engines:
            said = f"its chats are not tokenized here, their ids are requested from the engines: {obstacle.said}"
            return Finding(CHECK, Level.NOTE, "text; chats asked", said)
        said = f"its chats are estimated here: {obstacle.said}"
        return Finding(CHECK, Level.WARNING, "text only", said, obstacle.remedy)
    if not tokens.tokenize_agrees:
        said = (
            "its chats are tokenized here, and cannot be compared: its /tokenize does not render them as it serves them"
        )
        return Finding(CHECK, Level.NOTE, "text only", said, "watch kvgate_token_parity")
    said = "its chats could not be compared: its template, or ours, refuses a chat with a system message"
    remedy = "compare chat_template with the engine's --chat-template"
    return Finding(CHECK, Level.WARNING, "text only", said, remedy)


def _different(probe: Probe, ours: Sequence[int], theirs: Sequence[int], root: str | None, path: str) -> Finding:
    place = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        place = min(len(ours), len(theirs))
    where = f"from token {place} on ({_some(ours, place)}, not {_some(theirs, place)}); {len(ours)}, not {len(theirs)}"
    engines = f"the engine's model is {root}" if root else "see the engine's --model and --tokenizer"
    if probe is PROBES[0]:
        said = f"its tokenizer is another than ours: the ids of a {probe.name} differ {where} in all"
        remedy = f"set tokenizer (now {path}) to what the engine was started with: {engines}"
    else:
        said = (
            f"its chat template is another than ours: ids of a text are equal, of a {probe.name} differ {where} in all"
        )
        remedy = (
            "set chat_template, chat_template_kwargs and content_format as the engine's --chat-template, "
            f"--default-chat-template-kwargs and --chat-template-content-format; our tokenizer is {path}, {engines}"
        )
    return Finding(CHECK, Level.FAILED, "differ", said, remedy)


def _some(ids: Sequence[int], place: int) -> str:
    return ", ".join(map(str, ids[place : place + 3])) or "the end"


def words(unique: str, count: int) -> Iterator[str]:
    """At least ``count`` words of a token or two each, of which the first is ``unique``."""
    return chain((unique,), islice(cycle(("one", "two", "three", "four", "five", "six")), count))
