"""Responses and Anthropic's messages are rendered to the texts that vLLM 0.32.0 rendered; ``tests/engines`` kept them.

There the same bodies are held against vLLM's own code, ids and all; here no vLLM is needed.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gateway.api.prompts import READERS
from gateway.core.prompt import ChatInput
from gateway.framework import Kind
from gateway.tokens.loading import load
from gateway.tokens.render import Renderer
from gateway.tokens.settings import TokenSettings
from tests.engines.conversions import MESSAGES, RESPONSES, TEMPLATES, Body

KEPT = json.loads((Path(__file__).parents[1] / "data" / "tokens" / "conversions.json").read_text())
KINDS = {"/v1/responses": (Kind.RESPONSES, RESPONSES), "/v1/messages": (Kind.MESSAGES, MESSAGES)}


def read(kind: Kind, body: Body) -> ChatInput | None:
    """None where the prompt is not known."""
    given = READERS[kind](msgspec.json.decode(json.dumps(body), type=dict[str, msgspec.Raw]))
    return given if isinstance(given, ChatInput) and not given.truncated else None


@pytest.mark.parametrize("template", KEPT)
@pytest.mark.parametrize("path", KINDS)
def test_the_texts_are_vllms(folder: Path, tmp_path: Path, template: str, path: str) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(str(TEMPLATES[template]))
    settings = TokenSettings(tokenizer=str(folder), chat_template=str(file))
    renderer = Renderer(load(settings, "m"), settings)
    kind, bodies = KINDS[path]
    kept = KEPT[template][path]
    assert set(kept) == set(bodies)
    compared = 0
    for name, body in bodies.items():
        chat = read(kind, body)
        if chat is not None and kept[name] is not None:
            assert (name, renderer.render(chat)) == (name, kept[name])
            compared += 1
    assert compared > 50
