from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from gateway.demo import processes
from gateway.demo.processes import DidNotStart, Processes, environment, undisturbed
from gateway.framework import SystemClock

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"


def test_engines_serve_until_the_context_is_left(tmp_path: Path) -> None:
    with Processes(tmp_path, SystemClock()) as running:
        urls = running.engines(2, ["--served-name=mine"])
        for url in urls:
            assert httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"] == "mine"
        started = list(running._running)
    assert [process.returncode for process in started] == [0, 0]
    for url in urls:
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, trust_env=False)


@pytest.mark.parametrize("leave", [KeyboardInterrupt, ValueError])
def test_nothing_is_left_behind_whatever_happens(tmp_path: Path, leave: type[BaseException]) -> None:
    with pytest.raises(leave), Processes(tmp_path, SystemClock()) as running:
        running.start("sleeper", "-c", "import signal; signal.pause()")
        [process] = running._running
        raise leave
    assert process.returncode == -signal.SIGTERM


def test_whoever_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.2)
    with Processes(tmp_path, SystemClock()) as running:
        process = running.start("stubborn", "-c", STUBBORN)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
    assert process.returncode == -signal.SIGKILL


def test_a_second_interrupt_ends_the_waiting(tmp_path: Path) -> None:
    """In a process of its own: a real SIGINT while it waits for one that does not end."""
    asked = tmp_path / "asked"
    stubborn = (
        "import signal, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: pathlib.Path({str(asked)!r}).touch())\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()\n"
    )
    code = (
        "from pathlib import Path; from gateway.demo import processes; from gateway.framework import SystemClock\n"
        "processes.STOP_SECONDS = 600.0\n"
        f"with processes.Processes(Path({str(tmp_path)!r}), SystemClock()) as running:\n"
        f"    process = running.start('stubborn', '-c', {stubborn!r})\n"
        "    process.stdout.readline()\n"
        "print(process.pid, process.returncode, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as demo:
        deadline = time.monotonic() + 60
        while not asked.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        demo.send_signal(signal.SIGINT)
        out, _ = demo.communicate(timeout=60)
    pid, returncode = out.split()
    assert (demo.returncode, int(returncode)) == (0, -signal.SIGKILL)
    assert not Path(f"/proc/{pid}").exists()


def test_an_interrupt_while_a_process_is_born_waits_for_our_note_of_it() -> None:
    noted = False
    with pytest.raises(KeyboardInterrupt), undisturbed():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        noted = True
    assert noted
    with undisturbed():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    with Processes(tmp_path, SystemClock()) as running, pytest.raises(DidNotStart, match=r"no tokenizer\.json"):
        running.engines(1, [f"--tokenizer={tmp_path}"])


def test_a_gateway_that_does_not_start_says_why(tmp_path: Path) -> None:
    with Processes(tmp_path, SystemClock()) as running, pytest.raises(DidNotStart, match="gateway did not start"):
        running.gateway({"models": [{"name": "sim", "endpoints": [{"url": "ftp://nowhere"}]}]})


def test_processes_see_no_proxy_and_no_hub() -> None:
    seen = environment({"PATH": "/bin", "http_proxy": "x", "HTTPS_PROXY": "x", "NO_PROXY": "x"})
    assert seen == {"PATH": "/bin", "HF_HUB_OFFLINE": "1", "RAYON_NUM_THREADS": "1"}
