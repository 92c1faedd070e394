"""There may be no container engine where the tests run. So the image's file is read: its install lines are run in an
empty folder, and what it starts is started from there, with nothing of this checkout in sight."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway.commands.processes import Process, Processes
from tests.deploy.conftest import ROOT, Stage


def test_the_image_runs_as_nobody_in_particular(stages: list[Stage]) -> None:
    user = stages[-1].last("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "numeric and not root, so that Kubernetes can check it"


def test_commands_are_in_exec_form(stages: list[Stage]) -> None:
    final = stages[-1]
    assert final.words("ENTRYPOINT") == ["kvgate"]
    assert final.words("CMD")[0] == "serve"
    assert health_command(final)[0] == "python", "a slim image has no curl"


def test_only_the_results_of_the_build_are_in_the_image(stages: list[Stage]) -> None:
    build, final = stages
    assert final.all("COPY") == [f"--from={build.name} /opt/kvgate /opt/kvgate"]
    assert build.base == final.base, "a venv points to the Python that made it"


def test_everything_that_is_installed_is_pinned_by_hash(stages: list[Stage]) -> None:
    for command in stages[0].all("RUN"):
        for install in re.findall(r"pip install [^&]*", command):
            assert "--require-hashes" in install or "--no-deps /opt/wheels/" in install


def test_the_image_has_what_a_picker_discovery_and_sharing_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = set(re.findall(r"(?m)^([a-z0-9.-]+)==", (ROOT / "requirements.lock").read_text()))
    for extra in ("dns", "epp", "valkey"):
        wanted = {re.split(r"[^a-z0-9.-]", one)[0] for one in project["optional-dependencies"][extra]}
        assert wanted <= locked, "run `make lock`, which names these extras"


def test_the_builds_own_lock_is_cut_out_of_the_locked_tools() -> None:
    def pins(path: str) -> dict[str, list[str]]:
        text = (ROOT / path).read_text()
        blocks = [block for block in re.split(r"(?m)^(?=[a-z0-9])", text) if "==" in block]
        return {block.split(" ")[0]: re.findall(r"--hash=\S+", block) for block in blocks}

    ours, all_tools = pins("deploy/build-requirements.lock"), pins("requirements-dev.lock")
    assert any(name.startswith("hatchling==") for name in ours)
    for name, hashes in ours.items():
        assert all_tools.get(name) == hashes, f"{name}: cut it out of requirements-dev.lock again"


def test_every_file_that_is_copied_is_there_and_not_ignored(stages: list[Stage]) -> None:
    allowed = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    for copy in stages[0].all("COPY"):
        for source in copy.split(" ")[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in allowed


def exit_code(process: Process) -> int:
    process.child.communicate(timeout=30)
    return process.child.returncode


def health_command(stage: Stage) -> list[str]:
    return json.loads(stage.last("HEALTHCHECK").partition(" CMD ")[2])


class Image:
    """The build stage's instructions, run with the image's absolute paths below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "opt/kvgate/bin"
        # What the base image has on its PATH, and no more: no virtual environment, nothing of this checkout. Where
        # packages come from, and what of them is kept between builds, is this machine's business.
        (root / "usr/bin").mkdir(parents=True)
        (root / "usr/bin/python").symlink_to(Path(sys.executable).resolve())
        (root / "home").mkdir()
        self.path = f"{root}/usr/bin:/usr/bin:/bin"
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        # Compiling 5,000 modules would take longer than all the rest, and changes nothing here.
        self.environ |= {"PATH": self.path, "PIP_NO_COMPILE": "1"}
        self.workdir = root
        self.numbers = itertools.count()

    def inside(self, text: str) -> str:
        return re.sub(r"(?<![\w./-])/(?=(?:opt|src|etc|var)\b)", f"{self.root}/", text)

    def build(self, stage: Stage) -> None:
        for word, value in stage.instructions:
            if word == "WORKDIR":
                self.workdir = Path(self.inside(value))
                self.workdir.mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                *sources, target = value.split(" ")
                for source in sources:
                    self._copy(ROOT / source, self.workdir / target)
            elif word == "RUN":
                done = subprocess.run(
                    ["/bin/sh", "-c", self.inside(value)],
                    cwd=self.workdir,
                    env=self.environ,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"RUN {value}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)

    def start(self, processes: Processes, words: list[str], **environ: str) -> Process:
        """``words[0]`` of the image; what it prints can be read, its errors are in its log."""
        return processes.start(
            f"{words[0]}-{next(self.numbers)}",
            [self.bin / words[0], *words[1:]],
            cwd=self.root / "home",
            env={"PATH": f"{self.bin}:{self.path}", "HOME": f"{self.root}/home", **environ},
            talks=True,
        )


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_the_image_installs_starts_and_stops(stages: list[Stage], tmp_path: Path, processes: Processes) -> None:
    image = Image(tmp_path)
    image.build(stages[0])
    final = stages[-1]
    engine_url = json.loads(image.start(processes, ["python", "-m", "simulator"]).line())["url"]
    config = Path(image.inside(final.words("CMD")[1]))
    config.parent.mkdir(parents=True)
    config.write_text(f"listen: {{admin: ''}}\nmodels:\n- name: sim\n  endpoints: [{{url: '{engine_url}'}}]\n")

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, socket.socket() as free:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        # The listener is the container's own; here the machine is shared, so the port is another one.
        words = [port if word == "8000" else image.inside(word) for word in final.words("CMD")]
        words = ["127.0.0.1" if word == "0.0.0.0" else word for word in words]
        gateway = image.start(processes, [*final.words("ENTRYPOINT"), *words], NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert b"READY=1" in manager.recv(4096).splitlines()

        check = [word.replace("8000", port) for word in health_command(final)]
        assert exit_code(image.start(processes, check)) == 0

        gateway.child.terminate()
        assert b"STOPPING=1" in manager.recv(4096).splitlines()
        assert exit_code(gateway) == 0
        log = gateway.log.read_text()
        assert all(json.loads(line)["level"] in ("info", "warning") for line in log.splitlines())

        # What is unhealthy says so.
        assert exit_code(image.start(processes, check)) != 0
