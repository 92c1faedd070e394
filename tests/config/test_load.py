from __future__ import annotations

import os

import pytest

from gateway.config.load import load, loads
from gateway.config.settings import Config, ModelSettings
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings
from gateway.scheduling.settings import PluginSettings, ProfileSettings, WeightedScorer

MODELS = """\
models:
- name: m
  endpoints:
  - url: http://a:1
  - url: http://b:1
"""


def error(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loads(text, environ)
    return caught.value.message


def test_the_shortest_useful_file() -> None:
    assert loads(MODELS, {}) == Config(
        models=(
            ModelSettings(name="m", endpoints=(EndpointSettings(url="http://a:1"), EndpointSettings(url="http://b:1"))),
        )
    )


def test_a_file_that_uses_much() -> None:
    config = loads(
        """\
listen: {host: 0.0.0.0, port: "${PORT}", admin: ""}
models:
- name: big
  aliases: [gpt-4o]
  tokenizer: Qwen/Qwen3-32B
  chat_template_kwargs: {enable_thinking: false}
  handler: main
  limits: {max_in_flight: 10}
  endpoints:
  - {url: "http://10.0.0.1:8000", role: decode, labels: {zone: a}, api_key: "${ENGINE_KEY}"}
  - url: http://10.0.0.2:8000
    ranks: 2
    kv_events: {endpoint: "tcp://10.0.0.2:5557", replay: "tcp://10.0.0.2:5558"}
- name: small
  handler: main
  endpoints: [{url: "http://10.0.0.1:8000"}]
plugins:
- {name: cost, type: placement-cost, parameters: {lam: 0.3}}
- {name: best, type: max-score}
profiles:
- {name: only, scorers: [{plugin: cost, weight: 2}], picker: best}
handlers:
- {name: main, type: single, parameters: {profile: only}}
""",
        {"PORT": "9999", "ENGINE_KEY": "sk-1"},
    )
    assert config.listen.port == 9999
    assert config.models[0].endpoints[0].api_key == "sk-1"
    assert config.models[0].chat_template_kwargs == {"enable_thinking": False}
    assert config.models[0].limits.max_in_flight == 10
    assert config.plugins[0] == PluginSettings(name="cost", type="placement-cost", parameters={"lam": 0.3})
    assert config.profiles == (
        ProfileSettings(name="only", picker="best", scorers=(WeightedScorer(plugin="cost", weight=2.0),)),
    )
    assert "sk-1" not in repr(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plugins.yaml: empty; the shortest useful file names a model"),
        ("# only a comment\n", "plugins.yaml: empty"),
        ("- models\n", "plugins.yaml:1: expected a mapping, found a list"),
        ("hello\n", "plugins.yaml:1: expected a mapping, found the string 'hello'"),
        ("listen: {}\n", "plugins.yaml:1: models: this key is required"),
        ("models: []\n", "plugins.yaml:1: models must name at least one model"),
        ("model: []\n", "plugins.yaml:1: model: unknown key; did you mean 'models'? Allowed: client_keys, epp"),
        ("models:\n- name: m\n", "plugins.yaml:2: models[0].endpoints: this key is required, or 'discover'"),
        (
            "models:\n- name: m\n  discover:\n  - file: a\n    kv_events: {connects: true}\n",
            "plugins.yaml:5: models[0].discover[0].kv_events.connects: they connect to nothing",
        ),
        (
            "models:\n- name: m\n  discover:\n  - file: a\n  - {file: a, role: decode}\n",
            "plugins.yaml:5: models[0].discover[1]: the source 'file a' is given twice",
        ),
        ("models:\n- name: m\n  discover: [{role: both}]\n", "models[0].discover[0]: a source has exactly one of"),
        ("models:\n- endpoints: [{url: 'http://a'}]\n", "plugins.yaml:2: models[0].name: this key is required"),
        (
            "models:\n- name: m\n  endpoints:\n  - url: http://a:1\n    kv_evnts: {}\n",
            "plugins.yaml:5: models[0].endpoints[0].kv_evnts: unknown key; did you mean 'kv_events'?",
        ),
        (
            "models:\n- name: m\n  endpoints:\n  - url: a:1\n",
            "plugins.yaml:4: models[0].endpoints[0]: url: 'a:1' must be http://HOST:PORT, https://HOST:PORT or unix:///PATH",
        ),
        (
            "models:\n- name: m\n  endpoints:\n  - url: http://a:1/v1\n",
            "plugins.yaml:4: models[0].endpoints[0]: url: 'http://a:1/v1' must end after the port",
        ),
        (
            "models:\n- name: m\n  endpoints:\n  - url: http://a:1\n    role: decoder\n",
            "plugins.yaml:5: models[0].endpoints[0].role: the string 'decoder' is not one of these; "
            "did you mean 'decode'? Allowed: both, decode, prefill",
        ),
        (MODELS + "listen:\n  port: 70000\n", "plugins.yaml:7: listen: port must be in 0..65535"),
        (MODELS + "listen:\n  admin: here\n", "plugins.yaml:7: listen: admin: 'here' must be HOST:PORT"),
        (MODELS + "timeouts: {head: 0}\n", "plugins.yaml:6: timeouts: head must be above 0 seconds"),
        (MODELS + "log: {level: verbose}\n", "plugins.yaml:6: log.level: the string 'verbose' is not one of these"),
        (
            MODELS + "log: {requests: yes}\n",
            "plugins.yaml:6: log.requests: expected true or false, found the string 'yes'",
        ),
        (MODELS + "origin: {}\n", "plugins.yaml:6: origin: unknown key"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, message) -> None:
    assert message in error(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MODELS + "- name: m\n  endpoints: [{url: http://a:1}]\n",
            "plugins.yaml:6: models[1].name: the model or alias 'm' is given twice, first on line 2",
        ),
        (
            MODELS + "  aliases: [x, m]\n",
            "plugins.yaml:6: models[0].aliases[1]: the model or alias 'm' is given twice, first on line 2",
        ),
        (
            MODELS + "  aliases: [x]\n- name: n\n  aliases: [x]\n  endpoints: [{url: http://a:1}]\n",
            "plugins.yaml:8: models[1].aliases[0]: the model or alias 'x' is given twice, first on line 6",
        ),
        (MODELS + "  aliases: ['']\n", "models[0].aliases[0]: the name of a model or alias must not be empty"),
        (
            MODELS + "  - url: http://a:1/\n",
            "plugins.yaml:6: models[0].endpoints[2].url: the engine 'http://a:1' is given twice, first on line 4; "
            "an engine with several data-parallel ranks is one endpoint with 'ranks'",
        ),
        (
            "models:\n- name: m\n  endpoints: [{url: http://a:1, name: x}, {url: http://b:1, name: x}]\n",
            "plugins.yaml:3: models[0].endpoints[1].name: the endpoint 'x' is given twice",
        ),
        (
            "models:\n- name: m\n  endpoints: [{url: http://a:1, name: x}]\n"
            "- name: n\n  endpoints: [{url: http://b:1, name: x}]\n",
            "plugins.yaml:5: models[1].endpoints[0].name: 'x' is the name of http://a:1 in another model",
        ),
        (
            MODELS + "plugins:\n- {name: best, type: max-score}\n- {name: best, type: random}\n",
            "plugins.yaml:8: plugins[1].name: the plugin 'best' is given twice, first on line 7",
        ),
        (
            MODELS + "profiles:\n- {name: p, picker: best}\n- {name: p, picker: best}\n",
            "plugins.yaml:8: profiles[1].name: the profile 'p' is given twice, first on line 7",
        ),
        (
            MODELS + "handlers:\n- {name: h, type: single}\n- {name: h, type: single}\n",
            "plugins.yaml:8: handlers[1].name: the handler 'h' is given twice, first on line 7",
        ),
        (
            MODELS + "profiles:\n- {name: default, picker: best, filters: [healthy, healthy]}\n",
            "profiles[0].filters[1]: the filter of this profile 'healthy' is given twice",
        ),
        (
            MODELS + "profiles:\n- {name: default, picker: best, scorers: [{plugin: cost}, {plugin: cost}]}\n",
            "profiles[0].scorers[1].plugin: the scorer of this profile 'cost' is given twice",
        ),
    ],
)
def test_names_are_given_once(text, message) -> None:
    assert message in error(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MODELS + "  handler: defualt\n",
            "models[0].handler: there is no handler 'defualt'; did you mean 'default'? "
            "Allowed: default, prefill-decode",
        ),
        (
            MODELS + "profiles:\n- name: default\n  picker: bst\n",
            "plugins.yaml:8: profiles[0].picker: there is no plugin 'bst'; did you mean 'best'? Allowed: best, cost",
        ),
        (
            MODELS + "profiles:\n- name: default\n  picker: best\n  filters:\n  - healthy\n  - fast\n",
            "plugins.yaml:11: profiles[0].filters[1]: there is no plugin 'fast'",
        ),
        (
            MODELS + "profiles:\n- name: default\n  picker: best\n  scorers:\n  - plugin: costs\n",
            "plugins.yaml:10: profiles[0].scorers[0].plugin: there is no plugin 'costs'; did you mean 'cost'?",
        ),
        (
            MODELS + "plugins:\n- {name: best, type: max-score}\n",
            "plugins.yaml:6: plugins: the default profiles need the plugin 'healthy', "
            "which the file's own plugins lack; give 'profiles' too",
        ),
        (
            MODELS + "handlers:\n- {name: h, type: single}\n",
            "plugins.yaml:2: models[0].handler: there is no handler 'default'. Allowed: h",
        ),
        (MODELS + "profiles:\n- {name: p, picker: best, scorers: [{plugin: cost, weight: -1}]}\n", "weight must be a"),
    ],
)
def test_references_lead_somewhere(text, message) -> None:
    assert message in error(text)


