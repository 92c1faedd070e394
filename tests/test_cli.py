"""Covers: gateway/commands/explain/report.py, gateway/serve.py, gateway/ending.py.

The command, as its users run it: processes, exit codes, signals, what it prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import os
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from gateway import __version__
from gateway.cli import EXIT_CONFIG, main
from gateway.commands.processes import START_SECONDS, Process, Processes, offline
from gateway.core.build import BUILD
from simulator.faults import FaultKind
from simulator.settings import EngineSettings
from tests.support.engines import simulated
from tests.support.gateway import PATIENT_FLEET, config_for, running
from tests.support.processes import KVGATE, ended, lines, terminated, told, url_of
from tests.support.tls import Authority

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 4}


def write(folder: Path, *urls: str, tokenizer: str | None = None) -> Path:
    config = {
        "listen": {"port": 0, "admin": "127.0.0.1:0", "grace": 20, "lame_duck": 0},
        "models": [{"name": "sim", "tokenizer": tokenizer, "endpoints": [{"url": u} for u in urls]}],
    }
    path = folder / "plugins.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return path


def serve(processes: Processes, config: Path, *options: str, **environ: str) -> Process:
    command = [*KVGATE, "serve", str(config), *options]
    return processes.start("gateway", command, env=offline(os.environ) | environ)


def plain_client() -> httpx.AsyncClient:
    """One that loads no certificates, and has the patience of a busy machine."""
    return httpx.AsyncClient(timeout=30, verify=False)


async def as_a_process(processes: Processes, *words: str) -> tuple[int, str, str]:
    """A command's exit code, and what it wrote to its two outputs."""
    process = processes.start("command", [*KVGATE, *words], talks=True)
    out, _ = await asyncio.to_thread(process.child.communicate)
    return process.child.returncode, out, process.log.read_text()


async def here(*words: str) -> tuple[int, str, str]:
    """The same from a thread of this process: a process of its own imports for seconds before it does anything."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = await asyncio.to_thread(main, words)
    return code, out.getvalue(), err.getvalue()


async def test_it_serves_tls_and_takes_a_renewed_certificate_by_itself(tmp_path, processes):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("listener")
    async with simulated() as server:
        config = write(tmp_path, server.url)
        document = json.loads(config.read_text())
        document["listen"]["tls"] = {"certificate": "listener.crt", "key": "listener.key"}
        config.write_text(json.dumps(document))
        process = serve(processes, config)
        url = await url_of(process)
        assert url.startswith("https://")
        trusting = authority.trusting()
        async with httpx.AsyncClient(verify=trusting) as client:
            assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
            authority.issue("listener")
            await told(process, f"read again: ({certificate}, {key})")
            # On the connection that there was, and on a new one.
            assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
        async with httpx.AsyncClient(verify=trusting) as client:
            assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
        assert await terminated(process) == 0
        assert not any("Traceback" in line for line in lines(process))


async def test_it_serves_tells_the_service_manager_and_ends_at_sigterm_with_0(tmp_path, tokenizer, processes):
    """Running answers end, and no new connection is accepted."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        loop = asyncio.get_running_loop()
        async with (
            simulated(tokenizer=tokenizer, step_seconds=0.02) as server,
            plain_client() as client,
            asyncio.timeout(2 * START_SECONDS),
        ):
            config = write(tmp_path, server.url, tokenizer=tokenizer)
            process = serve(processes, config, "--log-format", "json", NOTIFY_SOCKET=str(tmp_path / "notify"))
            assert await loop.sock_recv(manager, 1000) == b"READY=1"
            url = await url_of(process)
            whole = await client.post(f"{url}/v1/chat/completions", json=CHAT)
            assert whole.status_code == 200
            long = {**CHAT, "stream": True, "max_tokens": 40, "ignore_eos": True}
            async with client.stream("POST", f"{url}/v1/chat/completions", json=long) as reply:
                events = reply.aiter_lines()
                await anext(events)
                process.child.terminate()
                assert await loop.sock_recv(manager, 1000) == b"STOPPING=1"
                await told(process, "(stopping)")
                async with plain_client() as other:
                    with pytest.raises(httpx.ConnectError):
                        await other.get(f"{url}/health")
                rest = [line async for line in events]
            assert rest[-2:] == ["data: [DONE]", ""]
            assert await ended(process) == 0
        line, _ = [line for line in map(json.loads, lines(process)) if line["event"] == "request"]
        assert (line["status"], line["model"], line["exact"]) == (200, "sim", True)
        assert line["prompt_tokens"] == whole.json()["usage"]["prompt_tokens"]


