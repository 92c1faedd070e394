from __future__ import annotations

import dataclasses

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.describe import MASK, describe
from gateway.config.load import load, loads
from gateway.config.registry import discover
from gateway.config.settings import Config, ModelSettings
from gateway.fleet.settings import EndpointSettings
from gateway.proxy.settings import ListenSettings, TimeoutSettings
from tests.support.examples import examples

MODELS = "models:\n- name: m\n  endpoints:\n  - url: http://a:1\n"


def test_defaults_are_filled_in_those_of_plugins_too() -> None:
    text = describe(loads(MODELS, {}))
    shown = yaml.safe_load(text)
    limits = {"max_in_flight": 4096, "max_queue": 1024, "queue_timeout": 30.0, "no_endpoint_timeout": None}
    assert shown["models"][0]["limits"] == limits
    assert shown["models"][0]["endpoints"][0]["kv_events"]["enabled"] is True
    parameters = {"lam": None, "reuse": 0.5, "second": 1.0}
    assert {"name": "cost", "type": "placement-cost", "parameters": parameters} in shown["plugins"]
    assert "origin" not in text


def test_it_can_be_loaded_again_and_means_the_same() -> None:
    config = loads(MODELS + "listen: {port: 9}\n", {})
    again = loads(describe(config), {})
    assert dataclasses.replace(again, plugins=config.plugins, handlers=config.handlers) == config
    assert describe(again) == describe(config)


def test_keys_in_the_file_are_masked() -> None:
    text = describe(loads(MODELS + "    api_key: sk-engine\nclient_keys: {values: [sk-client, sk-other]}\n", {}))
    assert "sk-" not in text
    shown = yaml.safe_load(text)
    assert shown["models"][0]["endpoints"][0]["api_key"] == MASK
    assert shown["client_keys"]["values"] == [MASK, MASK]
    loads(text, {})


def test_secrets_of_sources_are_masked() -> None:
    http = "{url: 'http://x', bearer: sk-one, headers: {x-key: sk-two}}"
    text = describe(loads(MODELS + f"  discover: [{{http: {http}, api_key: sk-three}}]\n", {}))
    assert "sk-" not in text
    (source,) = yaml.safe_load(text)["models"][0]["discover"]
    assert (source["api_key"], source["http"]["bearer"], source["http"]["headers"]) == (MASK, MASK, {"x-key": MASK})
    loads(text, {})


def test_what_comes_from_the_environment_is_shown_as_its_reference() -> None:
    environ = {"KEY": "sk-secret", "PORT": "9000", "ZONE": "a"}
    config = loads(
        MODELS + "    api_key: ${KEY}\n    labels: {zone: '${ZONE}'}\nlisten: {port: '${PORT}'}\n"
        "plugins:\n- {name: near, type: labels, parameters: {match: {zone: '${ZONE}'}}}\n"
        "- {name: best, type: max-score}\n"
        "profiles: [{name: default, filters: [near], picker: best}]\n",
        environ,
    )
    text = describe(config)
    assert "sk-secret" not in text
    shown = yaml.safe_load(text)
    assert shown["models"][0]["endpoints"][0]["api_key"] == "${KEY}"
    assert shown["listen"]["port"] == "${PORT}"
    assert shown["plugins"][0]["parameters"]["match"] == {"zone": "${ZONE}"}
    again = loads(text, environ)
    assert again.models == config.models
    assert again.listen == config.listen


def test_a_value_changed_since_is_shown_as_it_is(tmp_path) -> None:
    (tmp_path / "tok").mkdir()
    (tmp_path / "p.yaml").write_text(MODELS + "  tokenizer: ${TOK}\nlisten: {port: '${PORT}', host: '${HOST}'}\n")
    config = load(tmp_path / "p.yaml", {"TOK": "tok", "PORT": "1", "HOST": "h"})
    config = dataclasses.replace(config, listen=dataclasses.replace(config.listen, port=2))
    shown = yaml.safe_load(describe(config))
    assert shown["models"][0]["tokenizer"] == str(tmp_path / "tok")
    assert shown["listen"]["port"] == 2
    assert shown["listen"]["host"] == "${HOST}"


words = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
odd = st.sampled_from(
    ["yes", "no", "1e-3", "12:30:45", "~", "null", "${A}", "$$", "$", "0x1F", "<<", "- a", "a: b", "#x"]
)
texts = words | odd
free = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
REGISTRY = discover()


@examples(60)
@given(
    names=st.lists(texts, min_size=1, max_size=4, unique=True),
    labels=st.dictionaries(texts, texts, max_size=3),
    kwargs=st.dictionaries(texts, free, max_size=3),
    timeout=st.floats(1e-9, 1e9),
    port=st.integers(0, 65535),
    key=st.none() | st.just("k"),
)
def test_any_configuration_survives_the_round_trip(names, labels, kwargs, timeout, port, key) -> None:
    config = Config(
        models=(
            ModelSettings(
                name=names[0],
                aliases=tuple(names[1:]),
                chat_template_kwargs=kwargs,
                endpoints=(EndpointSettings(url="http://a:1", labels=labels, api_key=key),),
            ),
        ),
        listen=ListenSettings(port=port),
        timeouts=TimeoutSettings(head=timeout),
    )
    text = describe(config, REGISTRY)
    again = loads(text, {})
    endpoint = again.models[0].endpoints[0]
    assert endpoint.api_key == (MASK if key else None)
    masked = dataclasses.replace(again.models[0], endpoints=(dataclasses.replace(endpoint, api_key=key),))
    assert dataclasses.replace(again, models=(masked,), plugins=config.plugins, handlers=config.handlers) == config
    assert describe(again, REGISTRY) == text
