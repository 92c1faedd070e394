from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from gateway.errors import ConfigError
from gateway.tokens.agreement import Form
from gateway.tokens.hub import Files
from gateway.tokens.loading import PROCESSOR_FILES, load
from gateway.tokens.reasons import Why
from gateway.tokens.settings import TokenSettings


def test_a_folder(folder: Path) -> None:
    loaded = load(TokenSettings(tokenizer=str(folder)), "m")
    assert loaded.tokenizer.special_tokens_map["bos_token"] == "<|begin_of_text|>"
    assert (loaded.template, loaded.toolless_template) == (None, None)
    assert (loaded.family, loaded.obstacles) == (None, {})


SEVERAL = """
import sys
from concurrent.futures import ThreadPoolExecutor
from gateway.tokens.loading import load
from gateway.tokens.settings import TokenSettings

with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda model: load(TokenSettings(tokenizer=sys.argv[1]), model), "abcd"))
"""


def test_several_models_load_theirs_at_once_though_the_library_is_not_imported_yet(folder: Path) -> None:
    """In a process of its own: in this one it is."""
    ended = subprocess.run([sys.executable, "-c", SEVERAL, str(folder)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_template_file(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("caf\u00e9 {{ messages }}\n")
    loaded = load(TokenSettings(tokenizer=str(folder), chat_template=str(template)), "m")
    assert loaded.template == "caf\u00e9 {{ messages }}\n"


def test_a_missing_template_file_stops_the_start(folder: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "absent.jinja")
    with pytest.raises(ConfigError, match=r"model m: chat_template: .*absent\.jinja"):
        load(TokenSettings(tokenizer=str(folder), chat_template=path), "m")


def test_a_template_that_cannot_be_parsed_stops_the_start(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}\n{% for %}\n")
    with pytest.raises(ConfigError, match=r"model m: chat_template: .*t\.jinja' is no jinja template: line 2"):
        load(TokenSettings(tokenizer=str(folder), chat_template=str(template)), "m")


def test_a_template_that_is_nested_without_end_stops_the_start(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")
    with pytest.raises(ConfigError, match=r"model m: chat_template: .*t\.jinja' is nested too deeply"):
        load(TokenSettings(tokenizer=str(folder), chat_template=str(template)), "m")


def test_an_empty_folder_says_what_it_must_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it must hold tokenizer\.json") as caught:
        load(TokenSettings(tokenizer=str(tmp_path)), "m")
    assert str(tmp_path) in caught.value.message


def test_a_broken_file_says_what_it_must_hold(variant: Callable[..., Path]) -> None:
    path = variant(tokenizer__json="{broken")
    with pytest.raises(ConfigError, match=r"it must hold tokenizer\.json"):
        load(TokenSettings(tokenizer=str(path)), "m")


def test_a_hub_id_that_was_never_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="a hub id that this machine can reach") as caught:
        load(TokenSettings(tokenizer="example-org/never-downloaded"), "m")
    assert "example-org/never-downloaded" in caught.value.message


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def downloaded(variant: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a repository in the hub's cache, whose config.json names a model with a renderer of its own; the hub
    itself is not asked."""
    cache = tmp_path / "hub"
    repository = cache / "models--example-org--downloaded"
    folder = variant(config__json={"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"})
    shutil.copytree(folder, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    absent = repository / ".no_exist" / COMMIT
    absent.mkdir(parents=True)
    for name in (*PROCESSOR_FILES, "params.json", "tekken.json"):
        (absent / name).touch()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return "example-org/downloaded"


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_downloaded_repository_needs_no_hub(downloaded: str, revision: str | None) -> None:
    settings = TokenSettings(tokenizer=downloaded, revision=revision)
    files = Files(downloaded, revision)
    path = files.path("config.json")
    assert path is not None
    assert Path(path).read_text().startswith("{")
    assert [files.path(name) for name in (*PROCESSOR_FILES, "never-asked-for.json")] == [None] * 3
    loaded = load(settings, "m")
    assert loaded.tokenizer.special_tokens_map["bos_token"] == "<|begin_of_text|>"
    assert loaded.family is not None


@pytest.mark.parametrize("tokenizer", ["no/hub/id", "-", "example-org/never-downloaded", "/no/such/folder"])
def test_what_cannot_be_found_is_no_file(downloaded: str, tokenizer: str) -> None:
    assert Files(tokenizer, None).path("config.json") is None
    assert Files(downloaded, "other").path("config.json") is None


def test_code_of_a_repository_is_not_run_unasked(variant: Callable[..., Path]) -> None:
    path = variant(
        tokenizer_config__json={"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}},
        own__py="raise SystemExit('ran')",
        config__json={"model_type": "unheard-of"},
    )
    try:
        loaded = load(TokenSettings(tokenizer=str(path)), "m")
    except ConfigError as error:
        assert "trust_remote_code" in error.message  # noqa: PT017 - either way is right: refused, or loaded without it
    else:
        assert type(loaded.tokenizer).__module__.startswith("transformers")


def test_a_tokenizer_that_renders_chats_in_code_of_its_own(
    variant: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that calls is the installed library's renderer, which is not vLLM's: such chats are not rendered here."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    path = variant(
        tokenizer_config__json={"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}},
        own__py=(
            "from transformers import PreTrainedTokenizerFast\n"
            "class Own(PreTrainedTokenizerFast):\n"
            "    def apply_chat_template(self, conversation, **given):\n"
            "        return super().apply_chat_template(conversation[-1:], **given)\n"
        ),
    )
    loaded = load(TokenSettings(tokenizer=str(path), trust_remote_code=True), "m")
    assert type(loaded.tokenizer).__name__ == "Own"
    obstacle = loaded.obstacles[Form.CHAT]
    assert (obstacle.why, obstacle.engine_knows) == (Why.RENDERER, True)
    assert obstacle.said == "a chat of this tokenizer is rendered by its own apply_chat_template"
    assert list(loaded.obstacles) == [Form.CHAT]


@pytest.mark.parametrize("config", ["{broken", "[]", '{"architectures": 5}', '{"architectures": [5]}'])
def test_an_odd_config_says_nothing(variant: Callable[..., Path], config: str) -> None:
    try:
        loaded = load(TokenSettings(tokenizer=str(variant(config__json=config))), "m")
    except ConfigError:
        return  # transformers reads it too, and may refuse
    assert loaded.family is None