async def test_sighup_reads_the_file_again(tmp_path, processes):
    """Its engines, and the log's level; a wrong file is told of and changes nothing; what needs a restart is named."""
    async with simulated() as first, simulated() as second, plain_client() as client:
        path = write(tmp_path, first.url)
        good = json.loads(path.read_text())
        process = serve(processes, path, "--log-format", "json")
        url = await url_of(process)

        async def hang_up(config: dict, said: str) -> None:
            path.write_text(json.dumps(config))
            process.child.send_signal(signal.SIGHUP)
            await told(process, said)

        await hang_up({**good, "modles": []}, r"(not reloaded: .*modles: unknown key)")
        assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
        engines = [{"url": second.url}]
        await hang_up(
            {**good, "models": [{"name": "moved", "served_name": "sim", "endpoints": engines}]}, "(reloaded: 2)"
        )
        assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 404
        reply = await client.post(f"{url}/v1/chat/completions", json={**CHAT, "model": "moved"})
        assert reply.status_code == 200
        assert [r.path for r in second.received].count("/v1/chat/completions") == 1
        await hang_up(
            {**good, "listen": {**good["listen"], "host": "0.0.0.0"}, "log": {"level": "debug"}},
            r"needs a restart: (listen.host)",
        )
        path.write_text(json.dumps({**good, "log": {"level": "error"}}))
        admin = await told(process, r"metrics on (http://[\d.:]+)")
        assert (await client.post(f"{admin}/reload")).json() == {"changes": ["log.level"], "restart": []}
        assert (await client.post(f"{url}/v1/chat/completions", json=CHAT)).status_code == 200
        assert await terminated(process) == 0
        events = [json.loads(line)["event"] for line in lines(process)]
        assert events.count("request") == 3, "none at the level error"


async def test_an_answer_longer_than_the_grace_is_cut_off_and_the_exit_is_still_0(tmp_path, processes):
    async with simulated() as server, plain_client() as client:
        server.faults.inject(FaultKind.HANG_AFTER)
        config = write(tmp_path, server.url)
        config.write_text(config.read_text().replace('"grace": 20', '"grace": 0.1'))
        process = serve(processes, config)
        url = await url_of(process)
        with pytest.raises(httpx.HTTPError):
            async with client.stream("POST", f"{url}/v1/chat/completions", json={**CHAT, "stream": True}) as reply:
                events = reply.aiter_lines()
                await anext(events)
                process.child.terminate()
                async for _ in events:
                    pass
        assert await ended(process) == 0


async def test_a_signal_during_the_start_ends_it(tmp_path, processes):
    async with simulated() as server:
        server.faults.inject(FaultKind.HANG, path="/")
        process = serve(processes, write(tmp_path, server.url))
        await told(process, "(metrics on)")
        assert await terminated(process) == 0


async def test_a_port_that_is_taken_is_said_so(tmp_path, processes):
    async with simulated() as server:
        port = server.url.rpartition(":")[2]
        process = serve(processes, write(tmp_path, server.url), "--port", port)
        assert await ended(process) == EXIT_CONFIG
        assert f"cannot listen on 127.0.0.1:{port}" in lines(process)[-1]


