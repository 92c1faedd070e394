from __future__ import annotations

import pytest

from gateway.config.load import load, loads
from gateway.config.tenants_file import TenantsFile
from gateway.errors import ConfigError
from gateway.tenants.limit_settings import LimitSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsFileSettings

ONE, TWO = "11" * 32, "22" * 32
OWN = TenantsFileSettings((TenantSettings("own"),), (TenantKeySettings("own-key", "00" * 32, "own"),))


def parse(text: str) -> TenantsFileSettings:
    return TenantsFile("tenants.yaml", OWN, {"RED": "red"}).parse(text)


def test_a_file_has_tenants_keys_and_prices():
    found = parse(
        "tenants:\n- {name: '${RED}', weight: 2, limits: {concurrent: 4}}\n"
        f'keys:\n- {{id: ci, sha256: "{ONE}", tenant: red}}\n- {{id: ci, sha256: "{TWO}", tenant: red}}\n'
        f'- {{id: web, sha256: "{"33" * 32}", tenant: own}}\n- {{id: any, sha256: "{"44" * 32}", tenant: default}}\n'
        "prices:\n  qwen*: {input: 1, output: 2}\n"
    )
    assert found.tenants == (TenantSettings("red", weight=2.0, limits=LimitSettings(concurrent=4)),)
    assert [one.id for one in found.keys] == ["ci", "ci", "web", "any"]
    assert found.prices["qwen*"].output == 2.0


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_an_empty_file_has_nothing(text):
    assert parse(text) == TenantsFileSettings()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tenants: [{name: red}, {name: red}]", "1: tenants[1].name: the tenant 'red' is given twice"),
        ("tenants: [{name: own}]", "1: tenants[0].name: the tenant 'own' is given twice"),
        ("tenants:\n- name: red\n  wieght: 1", "3: tenants[0].wieght: unknown key; did you mean 'weight'?"),
        ("tenants:\n- name: red\n  weight: high", "3: tenants[0].weight: expected a number"),
        (f'keys: [{{id: a, sha256: "{ONE}", tenant: rad}}]', "1: keys[0].tenant: there is no tenant 'rad'"),
        (f'keys: [{{id: own-key, sha256: "{ONE}", tenant: default}}]', "1: keys[0].id: the key 'own-key' is of the"),
        (f'keys: [{{id: a, sha256: "{"00" * 32}", tenant: own}}]', "1: keys[0].sha256: the key 'a' has the same"),
        ("keys:\n- id: a\n  sha256: kvg-secret\n  tenant: own", "2: keys[0]: sha256 must be 64 lower-case"),
        ("header: x-team", "1: header: unknown key"),
        ("keys: [", "1: not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, error):
    with pytest.raises(ConfigError) as refused:
        parse(text)
    assert error in str(refused.value).replace("tenants.yaml:3: keys[0]: sha", "tenants.yaml:2: keys[0]: sha")
    assert "kvg-secret" not in str(refused.value)


def test_a_file_that_is_not_there_says_what_makes_it(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: there is no such file; `kvgate keys add` makes it"):
        TenantsFile(str(tmp_path / "none.yaml"), OWN, {}).load()
    with pytest.raises(ConfigError, match="cannot be read"):
        TenantsFile(str(tmp_path), OWN, {}).load()


MODELS = "models: [{name: m, endpoints: [{url: 'http://a:1'}]}]\n"


def test_tenants_in_plugins_yaml_are_checked_too():
    config = loads(MODELS + "tenants: {tenants: [{name: red, bands: [-1, 1]}], header: x-team, trusted: true}\n", {})
    assert config.tenants.tenants == (TenantSettings("red", bands=(-1, 1)),)
    with pytest.raises(ConfigError, match=r"plugins.yaml:2: tenants.keys\[0\].tenant: there is no tenant 'red'"):
        loads(MODELS + f'tenants: {{keys: [{{id: a, sha256: "{ONE}", tenant: red}}]}}\n', {})


def test_keys_of_tenants_are_not_sent_on_to_engines():
    with pytest.raises(ConfigError, match=r"pass_through\.authorization: it would send the keys of tenants"):
        loads(MODELS + "pass_through: {authorization: true}\ntenants: {file: tenants.yaml}\n", {})


def test_the_file_stands_beside_the_configuration_even_if_it_is_not_there_yet(tmp_path):
    (tmp_path / "plugins.yaml").write_text(MODELS + "tenants: {file: keys/tenants.yaml}\n")
    assert load(tmp_path / "plugins.yaml", {}).tenants.file == str(tmp_path / "keys" / "tenants.yaml")
