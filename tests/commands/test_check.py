"""Covers: gateway/commands/check.py, gateway/commands/interview.py.

``kvgate check``'s warnings: of a file, and of engines that are simulated, or say what a test wants of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.check import check, of_tokens
from gateway.commands.interview import CONFIGURATION_TIMEOUT, TIMEOUT
from gateway.config.build import build_scheduler
from gateway.config.load import loads
from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.tokens.settings import ForwardSettings, TokenSettings
from gateway.tokens.tokenizer import ModelTokens
from simulator.settings import EngineSettings
from simulator.tokenizer import build_tokenizer
from tests.support.candidates import context
from tests.support.engines import each_simulated
from tests.support.scripted_engine import Get, ScriptedEngine
from tests.support.wire import Connection, answer, path_in

TOKENIZER = "tokenizer: somewhere"
SPLIT = f"models:\n- name: m\n  {TOKENIZER}\n  handler: prefill-decode\n  endpoints:\n"
OUT = "cannot be reached"


async def told(text: str, *, probe: bool = False) -> tuple[list[str], list[str]]:
    config = loads(text, {})
    return await check(config, build_scheduler(config, context), SystemClock(), probe=probe)


async def warned(text: str, *, probe: bool = False) -> list[str]:
    warnings, _ = await told(text, probe=probe)
    return warnings


async def of_file(text: str) -> list[str]:
    """Without what is said of engines that are not there."""
    return [warning for warning in await warned(text) if OUT not in warning]


def endpoints(*given: str) -> str:
    return "".join(f"  - {{url: 'http://127.0.0.1:{i + 1}', name: e{i}, {one}}}\n" for i, one in enumerate(given))


class TestTheFile:
    async def test_several_workers(self) -> None:
        model = "models: [{name: m, endpoints: [{url: 'http://127.0.0.1:1'}]}]\n"
        _, notes = await told(model + "listen: {workers: 3}")
        assert notes[0].startswith("3 workers serve, under a parent")
        _, notes = await told(model)
        assert not any("workers" in note for note in notes)

    async def test_a_pair_is_in_order(self) -> None:
        assert await of_file(SPLIT + endpoints("role: prefill", "role: decode")) == []
        assert await of_file(SPLIT + endpoints("role: both", "role: both")) == []

    async def test_a_picker_that_sends_whole_requests_to_engines_that_generate_nothing_alone(self) -> None:
        pair = SPLIT + endpoints("role: prefill", "role: decode")
        handler = "handlers: [{name: prefill-decode, type: prefill-decode, parameters: {connector: %s}}]\n"
        (warning,) = await of_file(pair + "epp: {}\n" + handler % "sglang")
        assert warning.startswith("model m: the picker sends each request to one engine, as epp.split is null")
        assert await of_file(pair + "epp: {split: headers}\n" + handler % "sglang") == []
        assert await of_file(pair + handler % "sglang") == []
        assert await of_file(pair + "epp: {}\n" + handler % "nixl") == []

    async def test_nobody_to_prefill(self) -> None:
        (warning,) = await of_file(SPLIT + endpoints("role: decode", "role: decode"))
        assert warning.startswith("model m: no endpoint may prefill, so that every request is served whole")

    async def test_nobody_to_decode(self) -> None:
        (warning,) = await of_file(SPLIT + endpoints("role: prefill"))
        assert warning.startswith("model m: no endpoint may decode, so that every request is refused with 503")

    async def test_one_engine_for_both(self) -> None:
        (warning,) = await of_file(SPLIT + endpoints("role: both"))
        assert warning.startswith("model m: e0 would have to prefill and decode, but no engine hands over to itself")

    async def test_who_only_prefills_idles_where_nothing_is_split(self) -> None:
        whole = f"models:\n- name: m\n  {TOKENIZER}\n  endpoints:\n"
        (warning,) = await of_file(whole + endpoints("role: prefill", "role: both", "role: prefill"))
        assert warning.startswith("model m: e0, e2 will idle: the handler 'default' never splits off a prefill")
        assert await of_file(whole + endpoints("role: decode", "role: both")) == []

    async def test_where_no_filter_keeps_them_out_they_do_not_idle(self) -> None:
        text = f"models:\n- name: m\n  {TOKENIZER}\n  endpoints:\n{endpoints('role: prefill')}"
        assert await of_file(text + "profiles: [{name: default, picker: best}]\n") == []
        all_roles = (
            "plugins: [{name: best, type: max-score}, {name: all, type: role, parameters: {allow: [prefill]}}]\n"
        )
        assert await of_file(text + all_roles + "profiles: [{name: default, filters: [all], picker: best}]\n") == []

    async def test_no_engine_is_asked_where_nothing_is_split(self) -> None:
        assert await warned(f"models:\n- name: m\n  endpoints:\n{endpoints('role: both')}") == []

    async def test_labels_that_nobody_has(self) -> None:
        rules = "handlers: [{name: prefill-decode, type: prefill-decode, parameters: {same: [zone], prefer: [rack]}}]\n"
        one, other = await of_file(SPLIT + endpoints("role: prefill", "role: decode") + rules)
        assert one == "model m: no endpoint has the label 'zone', which 'same' of its handler names: give it to some"
        assert (
            other == "model m: no endpoint has the label 'rack', which 'prefer' of its handler names: give it to some"
        )

    async def test_labels_that_leave_one_without_a_partner(self) -> None:
        rules = "handlers: [{name: prefill-decode, type: prefill-decode, parameters: {same: [zone]}}]\n"
        a, b = "labels: {zone: a}", "labels: {zone: b}"
        given = endpoints(f"role: prefill, {a}", f"role: decode, {a}", f"role: decode, {b}", f"role: both, {a}")
        (warning,) = await of_file(SPLIT + given + rules)
        assert warning == (
            "model m: e2 will serve every request whole, since no prefill endpoint fits: none has zone=b, "
            "as 'same' of its handler asks"
        )
        idle, whole = await of_file(SPLIT + endpoints(f"role: prefill, {a}", f"role: decode, {b}") + rules)
        assert idle.startswith("model m: e0 will never prefill, since no decode endpoint fits: none has zone=a")
        assert whole.startswith("model m: e1 will serve every request whole")

    async def test_a_threshold_without_a_tokenizer(self) -> None:
        text = SPLIT.replace(TOKENIZER, "aliases: []") + endpoints("role: prefill", "role: decode")
        rules = "handlers: [{name: prefill-decode, type: prefill-decode, parameters: {decide: threshold}}]\n"
        (warning,) = await of_file(text + rules)
        assert warning.startswith("model m: without a tokenizer the handler's threshold of 512 tokens is compared with")
        (warning,) = await of_file(text)
        assert warning.startswith("model m: without a tokenizer the handler takes a quarter of the prompt's bytes for")
        always = "handlers: [{name: prefill-decode, type: prefill-decode, parameters: {threshold: 0}}]\n"
        assert await of_file(text + always) == []


@contextlib.asynccontextmanager
async def engines(*settings: EngineSettings) -> AsyncIterator[list[str]]:
    """URLs of simulated engines."""
    async with each_simulated(*settings) as servers:
        yield [server.url for server in servers]


def pair(prefill: str, decode: str, more: str = "") -> str:
    given = f"  - {{url: '{prefill}', role: prefill, name: p}}\n  - {{url: '{decode}', role: decode, name: d}}\n"
    return SPLIT + given + more


QUIET = {"dev_mode": False}
"""As in production: the engine does not report its configuration."""


class TestTheEngines:
    async def test_a_pair_is_in_order(self) -> None:
        async with engines(EngineSettings(**QUIET), EngineSettings(**QUIET)) as urls:
            assert await told(pair(*urls)) == ([], [])

    async def test_one_that_is_out_is_only_warned_of(self) -> None:
        async with engines(EngineSettings(version="1.0", **QUIET)) as (url,):
            (warning,) = await warned(pair(url, "http://127.0.0.1:1"))
        assert warning == ("model m: d cannot be reached (refused), so it is not checked: start it, and check again")

    async def test_versions_that_differ(self) -> None:
        async with engines(EngineSettings(version="0.31.0", **QUIET), EngineSettings(**QUIET)) as urls:
            idle, whole = await warned(pair(*urls))
        assert idle == (
            "model m: p will never prefill, since no decode endpoint fits: it runs 0.31.0, and those 0.32.0; "
            "KV is handed over within one version only, so upgrade one side"
        )
        assert whole.startswith(
            "model m: d will serve every request whole, since no prefill endpoint fits: it runs 0.32.0"
        )

    async def test_one_partner_of_the_same_version_is_enough(self) -> None:
        old, new = EngineSettings(version="0.31.0", **QUIET), EngineSettings(**QUIET)
        async with engines(new, new, old) as (p, d, other):
            (warning,) = await warned(pair(p, d, f"  - {{url: '{other}', role: decode, name: other}}\n"))
        assert warning.startswith("model m: other will serve every request whole")

    async def test_no_connector(self) -> None:
        async with engines(EngineSettings(connector="none", **QUIET), EngineSettings(**QUIET)) as urls:
            (warning,) = await warned(pair(*urls))
            assert warning.startswith("model m: p: it has no KV connector: its metrics have no vllm:nixl_*")
            assert '"kv_connector":"NixlConnector"' in warning
            mooncake = "handlers: [{name: prefill-decode, type: prefill-decode, parameters: {connector: mooncake}}]\n"
            assert await warned(pair(*urls, mooncake)) == []

    async def test_keys_are_sent(self) -> None:
        async with engines(EngineSettings(api_key="secret-key", **QUIET), EngineSettings(**QUIET)) as (p, d):
            text = pair(p, d).replace("name: p", "name: p, api_key: secret-key")
            assert await warned(text, probe=True) == []
            (warning,) = await warned(pair(p, d), probe=True)
            assert warning.startswith("model m: p: it did not answer a probe (status-401)")


class TestTheProbe:
    async def test_it_says_what_it_leaves_behind(self) -> None:
        async with engines(EngineSettings(**QUIET), EngineSettings(**QUIET)) as urls:
            warnings, notes = await told(pair(*urls), probe=True)
        assert warnings == []
        assert notes == ["model m: probed p; a block or two are held there until their lease ends"]

    async def test_a_side_channel_that_others_cannot_reach(self) -> None:
        async with engines(EngineSettings(side_channel_host="localhost", **QUIET), EngineSettings(**QUIET)) as (p, d):
            elsewhere = p.replace("127.0.0.1", "0.0.0.0")  # as good as another host: it is no loopback address
            (warning,) = await warned(pair(elsewhere, d), probe=True)
            assert await warned(pair(elsewhere, d)) == []  # not probed, and in production it does not report it
        assert warning.startswith("model m: p: it gives decode engines the address 'localhost' to fetch its KV from")
        assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in warning

    async def test_on_one_host_it_is_as_it_should_be(self) -> None:
        local = EngineSettings(side_channel_host="localhost", **QUIET)
        async with engines(local, EngineSettings(**QUIET)) as urls:
            assert await warned(pair(*urls), probe=True) == []

    async def test_an_answer_without_parameters(self) -> None:
        async with engines(EngineSettings(connector="none", **QUIET), EngineSettings(**QUIET)) as urls:
            _, probed = await warned(pair(*urls), probe=True)
        assert probed.startswith("model m: p: its answer to a probe has no kv_transfer_params")

    async def test_only_nixl_is_probed(self) -> None:
        mooncake = "handlers: [{name: prefill-decode, type: prefill-decode, parameters: {connector: mooncake}}]\n"
        async with engines(EngineSettings(**QUIET), EngineSettings(**QUIET)) as urls:
            warnings, notes = await told(pair(*urls, mooncake), probe=True)
        assert warnings == []
        assert notes == ["model m: not probed: only NIXL's prefill says where its KV can be fetched"]


def says(value: Any) -> Get:
    """An answer: bytes as they are, all else as JSON; None: 404."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()

    async def get(connection: Connection, head: bytes) -> None:
        await connection.say(answer(body, status="404 Not Found" if value is None else "200 OK"))

    return get