async def test_no_key_is_ever_logged(tmp_path, processes):
    async with simulated(api_key="engine-secret-1") as server, plain_client() as client:
        config = write(tmp_path, server.url)
        content = json.loads(config.read_text())
        content["models"][0]["endpoints"][0]["api_key"] = "${ENGINE_KEY}"
        content["client_keys"] = {"values": ["${CLIENT_KEY}"]}
        content["log"] = {"level": "debug"}
        config.write_text(json.dumps(content))
        keys = {"ENGINE_KEY": "engine-secret-1", "CLIENT_KEY": "client-secret-1"}
        process = serve(processes, config, **keys)
        url = await url_of(process)
        headers = {"Authorization": "Bearer client-secret-1"}
        assert (await client.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
        headers = {"Authorization": "Bearer client-secret-2"}
        assert (await client.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers)).status_code == 401
        assert await terminated(process) == 0
        assert lines(process)
        assert not [line for line in lines(process) if "secret" in line]


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"kvgate {__version__} ({BUILD})\n"


def test_check_prints_what_is_in_force(tmp_path, capsys):
    config = write(tmp_path, "http://127.0.0.1:1")
    assert main(["check", str(config)]) == 0
    printed = capsys.readouterr().out
    assert "placement-cost" in printed
    again = tmp_path / "again.yaml"
    again.write_text(printed)
    assert main(["check", str(again)]) == 0
    assert capsys.readouterr().out == printed


def test_check_warns_of_what_will_disappoint_and_is_0(tmp_path, capsys):
    config = write(tmp_path, "http://127.0.0.1:1", "http://127.0.0.1:2")
    assert main(["check", str(config)]) == 0
    note, warning, verdict = capsys.readouterr().err.splitlines()
    assert note == "kvgate: model sim: its tokens are estimated, no tokenizer is configured"
    assert warning.startswith("kvgate: warning: model sim: it has no tokenizer")
    assert verdict == f"{config}: in order, but for the above"
    split = config.read_text().replace('"name": "sim"', '"name": "sim", "handler": "prefill-decode"')
    config.write_text(split.replace('"url"', '"role": "decode", "url"'))
    assert main(["check", str(config), "--probe"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("kvgate: warning: model sim: no endpoint may prefill")]
    assert [line for line in lines if "127.0.0.1:2 cannot be reached (refused)" in line]
    assert lines[-1] == f"{config}: in order, but for the above"


async def test_doctor_says_what_is_wrong_and_is_1(tmp_path, tokenizer):
    async with (
        simulated(tokenizer=tokenizer) as good,
        simulated(kv_events=False) as bad,
    ):
        code, out, _ = await here("doctor", str(write(tmp_path, good.url, tokenizer=tokenizer)))
        assert (code, out.splitlines()[-1]) == (0, "1 of 1 endpoints are in order")
        config = str(write(tmp_path, good.url, bad.url, tokenizer=tokenizer))
        code, out, _ = await here("doctor", config)
        assert (code, out.splitlines()[-1]) == (1, "1 of 2 endpoints are not in order")
        code, told, _ = await here("doctor", config, "--json")
    assert code == 1
    one, other = json.loads(told)["models"][0]["endpoints"]
    assert (one["level"], other["level"]) == ("note", "failed")
    red = [finding["check"] for finding in other["findings"] if finding["level"] == "failed"]
    assert red == ["tokens", "events"]


async def test_doctor_is_a_process_of_its_own_as_well(tmp_path, processes):
    code, out, _ = await as_a_process(processes, "doctor", str(write(tmp_path, "http://127.0.0.1:1")))
    assert (code, out.splitlines()[-1]) == (1, "1 of 1 endpoints are not in order")


def test_doctor_says_what_it_sends(capsys):
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "one completion of one token" in said
    assert "three texts to tokenize" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('"modles": []', "modles"),
        ('"retries": {"attempts": "two"}', "attempts"),
        ('"retries": {"attempts": 0}', "attempts"),
        ('"handlers": [{"name": "default", "type": "singel"}]', "single"),
    ],
)
def test_a_configuration_that_is_wrong_is_said_so_with_its_line(tmp_path, capsys, change, said):
    config = write(tmp_path, "http://127.0.0.1:1")
    config.write_text(config.read_text()[:-1] + ",\n" + change + "}")
    assert main(["check", str(config)]) == EXIT_CONFIG
    error = capsys.readouterr().err
    assert said in error
    assert f"{config}:2" in error


