"""Covers: gateway/commands/doctor/diagnose.py, gateway/commands/doctor/examine.py, gateway/commands/doctor/caches.py,
gateway/commands/doctor/events.py, gateway/commands/doctor/tokens.py.

The doctor on simulated engines: what is well is green, and what is not has the right words.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.commands.doctor.diagnose import as_json, diagnose
from gateway.commands.doctor.finding import CHECKS, Finding, Level, Report, healthy
from gateway.config.load import loads
from gateway.tokens.families import Family
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from simulator.tokenizer import build_tokenizer
from tests.kvcache.conftest import ScriptedPublisher
from tests.kvcache.conftest import engine as engine
from tests.support.engines import simulated
from tests.support.tls import Authority
from tests.support.wire import Connection, ScriptedServer, answer, header_in


def config(tokenizer: str | None, *endpoints: Any, **model: Any) -> str:
    given = [one if isinstance(one, dict) else {"url": one} for one in endpoints]
    named = {"name": "sim", "tokenizer": tokenizer, "endpoints": given}
    return json.dumps({"models": [named | model]})


async def reports(text: str, timeout: float = 30.0) -> tuple[list[Report], dict[str, list[str]]]:
    gateway = Gateway(loads(text, {}))
    try:
        await gateway.load()
        return await diagnose(gateway, timeout=timeout)
    finally:
        await gateway.close()


async def test_engines_behind_tls_and_on_a_unix_socket(tokenizer: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = EngineSettings(tokenizer=str(tokenizer))
    secure, local = EngineServer(settings), EngineServer(settings)
    await secure.start(tls=authority.serving())
    await local.start(path=f"{tmp_path}/engine.sock")
    try:
        believed = {"url": secure.url, "tls": {"ca": authority.file}}
        found, _ = await reports(config(tokenizer, believed, local.url))
        assert [one.endpoint for one in found] == [f"127.0.0.1:{secure.port}", f"unix:{tmp_path}/engine.sock"]
        assert healthy(found)
        assert [one.of("events").level for one in found] == [Level.OK] * 2
        strange = await report(config(tokenizer, {"url": secure.url}))
        (finding,) = strange.findings
        assert finding.short == "tls"
        assert finding.said.startswith("it cannot be reached: tls, certificate verify failed: ")
        await local.kill()
        assert (await report(config(tokenizer, local.url))).findings[0].short == "refused"
    finally:
        await secure.close()
        await local.close()


async def report(text: str) -> Report:
    ((one,), _) = await reports(text)
    return one


def failed(report: Report) -> Finding:
    """The only thing that is red."""
    (finding,) = [one for one in report.findings if one.level is Level.FAILED]
    assert finding.said
    assert finding.remedy, "a red line says what to do"
    return finding


async def test_a_sound_engine_is_green(tokenizer: str) -> None:
    async with simulated(tokenizer=tokenizer) as server:
        found = await report(config(tokenizer, server.url))
        assert found.level < Level.WARNING, found.findings
        assert {one.check: one.short for one in found.findings} == {
            "reachable": "0.32.0",
            "model": "sim",
            "block size": "16",
            "events": "live",
            "replay": "yes",
            "last event": "none yet",
            "tokens": "equal (3)",
            "hashes": "unknown",  # the simulator's are its own
            "usage": "hits",
            "transfer": "both, NixlConnector",
        }
        posted = [one.path for one in server.received if one.method == "POST"]
        assert posted == ["/tokenize"] * 3 + ["/v1/completions"], "no more than a few tiny requests"
        completion = json.loads(server.received[-1].body)
        assert completion["max_tokens"] == 1
        again = await report(config(tokenizer, server.url))
        assert (last := again.of("last event")) is not None
        assert last.short.endswith("s ago")


@pytest.mark.parametrize("form", [{"bytes_hashes": True}, {"positional_events": True}, {"block_size": 64}])
async def test_it_reads_events_in_every_form(tokenizer: str, form: dict[str, Any]) -> None:
    async with simulated(tokenizer=tokenizer, **form) as server:
        assert (await report(config(tokenizer, server.url))).level < Level.WARNING


async def test_every_rank_is_probed(tokenizer: str) -> None:
    async with simulated(tokenizer=tokenizer, ranks=3) as server:
        found = await report(config(tokenizer, server.url))
        assert [one.rank for one in found.findings if one.check == "events" and one.short == "live"] == [0, 1, 2]
        sent = [one.headers["x-data-parallel-rank"] for one in server.received if one.path == "/v1/completions"]
        assert sorted(sent) == ["0", "1", "2"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never comes is waited for half a second, not five. For tests in which nothing comes, however slow the
    machine."""
    for name in ("CONNECT", "ANNOUNCE", "REPLAY"):
        monkeypatch.setattr(f"gateway.commands.doctor.events.{name}", 0.5)