def hold(engine: ScriptedEngine, path: str, before: Callable[[], Awaitable[object]]) -> None:
    """Its answer on ``path`` waits for ``before``."""
    then = engine.faults[path]

    async def get(connection: Connection, head: bytes) -> None:
        await before()
        await then(connection, head)

    engine.faults[path] = get


def talking(**answers: Any) -> ScriptedEngine:
    """``version="1"`` answers ``/version`` so; ``transfer`` and ``environ`` make a ``/server_info`` as vLLM's; all else
    is the answer on a path, to a POST as well."""
    config = {"kv_transfer_config": answers.pop("transfer", None), "model_config": {}}
    info = {"vllm_config": config, "vllm_env": answers.pop("environ", {})}
    given = {"/version": {"version": answers.pop("version", "0.32.0")}, "/metrics": b"\nvllm:nixl_x 0\n"}
    faults = {path: says(value) for path, value in ({"/server_info": info} | given | answers).items()}

    async def post(connection: Connection, head: bytes, body: bytes) -> None:
        await faults.get(path_in(head), says(None))(connection, head)

    return ScriptedEngine(post, faults=faults)


NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}


class TestItsConfiguration:
    async def test_it_is_asked_for_as_json(self) -> None:
        async with talking(transfer=NIXL) as p, talking(transfer=NIXL) as d:
            assert await warned(pair(p.url, d.url)) == []
        assert p.asked == ["/version", "/metrics", "/server_info?config_format=json"]

    async def test_the_default_policy(self) -> None:
        fails = NIXL | {"kv_load_failure_policy": "fail"}
        async with talking(transfer=fails) as p, talking(transfer=fails) as d:
            (warning,) = await warned(pair(p.url, d.url))
        assert warning.startswith("model m: d: its kv_load_failure_policy is 'fail', vLLM's default")
        assert "'recompute'" in warning

    @pytest.mark.parametrize(
        ("transfer", "said"),
        [
            (None, "its KV connector is none, and that of the model's handler nixl (NixlConnector, "),
            (NIXL | {"kv_connector": "MooncakeConnector"}, "its KV connector is MooncakeConnector, and that of"),
            (NIXL | {"kv_role": "kv_consumer"}, "its kv_role is kv_consumer and its role here prefill: start it with"),
        ],
    )
    async def test_another_connector_or_role(self, transfer: dict[str, str] | None, said: str) -> None:
        async with talking(transfer=transfer) as p, talking(transfer=NIXL) as d:
            (warning,) = await warned(pair(p.url, d.url))
        assert warning.startswith(f"model m: p: {said}")

    async def test_the_side_channel_is_seen_without_a_probe(self) -> None:
        environ = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "localhost"}
        async with talking(transfer=NIXL, environ=environ) as p, talking(transfer=NIXL) as d:
            (warning,) = await warned(pair(p.url.replace("127.0.0.1", "0.0.0.0"), d.url))
            assert warning.startswith(
                "model m: p: it gives decode engines the address 'localhost' to fetch its KV from"
            )
            assert await warned(pair(p.url, d.url)) == []

    async def test_it_may_take_longer_than_anything_else(self) -> None:
        """For the first one vLLM runs commands for seconds."""
        assert CONFIGURATION_TIMEOUT >= 20.0 > TIMEOUT
        fails = NIXL | {"kv_load_failure_policy": "fail"}
        async with talking(transfer=NIXL) as p, talking(transfer=fails) as d:
            hold(d, "/server_info", lambda: asyncio.sleep(TIMEOUT + 0.2))
            (warning,) = await warned(pair(p.url, d.url))
        assert warning.startswith("model m: d: its kv_load_failure_policy is 'fail'")

    @pytest.mark.parametrize("path", ["/server_info", "/metrics"])
    async def test_what_it_does_not_say_in_time_is_warned_of(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.commands.interview.CONFIGURATION_TIMEOUT", 0.5 if path == "/server_info" else 30.0)
        over = asyncio.Event()
        async with talking(transfer=NIXL) as p, talking(transfer=NIXL) as d:
            hold(p, path, over.wait)
            hold(d, path, over.wait)
            found = await warned(pair(p.url, d.url))
            over.set()
        assert found == [
            f"model m: {name}: it did not answer {path} in time, so this part is not checked: "
            "check again when it is less busy"
            for name in ("p", "d")
        ]

    async def test_all_engines_of_all_models_are_asked_at_once(self) -> None:
        """None of them answers before each has been asked."""
        together = asyncio.Barrier(4)
        async with contextlib.AsyncExitStack() as stack:
            urls = []
            for _ in range(4):
                engine = await stack.enter_async_context(talking(transfer=NIXL))
                hold(engine, "/server_info", together.wait)
                urls.append(engine.url)
            other = pair(*urls[2:]).removeprefix("models:\n").replace("name: ", "name: other-")
            assert await warned(pair(*urls[:2]) + other) == []

    @pytest.mark.parametrize(
        "answers",
        [
            {"/server_info": b"no json"},
            {"/server_info": []},
            {"/server_info": {"vllm_config": "text", "vllm_env": 5}},
            {"/server_info": {"vllm_config": {"kv_transfer_config": []}}},
            {"/metrics": None},
            {"/version": None},
            {"/version": b"?"},
        ],
        ids=str,
    )
    async def test_odd_answers_are_no_failure(self, answers: dict[str, Any]) -> None:
        async with talking(transfer=NIXL, **answers) as p, talking(transfer=NIXL, **answers) as d:
            for warning in await warned(pair(p.url, d.url), probe=True):
                assert "did not answer a probe (status-404)" in warning or "its KV connector is none" in warning

    @pytest.mark.parametrize(
        "answer",
        [b"", b"[]", b"{}", {"kv_transfer_params": None}, {"kv_transfer_params": "x"}, b"x" * (5 * 1024 * 1024)],
        ids=lambda one: str(one)[:30],
    )
    async def test_odd_answers_to_a_probe_are_warned_of(self, answer: Any) -> None:
        more = {"/v1/models": {"data": [{"id": "other"}]}, "/v1/completions": answer}
        async with talking(transfer=NIXL, **more) as p, talking(transfer=NIXL) as d:
            (warning,) = await warned(pair(p.url, d.url), probe=True)
        assert "probe" in warning


class TestEnginesThatConnect:
    LISTEN = 'kv_events: {listen: "tcp://*:5557"}\n'

    async def test_nobody_connects(self) -> None:
        text = f"models:\n- name: m\n  {TOKENIZER}\n  endpoints:\n" + endpoints("role: both")
        assert await of_file(text) == []
        (warning,) = await of_file(text + self.LISTEN)
        assert warning.startswith("kv_events.listen is tcp://*:5557, but no endpoint has kv_events.connects")

    async def test_an_engine_of_two_models_has_one_topic(self) -> None:
        endpoint = "  - {url: 'http://127.0.0.1:1', kv_events: {connects: true%s}}\n"
        models = f"models:\n- name: m\n  endpoints:\n{endpoint}- name: n\n  endpoints:\n{endpoint}" + self.LISTEN
        (warning,) = await of_file(models % ("", ""))
        assert "'kv@127.0.0.1:1@n', and for another model with 'kv@127.0.0.1:1@m'" in warning
        assert await of_file(models % (", topic: t", ", topic: t")) == []


class TestTokens:
    """What of a model's prompts will be estimated is warned of, with the remedy."""

    @staticmethod
    async def said(folder: str | None, **tokens: Any) -> tuple[list[str], str]:
        loaded = ModelTokens(TokenSettings(tokenizer=folder, tokens=ForwardSettings(**tokens)), "m", NULL_OBSERVER)
        await loaded.load()
        return list(of_tokens(loaded)), loaded.state

    async def test_no_tokenizer(self) -> None:
        (warning,), state = await self.said(None)
        assert "it has no tokenizer" in warning
        assert "set tokenizer" in warning
        assert state == "estimated, no tokenizer is configured"

    async def test_a_sound_one(self, tmp_path: Path) -> None:
        assert await self.said(str(build_tokenizer(tmp_path))) == ([], "exact")

    async def test_chats_of_vllms_own(self, tmp_path: Path) -> None:
        folder = build_tokenizer(tmp_path)
        (folder / "config.json").write_text('{"architectures": ["KimiK3ForConditionalGeneration"]}')
        warnings, state = await self.said(str(folder))
        assert warnings == [], "engines are asked"
        assert state != "exact"
        (warning,), _ = await self.said(str(folder), ask=False)
        assert warning.startswith("its chats are estimated, since Kimi K3 is rendered by code of vLLM's own: ")