def test_one_engine_may_serve_several_models_under_one_name() -> None:
    text = (
        "models:\n- name: m\n  endpoints: [{url: http://a:1, name: x}]\n"
        "- name: n\n  endpoints: [{url: http://a:1/, name: x}]\n"
    )
    assert len(loads(text, {}).models) == 2


@pytest.mark.parametrize(
    "text",
    [
        MODELS + "    api_key: [sk-secret]\n",
        MODELS + "    api_key: sk-secret\n    api_key: sk-secret\n",
        MODELS + "client_keys: {values: sk-secret}\n",
        MODELS + "client_keys: {values: [sk-secret, {sk: secret}]}\n",
        MODELS + "client_keys: {values: [sk-secret, '']}\n",
        MODELS + "    api_key: ${KEY}\n    ranks: ${KEY}\n",
        "models:\n- name: m\n  endpoints: [{url: 'http://${KEY}'}, {url: 'http://${KEY}'}]\n",
        "models:\n- name: m\n  endpoints:\n  - url: ${KEY}\n",
        MODELS + "    api_key: 'sk-secret\n",
    ],
)
def test_a_key_is_in_no_error(text) -> None:
    message = error(text, KEY="sk-secret")
    assert message.startswith("plugins.yaml:")
    assert "sk-secret" not in message


