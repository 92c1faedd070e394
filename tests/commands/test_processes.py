from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.commands import processes
from gateway.commands.processes import (
    NotReady,
    Process,
    Processes,
    free_port,
    group_members,
    offline,
    undisturbed,
    wait_for,
)

ROOT = Path(__file__).parents[2]
SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
WITH_A_CHILD = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("leave", [KeyboardInterrupt, ValueError])
def test_nothing_is_left_behind_whatever_happens(tmp_path: Path, leave: type[BaseException]) -> None:
    with pytest.raises(leave), Processes(tmp_path) as running:
        process = running.start("sleeper", SLEEPER)
        raise leave
    assert process.child.returncode == -signal.SIGTERM


def test_whoever_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.2)
    with Processes(tmp_path) as running:
        process = running.start("stubborn", [sys.executable, "-c", STUBBORN], talks=True)
        assert process.line() == "up\n"
    assert process.child.returncode == -signal.SIGKILL


def test_what_a_process_has_started_is_killed_with_it(tmp_path: Path) -> None:
    with Processes(tmp_path) as running:
        process = running.start("parent", [sys.executable, "-c", f"{WITH_A_CHILD}; input()"], talks=True)
        child = int(process.line())
        assert {int(member.name) for member in group_members(process.pid)} == {process.pid, child}
    assert list(group_members(process.pid)) == []


def test_a_program_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not even by SIGKILL, after which none of its code runs."""
    code = (
        "import os\nfrom pathlib import Path\nfrom gateway.commands.processes import Process\n"
        f"process = Process.start(['sleep', '600'], log=Path({str(tmp_path / 'log')!r}), env=os.environ)\n"
        "print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert run.returncode == -signal.SIGKILL
    until(lambda: next(group_members(int(run.stdout)), None) is None)


@pytest.mark.parametrize(
    ("number", "code", "status"),
    [(signal.SIGINT, "", 0), (signal.SIGTERM, "with processes.sigterm_raises(SystemExit(143)):\n    ", 143)],
)
def test_a_second_interrupt_ends_no_more_than_the_waiting(
    tmp_path: Path, number: signal.Signals, code: str, status: int
) -> None:
    """In a program of its own: real signals while it waits for one that does not end."""
    asked = tmp_path / "asked"
    stubborn = (
        "import signal, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: pathlib.Path({str(asked)!r}).touch())\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()\n"
    )
    program = (
        "import signal, sys\nfrom pathlib import Path\nfrom gateway.commands import processes\n"
        f"processes.STOP_SECONDS = {600.0 if number is signal.SIGINT else 1.0}\n"
        "def run():\n"
        f"    with processes.Processes(Path({str(tmp_path)!r})) as running:\n"
        f"        process = running.start('stubborn', [sys.executable, '-c', {stubborn!r}], talks=True)\n"
        "        process.line()\n"
        "        print(process.pid, flush=True)\n"
        f"        {'signal.pause()' if number is signal.SIGTERM else ''}\n"
        "    print(process.child.returncode, flush=True)\n"
        f"{code}run()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as ours:
        assert ours.stdout is not None
        pid = int(ours.stdout.readline())
        if number is signal.SIGTERM:
            ours.send_signal(number)
        until(asked.exists)
        ours.send_signal(number)
        out, _ = ours.communicate(timeout=60)
    assert ours.returncode == status
    assert out == (f"{-signal.SIGKILL}\n" if status == 0 else "")
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


def test_a_process_that_says_nothing_is_told_with_its_last_words(tmp_path: Path) -> None:
    with Processes(tmp_path) as running:
        process = running.start("broken", [sys.executable, "-c", "raise SystemExit('not today')"], talks=True)
        with pytest.raises(NotReady, match="broken did not start:\nnot today"):
            process.line()


def test_waiting_ends_with_the_process_and_with_the_time(tmp_path: Path) -> None:
    with Processes(tmp_path) as running:
        process = running.start("brief", [sys.executable, "-c", "print('so much')"])
        with pytest.raises(NotReady, match="ended while waiting for more\nso much"):
            wait_for(lambda: False, "more", process)
        sleeper = running.start("sleeper", SLEEPER)
        with pytest.raises(NotReady, match="more: not within 0 s"):
            wait_for(lambda: False, "more", sleeper, 0.1)
        assert wait_for(lambda: "seen", "it", sleeper) == "seen"


def test_a_log_is_appended_to_and_begins_anew_with_the_next_run(tmp_path: Path) -> None:
    said = [sys.executable, "-c", "print('said')"]
    for expected in ("said\n", "said\nsaid\n"):
        process = Process.start(said, log=tmp_path / "a.log", env=os.environ)
        process.child.wait()
        process.kill()
        assert process.tail() == expected
    with Processes(tmp_path) as running:
        process = running.start("a", said)
        process.child.wait()
        assert process.tail() == "said\n"


def test_processes_see_no_proxy_and_no_hub() -> None:
    seen = offline({"PATH": "/bin", "http_proxy": "x", "HTTPS_PROXY": "x", "NO_PROXY": "x"})
    assert seen == {"PATH": "/bin", "HF_HUB_OFFLINE": "1"}


def test_each_free_port_is_another() -> None:
    assert len({free_port() for _ in range(20)}) == 20
