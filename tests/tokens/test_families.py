"""Each family of models by its files: whether its prompts become tokens here, by what, and the remedy where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.core.prompt import ChatInput, TextInput
from gateway.tokens.agreement import Form
from gateway.tokens.families import FAMILIES, Family, family_of, obstacles
from gateway.tokens.reasons import Why
from tests.tokens.conftest import Load
from tests.tokens.tekken import build_tekken

BY_NAME = {family.name: family for family in FAMILIES}


@pytest.mark.parametrize(
    ("config", "files", "name"),
    [
        ({"model_type": "gpt_oss"}, (), "gpt-oss"),
        ({"model_type": "mistral"}, ("tekken.json",), "Mistral (tekken)"),
        ({}, ("tokenizer.model.v3",), "Mistral (tekken)"),
        ({"architectures": ["DeepseekV32ForCausalLM"]}, (), "DeepSeek V3.2"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, (), "DeepSeek V4"),
        ({"architectures": ["DeepseekV41ForCausalLM"]}, (), "DeepSeek V4"),
        ({"architectures": ["KimiK3ForConditionalGeneration"]}, (), "Kimi K3"),
        ({"architectures": ["InklingForCausalLM"]}, (), "Inkling"),
        ({"architectures": ["MoonshotKimiaForCausalLM"]}, (), "Kimi-Audio"),
    ],
)
def test_it_is_told_by_its_files(config: dict[str, object], files: tuple[str, ...], name: str) -> None:
    found = family_of(config, files.__contains__)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, {"architectures": [5, None]}]
)
def test_most_models_are_of_none(config: dict[str, object]) -> None:
    assert family_of(config, lambda _: False) is None


def test_what_vllm_renders_in_code_is_asked_of_engines() -> None:
    found = obstacles(BY_NAME["DeepSeek V3.2"], template=True)
    assert list(found) == [Form.CHAT], "its texts are exact"
    assert found[Form.CHAT].why == Why.RENDERER
    assert found[Form.CHAT].engine_knows
    assert "rendered by code of vLLM's own" in found[Form.CHAT].said


def test_a_tokenizer_of_its_own_hinders_texts_too() -> None:
    assert set(obstacles(BY_NAME["Kimi-Audio"], template=True)) == set(Form)


def test_no_template() -> None:
    found = obstacles(None, template=False)
    assert list(found) == [Form.CHAT]
    assert found[Form.CHAT].why == Why.NO_TEMPLATE
    assert obstacles(None, template=True) == {}


@pytest.mark.parametrize("name", ["gpt-oss", "Mistral (tekken)"])
def test_an_extra_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = BY_NAME[name]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not family.installed
    found = obstacles(family, template=True)[Form.CHAT]
    assert found.remedy == f"pip install 'kvgate[{family.extra}]'"
    assert "which is not installed" in found.said


TABLE = (Path(__file__).parents[2] / "docs" / "tokens.md").read_text()


def row(name: str) -> list[str]:
    """The cells of the page's row that begins with ``name``."""
    (found,) = [line for line in TABLE.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_the_page_says_what_is(family: Family, load: Load, variant: Callable[..., Path], tmp_path: Path) -> None:
    """By a small tokenizer of each family: what is exact here, what an engine is asked for, and what that needs."""
    _, told_by, chats, texts, needs = row(family.name)
    for word in (*family.types, *family.architectures, *family.files):
        assert f"{word}`" in told_by
    assert (f"kvgate[{family.extra}]" in needs) == bool(family.extra)
    config = {"model_type": next(iter(family.types), "x"), "architectures": sorted(family.architectures)}
    if family.module == "mistral_common":
        folder = build_tekken(tmp_path / "tekken") if family.installed else None
    else:
        folder = variant(config__json=config)
    if folder is None or (family.extra and not family.installed):
        pytest.skip(f"the extra {family.extra!r} is not installed")
    tokens = await load(tokenizer=str(folder))
    chat = ChatInput([{"role": "user", "content": "hi"}], b'[{"role":"user","content":"hi"}]')
    for cell, prompt, form in ((chats, chat, Form.CHAT), (texts, TextInput(("hello",)), Form.TEXT)):
        exact = (await tokens.tokenize(prompt)).exact
        asked = tokens.asks_engine_for(prompt)
        assert cell.startswith("exact")
        assert (exact, asked) == (("asked of an engine" not in cell), ("asked of an engine" in cell)), form
        assert (form in tokens.obstacles) == asked
    assert ("/tokenize" in needs) == any("asked of an engine" in cell for cell in (chats, texts))