def test_paths_beside_the_file_are_made_absolute(tmp_path) -> None:
    (tmp_path / "tokenizer").mkdir()
    for name in ("template.jinja", "keys"):
        (tmp_path / name).write_text("x")
    (tmp_path / "p.yaml").write_text(
        "client_keys: {file: keys}\n"
        "models:\n"
        "- {name: a, tokenizer: ./tokenizer, chat_template: template.jinja, endpoints: [{url: 'http://a'}]}\n"
        "- {name: b, tokenizer: Qwen/Qwen3-32B, chat_template: /abs.jinja, endpoints: [{url: 'http://a'}]}\n"
    )
    config = load(os.path.relpath(tmp_path / "p.yaml"), {})
    a, b = config.models
    assert (a.tokenizer, a.chat_template) == (str(tmp_path / "tokenizer"), str(tmp_path / "template.jinja"))
    assert (b.tokenizer, b.chat_template) == ("Qwen/Qwen3-32B", "/abs.jinja")
    assert config.client_keys.file == str(tmp_path / "keys")


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file"):
        load(tmp_path / "absent.yaml", {})


CONNECTING = """\
models:
- name: m
  endpoints:
  - {url: "http://a:1", kv_events: {connects: true}}
  - {url: "http://b:1", kv_events: {connects: true, topic: kv@a:1@m}}
"""