class TestWhatIsRed:
    async def test_events_are_off(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, kv_events=False) as server:
            finding = failed(await report(config(tokenizer, server.url)))
        assert (finding.check, finding.short) == ("events", "off")
        assert "its KV events are off" in finding.said
        assert "--kv-events-config" in finding.remedy

    async def test_the_tokenizer_is_anothers(self, tokenizer: str, tmp_path: Path) -> None:
        other = build_tokenizer(tmp_path / "other", vocabulary=512)
        async with simulated(tokenizer=str(other)) as server:
            finding = failed(await report(config(tokenizer, server.url)))
        assert finding.check == "tokens"
        assert "its tokenizer is another than ours" in finding.said
        assert tokenizer in finding.remedy
        assert str(other) in finding.remedy

    async def test_the_template_is_anothers(self, tokenizer: str, tmp_path: Path) -> None:
        template = tmp_path / "template.jinja"
        template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
        async with simulated(tokenizer=tokenizer) as server:
            finding = failed(await report(config(tokenizer, server.url, chat_template=str(template))))
        assert "its chat template is another than ours" in finding.said
        assert "--chat-template" in finding.remedy

    async def test_only_how_tools_are_printed_differs(self, tokenizer: str, tmp_path: Path) -> None:
        template = tmp_path / "template.jinja"
        template.write_text(
            (Path(tokenizer) / "chat_template.jinja").read_text().replace("You may call", "You can call")
        )
        async with simulated(tokenizer=tokenizer) as server:
            finding = failed(await report(config(tokenizer, server.url, chat_template=str(template))))
        assert "of a chat with a tool" in finding.said

    async def test_the_configured_block_size_lies(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, block_size=32) as server:
            finding = failed(await report(config(tokenizer, server.url, kv_cache={"block_size": 48})))
        assert finding.check == "block size"
        assert "kv_cache.block_size is 48, and its blocks have 32 tokens" in finding.said

    async def test_a_unit_that_divides_it_does_not(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, block_size=32) as server:
            assert healthy([await report(config(tokenizer, server.url, kv_cache={"block_size": 16}))])

    async def test_the_metrics_lie(self, tokenizer: str) -> None:
        async with (
            simulated(tokenizer=tokenizer, block_size=32) as server,
            between(server.url, b'block_size="32"', b'block_size="16"') as url,
        ):
            finding = failed(await report(config(tokenizer, url)))
        assert finding.check == "block size"
        assert "its metrics say that a block has 16 tokens, and its events 32" in finding.said

    @pytest.mark.usefixtures("impatient")
    async def test_the_events_are_another_engines(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer) as server, simulated(tokenizer=tokenizer) as other:
            kv_events = {"endpoint": other.kv_endpoint, "replay": other.kv_replay}
            finding = failed(await report(config(tokenizer, {"url": server.url, "kv_events": kv_events})))
        assert finding.check == "events"
        assert "announced nothing at" in finding.said

    async def test_the_events_are_another_engines_that_is_busy(
        self, tokenizer: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The other's events are there before the probe's answer: the wait is for those that never come.
        monkeypatch.setattr("gateway.commands.doctor.events.ANNOUNCE", 2.0)
        async with (
            simulated(tokenizer=tokenizer) as server,
            simulated(tokenizer=tokenizer) as other,
            httpx.AsyncClient(trust_env=False, verify=False) as client,
        ):
            body = {"model": "sim", "prompt": "someone else's " * 20, "max_tokens": 1}

            async def busy() -> None:
                await client.post(f"{other.url}/v1/completions", json=body)

            kv_events = {"endpoint": other.kv_endpoint, "replay": other.kv_replay}
            async with between(server.url, hook=busy) as url:
                finding = failed(await report(config(tokenizer, {"url": url, "kv_events": kv_events})))
        assert "they are another engine's" in finding.said

    @pytest.mark.usefixtures("impatient")
    async def test_nobody_publishes_there(self, tokenizer: str, tmp_path: Path) -> None:
        kv_events = {"endpoint": f"ipc://{tmp_path}/nothing"}
        async with simulated(tokenizer=tokenizer) as server:
            finding = failed(await report(config(tokenizer, {"url": server.url, "kv_events": kv_events})))
        assert "cannot be connected to" in finding.said

    async def test_the_replay_socket_does_not_answer(
        self, tokenizer: str, engine: ScriptedPublisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.commands.doctor.events.REPLAY", 0.5)  # nothing comes, however slow the machine
        engine.deaf = True
        async with simulated(tokenizer=tokenizer) as server:
            kv_events = {"endpoint": server.kv_endpoint, "replay": engine.replay}
            finding = failed(await report(config(tokenizer, {"url": server.url, "kv_events": kv_events})))
        assert finding.check == "replay"
        assert engine.replay in finding.said

    async def test_it_serves_another_model(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, served_name="llama") as server:
            finding = failed(await report(config(tokenizer, server.url, served_name="qwen")))
            assert all(one.method == "GET" for one in server.received), "another model's engine is not probed"
        assert "it does not serve 'qwen', but llama" in finding.said

    async def test_it_wants_a_key(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, api_key="secret") as server:
            finding = failed(await report(config(tokenizer, server.url)))
            assert "--api-key" in finding.remedy
            assert healthy([await report(config(tokenizer, {"url": server.url, "api_key": "secret"}))])

    async def test_nothing_is_there(self, tokenizer: str) -> None:
        finding = failed(await report(config(tokenizer, "http://127.0.0.1:1")))
        assert (finding.check, finding.short) == ("reachable", "refused")

    async def test_its_role_is_not_its_connector_s(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, kv_role="consumer") as server:
            finding = failed(await report(config(tokenizer, {"url": server.url, "role": "prefill"})))
        assert "its kv_role is kv_consumer, and its role here prefill" in finding.said

    async def test_it_has_no_connector(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, connector="none") as server:
            finding = failed(await report(config(tokenizer, {"url": server.url, "role": "decode"})))
        assert "it has no KV connector" in finding.said

    @pytest.mark.usefixtures("impatient")
    async def test_it_computes_nothing(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer) as server:
            server.faults.inject("status", status=500, path="/v1/completions")
            finding = failed(await report(config(tokenizer, server.url)))
        assert "POST /v1/completions gave status-500" in finding.said


class TestWhatIsYellow:
    async def test_no_replay(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, replay=False) as server:
            found = await report(config(tokenizer, server.url))
        assert found.level is Level.WARNING
        assert (finding := found.of("replay")) is not None
        assert "replay_endpoint" in finding.remedy

    async def test_no_tokenizer(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer) as server:
            found = await report(config(None, server.url))
        assert (finding := found.of("tokens")) is not None
        assert finding.level is Level.WARNING
        assert tokenizer in finding.remedy
        assert (events := found.of("events")) is not None
        assert events.short == "live", "the engine told the probe's ids"

    async def test_hits_are_not_reported(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, report_cached_tokens=False) as server:
            found = await report(config(tokenizer, server.url))
        assert found.level is Level.WARNING
        assert (finding := found.of("usage")) is not None
        assert "--enable-prompt-tokens-details" in finding.remedy

    async def test_events_that_are_not_wanted_are_no_fault(self, tokenizer: str) -> None:
        async with simulated(tokenizer=tokenizer, kv_events=False) as server:
            found = await report(config(tokenizer, {"url": server.url, "kv_events": {"enabled": False}}))
        assert found.level is Level.NOTE

    async def test_engines_that_do_not_fit_together(self, tokenizer: str) -> None:
        async with (
            simulated(tokenizer=tokenizer, version="0.31.0", block_size=16) as one,
            simulated(tokenizer=tokenizer, block_size=24) as other,
        ):
            found, notes = await reports(
                config(tokenizer, {"url": one.url, "name": "a"}, {"url": other.url, "name": "b"})
            )
        assert healthy(found)
        versions, sizes = notes["sim"]
        assert "0.31.0 (a), 0.32.0 (b)" in versions
        assert "16 (a), 24 (b)" in sizes


async def test_many_engines_are_asked_at_once_each_within_its_time(tokenizer: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(simulated(tokenizer=tokenizer)) for _ in range(12)]
        for server in servers[::2]:
            server.faults.inject("hang", path="/v1/completions")
        found, _ = await reports(config(tokenizer, *(server.url for server in servers)), timeout=4.0)
    assert [one.level is Level.FAILED for one in found] == [True, False] * 6
    assert "did not end within 4 s" in failed(found[0]).said
    told = as_json(found, {})
    assert told["healthy"] is False
    assert len(told["models"][0]["endpoints"]) == 12
    assert {one["check"] for one in told["models"][0]["endpoints"][1]["findings"]} == set(CHECKS)


@contextlib.asynccontextmanager
async def between(url: str, old: bytes = b"", new: bytes = b"", hook: Any = None) -> AsyncIterator[str]:
    """A proxy before an engine that replaces something in what it says; ``hook`` runs after each completion."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:

        async def passing(connection: Connection) -> None:
            while True:
                head, body = await connection.request()
                method, target, _ = head.decode().split(" ", 2)
                headers = {"content-type": header_in(head, b"content-type") or "application/json"}
                reply = await client.request(method, target, content=body, headers=headers)
                if hook is not None and target == "/v1/completions":
                    await hook()
                said = reply.content.replace(old, new) if old else reply.content
                status = f"{reply.status_code} {reply.reason_phrase}"
                await connection.say(answer(said, status=status, content_type=reply.headers["content-type"]))

        async with ScriptedServer(passing) as proxy:
            yield proxy.url


class TestFamilies:
    """The advice is right for each kind of model."""

    @staticmethod
    def folder(tokenizer: str, at: Path, **changes: Any) -> str:
        """The same tokenizer in the folder of another kind of model."""
        shutil.copytree(tokenizer, at)
        if changes.pop("template", True) is False:
            (at / "chat_template.jinja").unlink()
        (at / "config.json").write_text(json.dumps(changes))
        return str(at)

    async def finding(self, tokenizer: str, ours: str, **model: Any) -> Finding:
        async with simulated(tokenizer=tokenizer) as server:
            found = (await report(config(ours, server.url, **model))).of("tokens")
            assert found is not None
            return found

    async def test_chats_that_engines_are_asked_for(self, tokenizer: str, tmp_path: Path) -> None:
        ours = self.folder(tokenizer, tmp_path / "m", architectures=["DeepseekV32ForCausalLM"])
        found = await self.finding(tokenizer, ours)
        assert (found.level, found.short, found.remedy) == (Level.NOTE, "text; chats asked", "")
        assert "DeepSeek V3.2 is rendered by code of vLLM's own" in found.said

    async def test_chats_that_they_are_not_asked_for(self, tokenizer: str, tmp_path: Path) -> None:
        ours = self.folder(tokenizer, tmp_path / "m", architectures=["DeepseekV32ForCausalLM"])
        found = await self.finding(tokenizer, ours, tokens={"ask": False})
        assert (found.level, found.short) == (Level.WARNING, "text only")
        assert "tokens.ask" in found.remedy

    async def test_an_extra_that_is_not_installed(
        self, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Family, "installed", property(lambda self: False))
        found = await self.finding(tokenizer, self.folder(tokenizer, tmp_path / "m", model_type="gpt_oss"))
        assert (found.level, found.short) == (Level.WARNING, "text only")
        assert found.remedy == "pip install 'kvgate[harmony]'"

    async def test_what_tokenize_does_not_tell(self, tokenizer: str, tmp_path: Path) -> None:
        pytest.importorskip("openai_harmony", reason="the extra 'harmony' is not installed")
        found = await self.finding(tokenizer, self.folder(tokenizer, tmp_path / "m", model_type="gpt_oss"))
        assert found.level is Level.NOTE
        assert "its /tokenize does not render them as it serves them" in found.said

    async def test_no_template(self, tokenizer: str, tmp_path: Path) -> None:
        ours = self.folder(tokenizer, tmp_path / "m", template=False)
        found = await self.finding(tokenizer, ours, tokens={"ask": False})
        assert found.said.endswith("the tokenizer has no chat template")
        assert "set chat_template" in found.remedy
