"""Covers: gateway/commands/convert/command.py, gateway/commands/convert/plugins_yaml.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli import main
from gateway.commands.convert.plugins_yaml import table
from gateway.config.load import load

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "llmd"


def test_what_is_printed_is_a_plugins_yaml(capsys, tmp_path) -> None:
    file = DATA / "pd-epp-config.yaml"
    assert (
        main(["convert", str(file), "--model", "llama", "--endpoint", "http://a:8000", "--endpoint", "http://b:8000"])
        == 0
    )
    printed, said = capsys.readouterr()
    (tmp_path / "plugins.yaml").write_text(printed)
    config = load(tmp_path / "plugins.yaml", {})
    assert config.models[0].name == "llama"
    assert [one.url for one in config.models[0].endpoints] == ["http://a:8000", "http://b:8000"]
    assert printed.startswith("# From pd-epp-config.yaml, an EndpointPickerConfig of llm-d (llm-d.ai/v1alpha1)")
    assert "#   line 9: decode-filter: same: role\n" in printed
    [line] = said.splitlines()
    assert (
        line
        == f"kvgate: {file}: line 8: prefill-filter: near: role: an endpoint without a role is both, and may prefill"
    )


def test_without_engines_it_says_what_to_complete(capsys) -> None:
    assert main(["convert", str(DATA / "epp-config.yaml")]) == 0
    assert "complete 'models'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "lacks apiVersion or kind"),
        ("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugin: 1\n", ":3: plugin: unknown"),
    ],
)
def test_what_is_wrong_is_an_error_of_the_configuration(capsys, tmp_path, text, problem) -> None:
    file = tmp_path / "epp.yaml"
    file.write_text(text)
    assert main(["convert", str(file)]) == 2
    assert problem in capsys.readouterr().err


def test_the_page_has_the_verdicts_of_the_code() -> None:
    page = (ROOT / "docs" / "llm-d.md").read_text()
    found = page.partition("<!-- verdicts -->\n\n")[2].partition("\n<!-- end of verdicts -->")[0]
    assert found == table(), "put what gateway.commands.convert.plugins_yaml.table() returns into docs/llm-d.md"
