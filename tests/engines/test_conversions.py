"""Responses and Anthropic's messages become the ids that vLLM's own code makes of them; no engine runs for that.

The texts that it rendered are kept in ``tests/data/tokens``, for tests without vLLM. To write them anew:
``KVGATE_WRITE_CONVERSIONS=1 pytest tests/engines/test_conversions.py``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.api.parse import parse
from gateway.api.routes import find
from gateway.api.settings import PassThroughSettings
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import Prompt
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tokenizer import ModelTokens
from tests.engines.conftest import Ask
from tests.engines.conversions import MESSAGES, RESPONSES, TEMPLATES, Body

KEPT = Path(__file__).parents[1] / "data" / "tokens" / "conversions.json"
BODIES = {"/v1/responses": RESPONSES, "/v1/messages": MESSAGES}

NOT_KNOWN = {
    "/v1/responses": {"truncation", "null truncation", "additional tools"},
    "/v1/messages": {"call without an id"},
}
"""What vLLM takes and we only estimate: its length is the engine's to choose, or the time of day is in it; or nobody
sends it."""


@pytest.fixture(scope="session")
def theirs(ask_vllm: Ask, model_folder: Path) -> dict[str, Any]:
    """Template -> path -> name -> what ``rendering.py`` says."""
    return dict(ask_vllm("rendering.py", {"templates": TEMPLATES, "bodies": BODIES}, model_folder))


async def ours(tokens: ModelTokens, path: str, body: Body) -> Prompt:
    raw = json.dumps({"model": "m", **body}).encode()
    return await tokens.tokenize(parse(find("POST", path), raw, "application/json", PassThroughSettings()).input)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("template", TEMPLATES)
async def test_the_ids_are_vllms(
    theirs: dict[str, Any], model_folder: Path, tmp_path: Path, template: str, path: str
) -> None:
    given = TEMPLATES[template]
    file = tmp_path / "template.jinja"
    file.write_text(given or "")
    tokens = ModelTokens(
        TokenSettings(tokenizer=str(model_folder), chat_template=str(file) if given else None), "m", NULL_OBSERVER
    )
    await tokens.load()
    wrong = {}
    estimated = set()
    for name, body in BODIES[path].items():
        answer = theirs[template][path][name]
        prompt = await ours(tokens, path, body)
        if answer is None:
            continue  # what an engine refuses has no ids
        if not prompt.exact:
            estimated.add(name)
        elif prompt.ids.tolist() != answer["ids"]:
            wrong[name] = answer["text"]
    await tokens.close()
    assert wrong == {}
    assert estimated == {name for name in NOT_KNOWN[path] if theirs[template][path][name] is not None}


def test_the_texts_that_are_kept_are_vllms(theirs: dict[str, Any]) -> None:
    texts = {
        template: {
            path: {
                name: None if answer is None or name in NOT_KNOWN[path] else answer["text"]
                for name, answer in answers.items()
            }
            for path, answers in paths.items()
        }
        for template, paths in theirs.items()
        if TEMPLATES[template] is not None
    }
    if os.environ.get("KVGATE_WRITE_CONVERSIONS"):
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n")
    assert json.loads(KEPT.read_text()) == texts
