"""Parity on live traffic, by real engines: never lost where tokenizer and template are theirs, soon where they are not.

The engines are started without ``--enable-scale-out``: their render routes refuse, and ``/tokenize`` is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.tokens.agreement import LEAST
from gateway.tokens.settings import ParitySettings
from tests.engines.chats import CHATS
from tests.engines.engine import Engine
from tests.support.gateway import Running, config_for, running
from tests.support.wait import eventually

EVERY = ParitySettings(sample=1.0)
PLAIN = {"messages": [{"role": "user", "content": "What is the weather in Paris today?"}]}

COUNTS, IDS = "kvgate_token_count_mismatches_total", "kvgate_token_id_mismatches_total"


async def ask(gateway: Running, body: dict[str, Any]) -> None:
    """Send one chat, and wait for what is compared behind its answer."""
    count = len(gateway.lines)
    answer = await gateway.client.post("/v1/chat/completions", json={"model": "sim", "max_tokens": 1, **body})
    answer.raise_for_status()
    await eventually(lambda: len(gateway.lines) > count, "it is settled")
    await eventually(lambda: not gateway.gateway.rooms.token_audit.busy, "its ids are compared", within=60)


def counted(metrics: str, name: str) -> float:
    found = [line for line in metrics.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


async def tokens(gateway: Running) -> str:
    return str((await gateway.client.get("/readyz")).json()["models"]["sim"]["tokens"])


async def test_every_kind_of_chat_agrees(engine: Engine, model_folder: Path) -> None:
    async with running(config_for(engine.url, tokenizer=str(model_folder), parity=EVERY)) as gateway:
        differ, before = {}, (0.0, 0.0)
        for name, body in CHATS.items():
            await ask(gateway, dict(body))
            metrics = await gateway.metrics()
            after = counted(metrics, COUNTS), counted(metrics, IDS)
            if after != before:
                differ[name], before = after, after
        assert not differ, "(different counts, different ids) so far, by the chat that added to them"
        exact = sum(line.exact for line in gateway.lines)
        share = round(100 * exact / len(gateway.lines))
        assert (await tokens(gateway)).startswith("exact" if share == 100 else f"exact for {share} % of prompts")
    assert exact > len(CHATS) / 2
    assert counted(metrics, "kvgate_token_counts_compared_total") >= exact
    assert counted(metrics, "kvgate_token_ids_compared_total") > len(CHATS) / 2


async def test_another_template_is_noticed(engine: Engine, model_folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}")
    config = config_for(engine.url, tokenizer=str(model_folder), chat_template=str(template))
    async with running(config) as gateway:
        for _ in range(LEAST + 1):
            await ask(gateway, PLAIN)
        assert not gateway.lines[-1].exact
        assert "it counted other tokens" in await tokens(gateway)
