from __future__ import annotations

import pytest

from gateway.commands.check_tenants import of_tenants
from gateway.config.describe import MASK, describe
from gateway.config.load import load, loads
from gateway.core.clock import ManualClock
from tests.support.valkey import needs_valkey, valkey

MODELS = "models: [{name: sim, aliases: [nick], endpoints: [{url: 'http://a:1'}]}]\n"
KEY = f'sha256: "{"11" * 32}", tenant: red'
NOW = ManualClock(epoch=1_800_000_000.0)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("header: x-team", "tenants.header is x-team, but tenants.trusted is false"),
        ("trusted: true", "there is no tenants.header to trust"),
        (
            f"tenants: [{{name: red}}], keys: [{{id: ci, {KEY}, expires: 2027-01-01}}]",
            "the key ci has ended on 2027-01-01",
        ),
        (f"tenants: [{{name: red}}], keys: [{{id: ci, {KEY}, expires: 2027-01-01}}]", "no key is valid"),
        ("tenants: [{name: red, models: [smi]}]", "the tenant red: models: 'smi' is no model or alias"),
        ("tenants: [{name: red, per_model: {'x*': {queued: 1}}}]", "the tenant red: per_model: 'x*' is no model"),
        (f"tenants: [{{name: red}}], keys: [{{id: ci, {KEY}, models: [smi]}}]", "the key ci: models: 'smi' is no"),
        ("prices: {smi: {input: 1, output: 1}}", "tenants.prices: 'smi' is no model"),
        ("tenants: [{name: red, budget: {amount: 5, unit: money}}]", "a budget in money, but sim costs nothing"),
    ],
)
async def test_what_will_disappoint_is_warned_of(text, warning):
    assert any(warning in one for one in await of_tenants(loads(MODELS + f"tenants: {{{text}}}\n", {}), NOW))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tenants: {header: x-team, trusted: true}\n",
        "tenants: {tenants: [{name: red, models: ['si*', nick], per_model: {sim: {queued: 1}},"
        " budget: {amount: 5, unit: money}}], prices: {'*': {input: 1, output: 1}},"
        f" keys: [{{id: ci, {KEY}, expires: 2028-01-01}}, {{id: ci, sha256: '{'22' * 32}', tenant: red,"
        " expires: 2027-01-01}]}\n",
        "tenants: {file: none.yaml, tenants: [{name: red, budget: {amount: 5}}]}\nclient_keys: {values: [abc]}\n",
    ],
)
async def test_what_is_in_order_is_not(text):
    assert await of_tenants(loads(MODELS + text, {}), NOW) == []


async def test_a_file_s_tenants_and_keys_are_looked_at_too(tmp_path):
    (tmp_path / "plugins.yaml").write_text(MODELS + "tenants: {file: tenants.yaml}\n")
    (tmp_path / "tenants.yaml").write_text("tenants: [{name: red, models: [smi]}]\n")
    found = await of_tenants(load(tmp_path / "plugins.yaml", {}), NOW)
    assert ["no key is valid" in found[0], "'smi' is no model" in found[1]] == [True, True]


@needs_valkey
async def test_a_valkey_that_cannot_be_reached_is_a_warning(tmp_path):
    async with valkey(tmp_path) as server:
        config = loads(MODELS + f"tenants: {{valkey: {{url: '{server.settings.url}'}}}}\n", {})
        assert ["no key is valid" in one for one in await of_tenants(config, NOW)] == [True]
    [warning] = await of_tenants(config, NOW)
    assert "Valkey cannot be reached" in warning


def test_what_is_described_shows_no_secret():
    settings = "tenants: {admin_token: a-long-admin-token, valkey: {url: 'redis://:a-password@host'}}\n"
    text = describe(loads(MODELS + settings, {}))
    assert "a-long-admin-token" not in text
    assert "a-password" not in text
    assert text.count(MASK) == 2
