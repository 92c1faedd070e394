"""Chats in the templates of real families, and in such as use all that a template may: our text is vLLM's.

By its own code, with its own ``transformers``, without an engine (``rendering.py``), and by an engine's ``/tokenize``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.parse import parse
from gateway.api.routes import find
from gateway.api.settings import PassThroughSettings
from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import ChatInput
from gateway.tokens.encode import Encoder
from gateway.tokens.loading import load
from gateway.tokens.reasons import Unrenderable
from gateway.tokens.render import Renderer
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tokenizer import ModelTokens
from tests.engines.chats import CHATS, TEMPLATES, Body
from tests.engines.conftest import Ask
from tests.engines.engine import MAX_MODEL_LEN, SERVED_NAME, Engine
from tests.tokens.family_chats import FAMILY_CHATS, FAMILY_TEMPLATES

PATH = "/v1/chat/completions"
NOW = 1_700_049_600.0
"""15 November 2023, 12:00 UTC."""

WORDS: dict[str, str] = {
    "generation": (
        "{% for m in messages %}{% set a = 'out' %}{% generation %}{{ m.role }}{% set a = 'in' %}{{ a }}"
        "{% endgeneration %}{{ a }}{{ m.content }}{% endfor %}"
    ),
    "loop controls": (
        "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% elif loop.index > 3 %}{% break %}{% endif %}"
        "[{{ m.role }}:{{ m.content }}{{ loop.last }}]{% endfor %}"
    ),
    "tojson": (
        "{{ messages | tojson }}{{ tools | tojson(indent=2) }}{{ tools | tojson(indent=1, sort_keys=true) }}"
        "{{ messages | tojson(ensure_ascii=true) }}{{ documents | tojson(separators=(',', ':')) }}"
        "{{ messages[0] | tojson(ensure_ascii=False, separators=(' , ', ' : '), sort_keys=True, indent='\\t') }}"
    ),
    # What a message has beside its text differs between versions of the library.
    "whole messages": "{% for m in messages %}{{ m | tojson }}{{ m }}{% endfor %}{# 'developer' #}",
    "date": "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%A %H:%M:%S %j') }}{{ messages[0].content }}",
    "refusal": "{% if messages | length > 1 %}{{ raise_exception('too long') }}{% endif %}{{ messages[0].content }}",
    "blocks": "  {% if messages %}\n  a \n\t{% endif %}\n{#- no -#}\n {{ messages[0].content }} \n\n",
    "arguments": (
        "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}{{ continue_final_message }}{{ enable_thinking }}"
        "{{ reasoning_effort }}{{ documents }}{{ tools }}{{ messages[-1].content }}"
    ),
    "objects": (
        "{% set ns = namespace(n=0, last=none) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.last = m %}"
        "{% endfor %}{{ ns.n }}{{ ns.last.role }}{{ dict(a=ns.n, b=2) }}{{ dict.fromkeys(['x'], ns.n) }}"
        "{{ messages[0].items() | list }}{{ messages[0].get('content') }}{{ messages[0].keys() | join(',') }}"
        "{{ range(3) | list }}{{ messages | map(attribute='role') | unique | join }}{{ '{:>4}'.format(ns.n) }}"
    ),
    "recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}{{ messages[0].content }}",
    "change": "{{ messages.append(messages[0]) }}{{ messages[-1].content }}",
}
"""Templates by what they use of the environment."""
ALL = {**FAMILY_TEMPLATES, **TEMPLATES, **{f"its {name}": template for name, template in WORDS.items()}}
BODIES = {**{f"family: {name}": body for name, body in FAMILY_CHATS.items()}, **CHATS}
NEVER = frozenset({"its recursion", "its change"})
"""Those that fail whatever the chat is."""
NOT_TOKENIZED = frozenset({"documents", "reasoning_effort"})
"""Fields that ``/tokenize`` does not know."""


def chat_of(body: Body) -> ChatInput:
    raw = json.dumps({"model": SERVED_NAME, **body}).encode()
    chat = parse(find("POST", PATH), raw, "application/json", PassThroughSettings()).input
    assert isinstance(chat, ChatInput)
    return chat


@pytest.fixture(scope="module")
def theirs(ask_vllm: Ask, model_folder: Path) -> dict[str, Any]:
    """Template -> name of the chat -> what ``rendering.py`` says."""
    answer = ask_vllm("rendering.py", {"templates": ALL, "bodies": {PATH: BODIES}, "now": NOW}, model_folder)
    return {template: paths[PATH] for template, paths in answer.items()}


@pytest.mark.parametrize("template", ALL)
def test_texts_and_ids_are_vllms(theirs: dict[str, Any], model_folder: Path, template: str) -> None:
    settings = TokenSettings(tokenizer=str(model_folder))
    loaded = replace(load(settings, "m"), template=ALL[template])
    renderer, encoder = Renderer(loaded, settings, ManualClock(epoch=NOW)), Encoder(loaded.tokenizer, "m")
    different: dict[str, Any] = {}
    rendered = 0
    for name, body in BODIES.items():
        chat, made = chat_of(body), None
        try:
            text = renderer.render(chat)
        except Unrenderable:
            pass
        else:
            (ids,) = encoder.encode([text], add_special_tokens=chat.add_special_tokens)
            made = {"text": text, "ids": ids.tolist()}
            if len(ids) > MAX_MODEL_LEN:
                continue  # vLLM refuses it when it has rendered it
        if made != theirs[template][name]:
            different[name] = made, theirs[template][name]
        rendered += made is not None
    assert different == {}
    assert rendered == 0 if template in NEVER else rendered > 20


@pytest.mark.parametrize("family", FAMILY_TEMPLATES)
async def test_ids_are_those_of_an_engines_tokenize(
    started_engines: list[Engine], model_folder: Path, tmp_path: Path, family: str
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(FAMILY_TEMPLATES[family])
    settings = TokenSettings(tokenizer=str(model_folder), chat_template=str(file))
    tokens = ModelTokens(settings, SERVED_NAME, NULL_OBSERVER)
    await tokens.load()
    same = 0
    async with httpx.AsyncClient(base_url=started_engines[0].url, timeout=60.0) as client:
        for name, body in FAMILY_CHATS.items():
            if not NOT_TOKENIZED.isdisjoint(body):
                continue
            prompt = await tokens.tokenize(chat_of(body))
            # A connection each: vLLM closes those on which it has failed.
            answer = await client.post(
                "/tokenize",
                json={"model": SERVED_NAME, "chat_template": FAMILY_TEMPLATES[family], **body},
                headers={"Connection": "close"},
            )
            assert prompt.exact == (answer.status_code == 200), (name, prompt.why, answer.text)
            if prompt.exact:
                assert prompt.ids.tolist() == answer.json()["tokens"], name
                same += 1
    await tokens.close()
    assert same >= 7