@pytest.mark.parametrize("command", ["check", "doctor", "serve"])
def test_a_tokenizer_that_is_not_there_stops_the_start(tmp_path, capsys, command):
    config = write(tmp_path, "http://127.0.0.1:1", tokenizer=str(tmp_path / "nothing"))
    assert main([command, str(config)]) == EXIT_CONFIG
    said = capsys.readouterr().err
    assert f"kvgate: {config}:1: models[0]: model sim: tokenizer: '{tmp_path / 'nothing'}'" in said
    assert "Traceback" not in said


def test_what_a_room_finds_wrong_is_named_with_its_line(tmp_path, capsys):
    config = tmp_path / "plugins.yaml"
    models = "models:\n- {name: sim, endpoints: [{url: 'http://a:1'}, {url: 'http://%s:1'}]}\n"
    config.write_text(models % "A")
    assert main(["check", str(config)]) == EXIT_CONFIG
    assert f"kvgate: {config}:1: models: model sim: endpoint http://a:1 is listed twice" in capsys.readouterr().err
    config.write_text(models % "b" + "client_keys:\n  file: /nowhere/keys\n")
    for command in ("check", "serve"):
        assert main([command, str(config)]) == EXIT_CONFIG
        assert f"kvgate: {config}:4: client_keys.file: /nowhere/keys cannot be read" in capsys.readouterr().err


def test_a_port_that_is_none_is_said_so(tmp_path, capsys):
    config = write(tmp_path, "http://127.0.0.1:1")
    assert main(["serve", str(config), "--port", "99999"]) == EXIT_CONFIG
    assert capsys.readouterr().err == "kvgate: --port must be in 0..65535\n"


def test_explain_shows_brackets_as_they_are(tmp_path, capsys):
    prompt = tmp_path / "prompt"
    prompt.write_text("Hello")
    config = write(tmp_path, "http://127.0.0.1:1")
    assert main(["explain", str(config), "--model", "x[/red]", "--prompt-file", str(prompt)]) == 1
    assert "The model 'x[/red]' does not exist" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "json"])
