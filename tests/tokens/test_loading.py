from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from gateway.errors import ConfigError
from gateway.tokens.agreement import Form
from gateway.tokens.loading import load
from gateway.tokens.reasons import Why
from gateway.tokens.settings import TokenSettings


def test_a_folder(folder: Path) -> None:
    loaded = load(TokenSettings(tokenizer=str(folder)), "m")
    assert loaded.tokenizer.bos_token == "<|begin_of_text|>"
    assert (loaded.template, loaded.toolless_template) == (None, None)
    assert (loaded.family, loaded.obstacles) == (None, {})


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
    assert (obstacle.why, obstacle.asked) == (Why.RENDERER, True)
    assert obstacle.said == "a chat of this tokenizer is rendered by its own apply_chat_template"
    assert list(loaded.obstacles) == [Form.CHAT]


@pytest.mark.parametrize("config", ["{broken", "[]", '{"architectures": 5}', '{"architectures": [5]}'])
def test_an_odd_config_says_nothing(variant: Callable[..., Path], config: str) -> None:
    try:
        loaded = load(TokenSettings(tokenizer=str(variant(config__json=config))), "m")
    except ConfigError:
        return  # transformers reads it too, and may refuse
    assert loaded.family is None