def test_engines_that_connect_need_something_to_connect_to() -> None:
    found = error(CONNECTING)
    assert found.startswith("plugins.yaml:4: models[0].endpoints[0].kv_events.connects: it connects to nothing")
    assert "listen" in found


def test_engines_that_connect_need_topics_of_their_own() -> None:
    listen = 'kv_events: {listen: "tcp://*:5557"}\n'
    found = error(CONNECTING + listen)
    assert "models[0].endpoints[1].kv_events.topic: 'kv@a:1@m' is the topic of http://a:1, too" in found
    config = loads(CONNECTING.replace("kv@a:1@m", "t") + listen, {})
    assert config.kv_events.listen == "tcp://*:5557"


def test_files_of_tenants_stand_beside_the_configuration_though_they_are_not_there_yet(tmp_path):
    path = tmp_path / "plugins.yaml"
    path.write_text(
        "models: [{name: m, endpoints: [{url: 'http://e:1'}]}]\ntenants: {file: tenants.yaml, state: used.json}\n"
    )
    tenants = load(path, {}).tenants
    assert (tenants.file, tenants.state) == (str(tmp_path / "tenants.yaml"), str(tmp_path / "used.json"))


@pytest.mark.parametrize("workers", [1, 4, 256, "auto"])
def test_workers(workers) -> None:
    assert loads(f"{MODELS}listen: {{workers: {workers}}}", {}).listen.workers == workers


@pytest.mark.parametrize(
    ("workers", "problem"),
    [
        ("0", "workers must be in 1..256, or auto"),
        ("257", "workers must be in 1..256, or auto"),
        ("many", "expected an integer or one of auto"),
        ("2.0", "expected an integer or one of auto"),
    ],
)
def test_workers_that_cannot_be(workers, problem) -> None:
    assert problem in error(f"{MODELS}listen: {{workers: {workers}}}")


@pytest.mark.parametrize(
    ("listen", "problem"),
    [
        ("metrics: 9090", "listen.metrics: expected a string"),
        ("metrics: '9090'", "metrics: '9090' must be HOST:PORT"),
        ("metrics: '0.0.0.0:9090', workers: 2", "metrics is for one process"),
    ],
)
def test_metrics_alone_have_an_address_and_one_process(listen, problem) -> None:
    assert problem in error(f"{MODELS}listen: {{{listen}}}")


@pytest.mark.parametrize("workers", [2, "auto"])
def test_engines_connect_to_one_process_only(workers) -> None:
    text = f'{MODELS}kv_events: {{listen: "tcp://*:5557"}}\nlisten: {{workers: {workers}}}\n'
    assert "kv_events.listen: one process can listen there" in error(text)


def test_a_text_that_was_read_already_has_the_file_s_folder(tmp_path) -> None:
    (tmp_path / "tokens").mkdir()
    file = tmp_path / "plugins.yaml"
    text = MODELS.replace("- name: m", "- name: m\n  tokenizer: tokens")
    file.write_text("changed meanwhile")
    assert load(file, {}, text=text).models[0].tokenizer == str(tmp_path / "tokens")
    with pytest.raises(ConfigError, match=r"plugins\.yaml:1: "):
        load(file, {}, text="[")


def test_files_of_sources_are_beside_the_configuration(tmp_path) -> None:
    folder = tmp_path / "of [x]"
    folder.mkdir()
    (folder / "plugins.yaml").write_text(
        "models:\n- name: m\n  discover: [{file: engines.yaml}, {file: 'pool/*.json'}, {file: /etc/x.yaml}]\n"
    )
    found = [one.file for one in load(folder / "plugins.yaml", {}).models[0].discover]
    assert found == [f"{folder}/engines.yaml", f"{tmp_path}/of [[]x]/pool/*.json", "/etc/x.yaml"]


def test_a_kubeconfig_is_beside_the_configuration(tmp_path) -> None:
    (tmp_path / "plugins.yaml").write_text(
        "models:\n- name: m\n  discover: [{kubernetes: {pool: p, kubeconfig: config}}]\n"
    )
    found = load(tmp_path / "plugins.yaml", {}).models[0].discover[0].kubernetes
    assert found is not None
    assert found.kubeconfig == f"{tmp_path}/config"