async def test_explain_says_who_holds_the_prompt(tmp_path, tokenizer, form):
    text = "The gateway sends each prompt to the engine that holds it. " * 20
    body = {"model": "sim", "prompt": text, "max_tokens": 2}
    settings = EngineSettings(tokenizer=tokenizer)
    async with simulated(settings) as one, simulated(settings) as two, plain_client() as client:
        asked = await client.post(f"{two.url}/v1/completions", json=body)
        assert asked.status_code == 200
        config = write(tmp_path, one.url, two.url, tokenizer=tokenizer)
        prompt = tmp_path / "prompt"
        prompt.write_text(text if form == "text" else json.dumps(body))
        code, out, err = await here("explain", str(config), "--model", "sim", "--prompt-file", str(prompt))
        assert code == 0, err
        assert f"it would go to {two.url.removeprefix('http://')}" in out
        tokens = asked.json()["usage"]["prompt_tokens"]
        assert f"{tokens} prompt tokens (exact)" in out
        assert str((tokens - 1) // 16 * 16) in out
        assert len(two.received) >= 1


@pytest.mark.parametrize(
    ("version", "body", "verdict"),
    [
        (
            "0.32.0",
            {},
            "it would go to two: prefill on {p}, decode on {d}, which would have to compute {tokens} tokens; by nixl",
        ),
        ("0.32.0", {"n": 2}, "it would go to {d}, whole: n"),
        ("0.32.0", {"prompt": "Hello"}, "it would go to {d}, whole: short, the {tokens} tokens that it would have to"),
        ("0.31.0", {}, "it would go to {d}, whole: version, none of those that could prefill runs 0.32.0 too"),
    ],
    ids=["split", "n", "short", "version"],
)
async def test_explain_shows_both_profiles_and_who_does_what(tmp_path, tokenizer, version, body, verdict):
    settings = EngineSettings(tokenizer=tokenizer)
    async with simulated(dataclasses.replace(settings, version=version)) as prefill, simulated(settings) as decode:
        config = write(tmp_path, prefill.url, decode.url, tokenizer=tokenizer)
        content = json.loads(config.read_text())
        content["models"][0]["handler"] = "split"
        parameters = {"threshold": 512}
        content["handlers"] = [{"name": "split", "type": "prefill-decode", "parameters": parameters}]
        for role, one in zip(("prefill", "decode"), content["models"][0]["endpoints"], strict=True):
            one["role"] = role
        config.write_text(json.dumps(content))
        prompt = tmp_path / "prompt.json"
        prompt.write_text(json.dumps({"prompt": "One computes the prompt, another the answer. " * 100} | body))
        code, shown, err = await here("explain", str(config), "--model", "sim", "--prompt-file", str(prompt))
        assert code == 0, err
        names = {"p": prefill.url.removeprefix("http://"), "d": decode.url.removeprefix("http://")}
        tokens = re.search(r"(\d+) prompt tokens", shown)
        assert verdict.format(**names, tokens=tokens[1]) in shown
        assert "profile decode" in shown
        assert ("profile prefill" in shown) == ("prefill on" in verdict)


async def test_explain_without_a_usable_endpoint_is_1(tmp_path):
    prompt = tmp_path / "prompt"
    prompt.write_text("Hello")
    config = str(write(tmp_path, "http://127.0.0.1:1"))
    code, out, _ = await here("explain", config, "--model", "sim", "--prompt-file", str(prompt))
    assert code == 1
    assert "refused" in out


async def test_explain_asks_a_gateway_that_runs(tmp_path, processes):
    """By its URL, or where its configuration says; about what would be and what was. It sees what queues there."""
    prompt = tmp_path / "prompt.json"
    prompt.write_text(json.dumps(CHAT))
    slow = EngineSettings(step_seconds=0.2)
    async with simulated(slow) as one, simulated(slow) as two:
        config = config_for(one.url, two.url, fleet=PATIENT_FLEET)
        async with running(config) as gateway:
            long = {**CHAT, "stream": True, "max_tokens": 2000, "ignore_eos": True}
            headers = {"x-request-id": "the-long-one"}
            async with gateway.client.stream("POST", "/v1/chat/completions", json=long, headers=headers) as reply:
                lines = reply.aiter_lines()  # the answer is closed with it
                await anext(lines)
                (busy,) = [e for e in gateway.gateway.fleet.endpoints(config.models[0]) if e.load.requests]
                (idle,) = [e for e in gateway.gateway.fleet.endpoints(config.models[0]) if not e.load.requests]

                asked = ("--prompt-file", str(prompt))
                code, out, err = await as_a_process(processes, "explain", "--url", gateway.admin_url, *asked)
                assert (code, err) == (0, ""), out
                assert f"it would go to {idle.name}" in out
                assert "profile default" in out
                assert busy.name in out

                code, out, _ = await here("explain", "--url", gateway.admin_url, *asked, "--json", "--tenant", "red")
                assert json.loads(out)["tenant"] == "red"
                code, out, _ = await here("explain", "--url", gateway.admin_url, *asked, "--json")
                told = {each["endpoint"]: each for each in json.loads(out)["endpoints"]}
                assert (told[busy.name]["ledger"]["requests"], told[idle.name]["ledger"]["requests"]) == (1, 0)

                port = gateway.admin_url.rpartition(":")[2]
                file = admin_at(write(tmp_path, one.url, two.url), port)
                code, out, err = await here("explain", str(file), *asked, "--json")
                assert f"asked the gateway at http://127.0.0.1:{port}" in err
                assert json.loads(out)["plan"]["decode"] == idle.name
                code, out, err = await here("explain", str(file), *asked, "--json", "--alone")
                assert {each["ledger"]["requests"] for each in json.loads(out)["endpoints"]} == {0}

                code, out, _ = await here("explain", str(file), "--request", "the-long-one")
                assert code == 0
                assert f"it went to {busy.name}" in out
                assert "it is under way" in out

                other = admin_at(write(tmp_path, one.url), port)
                code, out, err = await here("explain", str(other), *asked)
                assert "serves other models or engines" in err
                assert idle.name not in out or busy.name not in out
            code, out, _ = await here("explain", "--url", gateway.admin_url, "--request", "the-long-one", "--json")
            (decision,) = json.loads(out)["decisions"]
            assert decision["plan"]["decode"] == busy.name
            code, out, _ = await here("explain", "--url", gateway.admin_url, "--request", "another")
            assert code == 1
            assert "'another'" in out


async def test_explain_shows_a_past_request_beside_what_became_of_it(tmp_path):
    async with simulated() as one:
        async with running(config_for(one.url, fleet=PATIENT_FLEET)) as gateway:
            stream = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
            for name in ("a", "b"):
                await gateway.client.post("/v1/chat/completions", json=stream, headers={"x-request-id": name})
            code, out, _ = await here("explain", "--url", gateway.admin_url, "--request", "b")
            assert code == 0
            line = gateway.lines[-1]
            assert re.search(rf"cached tokens\W+{line.expected_hit}\W+{line.cached_tokens}\W", out)
            assert re.search(r"time to first token\W+[0-9.]+ ms\W+[0-9.]+ ms", out)
            assert "the request ended: ok, status 200" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompt-file", "p"), "give a CONFIG, or the --url"),
        (("--alone", "--url", "http://127.0.0.1:1", "--prompt-file", "p"), "--alone"),
        *(
            (("--url", url, "--request", "r"), f"--url: {url!r} must be http://HOST:PORT")
            for url in ("", "127.0.0.1:9000", "http://", "http://[::1", "http://a b", "ftp://a", "http://a:99999")
        ),
        (("--url", "http://127.0.0.1:1", "--prompt-file", "/none"), "cannot be read"),
        (("--url", "http://127.0.0.1:1", "--prompt-file", "p", "--path", "/v1/nothing"), "--path"),
        (("--url", "http://127.0.0.1:1", "--prompt-file", "p", "--header", "x"), "--header"),
        (("--url", "http://127.0.0.1:1", "--prompt-file", "p", "--model", "\udcff"), "cannot be written as JSON"),
        (("--url", "http://127.0.0.1:1", "--prompt-file", "deep"), "cannot be written as JSON"),
    ],
)
def test_explain_refuses_what_it_cannot_ask(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").write_text("Hello")
    (tmp_path / "deep").write_text('{"prompt": ' + "[" * 300 + "]" * 300 + "}")
    assert main(["explain", *arguments]) == EXIT_CONFIG
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("what", [("--prompt-file", "p"), ("--request", "r")])
def test_explain_says_that_nobody_answers(tmp_path, monkeypatch, capsys, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").write_text("Hello")
    assert main(["explain", "--url", "http://127.0.0.1:1", *what]) == 1
    assert "no gateway answers at http://127.0.0.1:1" in capsys.readouterr().out


def admin_at(config: Path, port: str) -> Path:
    """The same file, with its admin listener there."""
    content = json.loads(config.read_text())
    content["listen"]["admin"] = f"127.0.0.1:{port}"
    config.write_text(json.dumps(content))
    return config
