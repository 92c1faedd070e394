"""A repository's tokenizer is read from the hub's cache as ``transformers`` reads it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import huggingface_hub.constants
import pytest

from gateway.errors import ConfigError
from gateway.tokens.file_rules import OTHERWISE, is_otherwise
from gateway.tokens.file_tokenizer import FileTokenizer
from gateway.tokens.hub import Files
from gateway.tokens.loading import load
from gateway.tokens.settings import TokenSettings
from tests.tokens.folders import assert_same_words, by_library, state, write_folder
from tests.tokens.shapes import PIECES, shape, text_of
from tests.tokens.test_file_tokenizer import QWEN_CONFIG, qwen

NAME = "example-org/downloaded"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
Cached = Callable[[Path], str]


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cached:
    """Puts a folder's files into the hub's cache as a repository's; the hub is not asked. Returns its id."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def put(folder: Path) -> str:
        repository = cache / f"models--{NAME.replace('/', '--')}"
        shutil.copytree(folder, repository / "snapshots" / COMMIT)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(COMMIT)
        return NAME

    return put


def folders(base: Path) -> Iterator[Path]:
    yield write_folder(base / "plain", shape("llama3"), config__json={"model_type": "glm4"})
    yield write_folder(
        base / "llama",
        shape("llama3"),
        tokenizer_config__json={"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "chat_template": "old"},
        config__json={"model_type": "llama"},
        chat_template__jinja="{{ messages }}",
    )
    yield write_folder(
        base / "qwen", qwen(), tokenizer_config__json=QWEN_CONFIG, config__json={"model_type": "qwen3_moe"}
    )


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
@pytest.mark.parametrize("number", range(3))
def test_a_cached_repository_is_read_as_the_library_reads_it(
    cached: Cached, tmp_path: Path, number: int, revision: str | None
) -> None:
    name = cached(list(folders(tmp_path))[number])
    ours = load(TokenSettings(tokenizer=name, revision=revision), "m").tokenizer
    from transformers import AutoTokenizer  # takes seconds

    theirs = AutoTokenizer.from_pretrained(name, revision=revision)
    assert isinstance(ours, FileTokenizer)
    assert_same_words(ours, theirs)
    if type(theirs).__name__ == "TokenizersBackend":  # else it has built the same anew
        assert state(ours) == state(theirs)
    text = text_of(bytes(range(len(PIECES))))
    for added in (False, True):
        assert ours(text, add_special_tokens=added) == {"input_ids": theirs(text, add_special_tokens=added).input_ids}


def test_more_templates_are_left_to_the_library(cached: Cached, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "several", shape("llama3"), config__json={"model_type": "llama"})
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("{{ documents }}")
    loaded = load(TokenSettings(tokenizer=cached(folder)), "m").tokenizer
    assert not isinstance(loaded, FileTokenizer)
    assert loaded.chat_template == {"rag": "{{ documents }}"}


@pytest.mark.parametrize("name", ["no/hub/id", "-", "example-org/never-downloaded"])
def test_what_is_not_in_the_cache_has_no_folder(cached: Cached, name: str) -> None:
    assert Files(name, None).folder() is None


def test_a_repository_that_the_library_refuses_is_left_to_it(cached: Cached, tmp_path: Path) -> None:
    name = cached(write_folder(tmp_path / "without", shape("llama3")))
    assert Files(name, None).folder() is None
    with pytest.raises(ConfigError):
        load(TokenSettings(tokenizer=name), "m")


def test_names_that_decide_more_than_files_are_the_librarys() -> None:
    from transformers.models.auto.tokenization_auto import MODEL_IDS_TO_TOKENIZERS_BACKEND

    assert set(OTHERWISE) == set(MODEL_IDS_TO_TOKENIZERS_BACKEND)
    assert is_otherwise("deepseek-ai/DeepSeek-R1-Distill-Llama-8B")
    assert not is_otherwise("meta-llama/Llama-3.1-8B-Instruct")


class Hub(BaseHTTPRequestHandler):
    """A hub with one repository, whose files are ``folder``'s. ``asked``: paths of requests for what is there."""

    folder: ClassVar[Path]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        content = b"{}"
        files = {path.name: path for path in self.folder.iterdir()}
        status, name = 404, self.path.removeprefix(f"/{NAME}/resolve/").partition("/")[2]
        if self.path.startswith(f"/api/models/{NAME}"):
            told: dict[str, Any] = {"id": NAME, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            status, content = 200, json.dumps(told).encode()
        elif name in files:
            status, content = 200, files[name].read_bytes()
        if status == 200:
            self.asked.append(f"{self.command} {self.path}")
        self.send_response(status)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{name}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(status: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub that answers all that it is asked so. Yields the paths that it was asked for."""
    asked: list[str] = []

    class Answers(Hub):
        def _answer(self, *, body: bool) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield asked
        server.shutdown()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_that_cannot_serve_is_asked_once_and_the_cache_is_used(
    cached: Cached, tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = cached(write_folder(tmp_path / "plain", shape("llama3"), config__json={"model_type": "llama"}))
    with answering(status, monkeypatch) as asked:
        files = Files(name, None)
        assert files.cached
        folder = files.folder()
        assert folder is not None
        assert Path(folder).name == COMMIT
        assert asked == [f"/api/models/{name}"]


@pytest.mark.parametrize("status", [401, 404])
def test_what_the_hub_refuses_is_left_to_the_library(
    cached: Cached, tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = cached(write_folder(tmp_path / "plain", shape("llama3"), config__json={"model_type": "llama"}))
    with answering(status, monkeypatch):
        files = Files(name, None)
        assert (files.cached, files.folder()) == (False, None)


def test_what_is_known_of_a_commit_is_not_asked_for(
    cached: Cached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = cached(write_folder(tmp_path / "plain", shape("llama3"), config__json={"model_type": "llama"}))
    missing = tmp_path / "hub" / f"models--{name.replace('/', '--')}" / ".no_exist" / COMMIT / "tekken.json"
    missing.parent.mkdir(parents=True)
    missing.touch()
    with answering(503, monkeypatch) as asked:
        files = Files(name, COMMIT)
        assert files.revision == COMMIT
        assert files.path("config.json") is not None
        assert files.path("tekken.json") is None
        assert asked == []
        assert files.path("chat_template.jinja") is None
        assert asked == [f"/api/models/{name}/revision/{COMMIT}"], "who knows whether there is one"


LOADED = """
import json, sys
from gateway.errors import ConfigError
from gateway.tokens.loading import load
from gateway.tokens.settings import TokenSettings

try:
    found = load(TokenSettings(tokenizer=sys.argv[1]), "m").tokenizer
    ids = found("Hello, world", add_special_tokens=True)["input_ids"]
except ConfigError as error:
    ids = error.message
print(json.dumps([ids, "transformers" in sys.modules]))
"""


def test_what_is_downloaded_once_is_asked_for_no_more(variant: Callable[..., Path], tmp_path: Path) -> None:
    folder = variant(config__json='{"model_type": "llama"}')

    class Served(Hub):
        asked: ClassVar[list[str]] = []

    Served.folder = folder
    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        env = kept | {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path)}

        def start() -> Any:
            command = [sys.executable, "-c", LOADED, NAME]
            ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
            assert ended.returncode == 0, ended.stderr
            return json.loads(ended.stdout)

        wanted = by_library(folder)("Hello, world", add_special_tokens=True).input_ids
        assert start() == [wanted, False]
        assert any("tokenizer.json" in path for path in Served.asked)
        Served.asked.clear()
        assert start() == [wanted, False]
        assert Served.asked == [f"GET /api/models/{NAME}", f"HEAD /{NAME}/resolve/main/config.json"]
        server.shutdown()
    assert start() == [wanted, False], "what is cached needs no hub"
    shutil.rmtree(tmp_path / "hub")
    said, _ = start()
    assert "a hub id that this machine can reach or has downloaded" in said
