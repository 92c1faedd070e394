"""Covers: gateway/commands/envoy/document.py, gateway/commands/envoy/engines.py, gateway/commands/envoy/fields.py,
gateway/commands/envoy/hosts.py, gateway/commands/envoy/listener.py, gateway/commands/envoy/options.py,
gateway/commands/envoy/picker.py, gateway/commands/envoy/run.py, gateway/commands/envoy/wanted.py.

What Envoy's configuration says. That Envoy takes it, and does what is wanted, is in tests/envoy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import EXIT_CONFIG, main
from gateway.commands.envoy.document import document, notes
from gateway.commands.envoy.wanted import Address, Mode, Wanted
from gateway.config.load import loads
from gateway.errors import ConfigError

PLAIN = """
models:
- name: sim
  endpoints: [{url: "http://10.0.0.1:8001"}, {url: "http://10.0.0.2"}]
"""

KEYED = """
models:
- name: sim
  endpoints: [{url: "http://10.0.0.1:8001", api_key: a}, {url: "http://10.0.0.2"}]
"""


def made(text: str = PLAIN, **wanted: Any) -> dict[str, Any]:
    here = [Address("127.0.0.1", 8080), Address("127.0.0.1", 9901)]
    return document(loads(text, {}), Wanted(*here, **{"pickers": (Address("127.0.0.1", 9002),)} | wanted))


def cluster(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in document["static_resources"]["clusters"] if one["name"] == name)


def hosts(cluster: dict[str, Any], priority: int = 0) -> list[str]:
    found = [one for one in cluster["load_assignment"]["endpoints"] if one.get("priority", 0) == priority]
    places = [host["endpoint"]["address"]["socket_address"] for one in found for host in one["lb_endpoints"]]
    return [str(Address(place["address"], place["port_value"])) for place in places]


def http(document: dict[str, Any]) -> dict[str, Any]:
    return document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def asked(document: dict[str, Any]) -> dict[str, Any]:
    """The filter that asks the picker."""
    return http(document)["http_filters"][-2]["typed_config"]


@pytest.mark.parametrize("engines", ["discover: [{file: engines.yaml}]", "endpoints: []"])
def test_where_engines_come_and_go_envoy_goes_where_the_picker_says(engines: str) -> None:
    text = f"models: [{{name: sim, {engines}}}]\n"
    found = cluster(made(text), "engines")
    assert (found["type"], found["lb_policy"]) == ("ORIGINAL_DST", "CLUSTER_PROVIDED")
    assert "load_assignment" not in found
    here = Wanted(*[Address("127.0.0.1", 1)] * 2, pickers=(Address("127.0.0.1", 9002),))
    assert notes(loads(text, {}), here) == [
        "Envoy fails closed: engines come and go, and only the picker knows which there are"
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("models: [{name: m, endpoints: []}]\nepp: {fallbacks: 1}\n", "plugins.yaml:2: epp.fallbacks: where engines"),
        ("models: [{name: m, discover: [{file: x, scheme: https}]}]\n", "let it be plain HTTP"),
        ("models: [{name: m, endpoints: [{url: 'https://a'}], discover: [{file: x}]}]\n", "let it be plain HTTP"),
    ],
)
def test_what_envoy_cannot_do_where_engines_come_and_go(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        made(text)
    assert error in raised.value.message


def test_the_engines_are_those_of_the_file() -> None:
    engines = cluster(made(), "engines")
    assert hosts(engines) == ["10.0.0.1:8001", "10.0.0.2:80"]
    assert engines["type"] == "STATIC"


def test_an_engine_of_two_models_is_one_host() -> None:
    text = PLAIN + """- {name: other, endpoints: [{url: "http://10.0.0.2"}, {url: "http://10.0.0.1:8001"}]}"""
    document = made(text)
    assert hosts(cluster(document, "engines")) == ["10.0.0.1:8001", "10.0.0.2:80"]
    assert asked(document)["failure_mode_allow"], "any engine can answer any request"


def test_names_are_looked_up() -> None:
    text = """models: [{name: sim, endpoints: [{url: "http://engine-a:8000"}, {url: "http://[::1]:8000"}]}]"""
    engines = cluster(made(text), "engines")
    assert engines["type"] == "STRICT_DNS"
    assert hosts(engines) == ["engine-a:8000", "[::1]:8000"]


def test_the_fallback_knows_no_engine_that_only_prefills_or_drains() -> None:
    text = """
models:
- name: sim
  endpoints:
  - {url: "http://10.0.0.1:1", role: prefill}
  - {url: "http://10.0.0.1:2", role: decode}
  - {url: "http://10.0.0.1:3", drain: true}
"""
    engines = cluster(made(text), "engines")
    assert hosts(engines) == ["10.0.0.1:2"]
    assert hosts(engines, priority=1) == ["10.0.0.1:1", "10.0.0.1:3"]


def test_a_proxy_that_splits_requests_is_reached_by_choice_alone(tmp_path, capsys) -> None:
    text = "epp: {split: '127.0.0.1:8000'}" + PLAIN
    engines = cluster(made(text), "engines")
    assert hosts(engines) == ["10.0.0.1:8001", "10.0.0.2:80"]
    assert hosts(engines, priority=1) == ["127.0.0.1:8000"]
    assert hosts(cluster(made("epp: {split: headers}" + PLAIN), "engines"), priority=1) == []
    path = tmp_path / "plugins.yaml"
    path.write_text(text)
    assert main(["envoy", str(path)]) == EXIT_CONFIG
    assert "--listen" in capsys.readouterr().err, "the proxy is there"
    assert main(["envoy", str(path), "--listen", "127.0.0.1:8080"]) == 0


def test_where_all_drain_there_is_still_somebody() -> None:
    text = """models: [{name: sim, endpoints: [{url: "http://10.0.0.1:1", drain: true}]}]"""
    assert hosts(cluster(made(text), "engines")) == ["10.0.0.1:1"]


def test_tls_of_each_engine_is_its_own() -> None:
    text = """
models:
- name: sim
  endpoints:
  - {url: "http://10.0.0.1:1"}
  - {url: "https://10.0.0.1:2", tls: {ca: /ca.pem, server_name: engine, certificate: /own.pem}}
  - {url: "https://engine-b", tls: {verify: false}}
  - {url: "https://engine-c"}
"""
    engines = cluster(made(text), "engines")
    contexts = {one["name"]: one["transport_socket"]["typed_config"] for one in engines["transport_socket_matches"]}
    assert list(contexts) == ["10.0.0.1:2", "engine-b:443", "engine-c:443"]
    full, unverified, plain = contexts.values()
    assert full["sni"] == "engine"
    common = full["common_tls_context"]
    assert common["validation_context"]["trusted_ca"] == {"filename": "/ca.pem"}
    [name] = common["validation_context"]["match_typed_subject_alt_names"]
    assert name == {"san_type": "DNS", "matcher": {"exact": "engine"}}
    [pair] = common["tls_certificates"]
    assert pair == {"certificate_chain": {"filename": "/own.pem"}, "private_key": {"filename": "/own.pem"}}
    assert "validation_context" not in unverified["common_tls_context"]
    trusted = plain["common_tls_context"]["validation_context"]["trusted_ca"]
    assert trusted == {"filename": "/etc/ssl/certs/ca-certificates.crt"}


BY_NAME = """
models:
- name: sim
  endpoints: [{url: "http://10.0.0.1:8001"}]
  discover: [{dns: {name: engines.example., port: 8000}}]
"""


def test_names_of_dns_are_looked_up_by_envoy_itself() -> None:
    document = made(BY_NAME)
    engines = cluster(document, "engines")
    assert engines["type"] == "STRICT_DNS"
    assert hosts(engines) == ["10.0.0.1:8001", "engines.example:8000"]
    assert asked(document)["failure_mode_allow"]


def test_but_not_at_a_server_of_names_that_only_we_ask() -> None:
    document = made(BY_NAME.replace("port: 8000", "port: 8000, nameserver: 10.0.0.53"))
    assert cluster(document, "engines")["type"] == "ORIGINAL_DST"
    assert not asked(document)["failure_mode_allow"]
    assert "retry_policy" not in http(document)["route_config"]["virtual_hosts"][0]


def test_a_unix_socket_is_refused() -> None:
    with pytest.raises(ConfigError, match="unix:///run/engine: Envoy follows"):
        made("""models: [{name: sim, endpoints: [{url: "unix:///run/engine"}]}]""")


@pytest.mark.parametrize("mode", Mode)
def test_what_the_picker_hears(mode) -> None:
    processing = asked(made(mode=mode))["processing_mode"]
    full = processing["request_body_mode"] == "FULL_DUPLEX_STREAMED"
    assert full == (mode is not Mode.BUFFERED)
    assert processing["request_trailer_mode"] == ("SEND" if full else "SKIP"), "Envoy wants both or none"
    assert (processing["response_header_mode"] == "SEND") == (mode in (Mode.ENDS, Mode.FULL))
    assert bool(asked(made(mode=mode))["response_attributes"]) == (mode in (Mode.ENDS, Mode.FULL))


def test_a_second_filter_tells_of_answers_and_holds_nothing_up() -> None:
    tells, asks, _router = http(made(mode=Mode.OBSERVED))["http_filters"]
    assert tells["typed_config"]["observability_mode"]
    assert tells["typed_config"]["processing_mode"]["response_body_mode"] == "STREAMED"
    assert "observability_mode" not in asks["typed_config"]
    config, here = loads(PLAIN, {}), Address("127.0.0.1", 1)
    assert notes(config, Wanted(here, here, (here,), mode=Mode.OBSERVED)) == []
    [note] = notes(config, Wanted(here, here, (here, here), mode=Mode.OBSERVED))
    assert "several pickers" in note


def test_a_buffered_body_has_room() -> None:
    [listener] = made("listen: {max_body: 20000000}" + PLAIN, mode=Mode.BUFFERED)["static_resources"]["listeners"]
    assert listener["per_connection_buffer_limit_bytes"] == 20_000_000


def test_the_pickers_answer_may_take_as_long_as_a_request_may_wait() -> None:
    text = """
models:
- name: sim
  limits: {queue_timeout: 50, no_endpoint_timeout: 300}
  queue: {max_wait: 70}
  endpoints: [{url: "http://10.0.0.1:1"}]
"""
    document = made(text)
    assert asked(document)["message_timeout"] == "430s"
    assert http(document)["request_timeout"] == "490s", "60 s to receive it, and to wait"


def test_without_a_picker_requests_go_on() -> None:
    document = made()
    assert asked(document)["failure_mode_allow"]
    picker = cluster(document, "picker")
    assert picker["common_lb_config"] == {
        "healthy_panic_threshold": {"value": 0},
        "update_merge_window": "0s",
    }, "or Envoy asks the dead one"
    [check] = picker["health_checks"]
    assert check["no_traffic_interval"] == check["interval"] == "1s"
    assert not asked(made(fail_open=False))["failure_mode_allow"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PLAIN + """- {name: other, endpoints: [{url: "http://10.0.0.3"}]}""", "different engines"),
        ("client_keys: {values: [secret]}" + PLAIN, "keys"),
        ("tenants: {file: keys.yaml}" + PLAIN, "keys"),
        (KEYED, "engines need keys"),
    ],
)
def test_where_only_the_picker_can_tell_it_fails_closed(text, why) -> None:
    wanted = Wanted(Address("::", 1), Address("::", 2), (Address("::", 3),))
    config = loads(text, {})
    assert not asked(document(config, wanted))["failure_mode_allow"]
    [note] = notes(config, wanted)
    assert why in note


def test_a_retry_goes_to_no_engine_of_another_model() -> None:
    assert "retry_policy" in http(made())["route_config"]["virtual_hosts"][0]
    others = PLAIN + """- {name: other, endpoints: [{url: "http://10.0.0.3"}]}"""
    for text in (others, KEYED):
        assert "retry_policy" not in http(made(text))["route_config"]["virtual_hosts"][0]


@pytest.mark.parametrize(("attempts", "died"), [(2, True), (3, False)])
def test_a_request_that_may_have_killed_its_engine_is_sent_once_more(attempts, died) -> None:
    policy = http(made(f"retries: {{attempts: {attempts}}}" + PLAIN))["route_config"]["virtual_hosts"][0][
        "retry_policy"
    ]
    assert policy["num_retries"] == attempts - 1
    assert ("reset" in policy["retry_on"].split(",")) == died


def test_no_other_path_reaches_an_engine() -> None:
    *known, rest = http(made())["route_config"]["virtual_hosts"][0]["routes"]
    paths = [one["match"]["path"] for one in known]
    assert {"/v1/chat/completions", "/v1/models"} <= set(paths)
    assert "/sleep" not in paths
    assert "/metrics" not in paths
    assert rest["direct_response"]["status"] == 404


def test_clients_are_served_with_the_certificate_of_listen() -> None:
    text = "listen: {tls: {certificate: /c.pem, key: /k.pem, client_ca: /ca.pem}}" + PLAIN
    [listener] = made(text)["static_resources"]["listeners"]
    context = listener["filter_chains"][0]["transport_socket"]["typed_config"]
    assert context["require_client_certificate"]
    assert context["common_tls_context"]["alpn_protocols"] == ["h2", "http/1.1"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plugins.yaml"
    path.write_text(PLAIN)
    return path


def test_the_command_prints_yaml(file, capsys) -> None:
    assert main(["envoy", str(file), "--mode", "full", "--picker", "10.0.0.9:9002", "--picker", "10.0.0.8:9002"]) == 0
    said, noted = capsys.readouterr()
    assert noted == ""
    document = yaml.safe_load(said)
    assert hosts(cluster(document, "picker")) == ["10.0.0.9:9002", "10.0.0.8:9002"]
    [listener] = document["static_resources"]["listeners"]
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 8000}, "as listen says"
    assert "&id" not in said, "no anchors"


def test_the_picker_is_where_the_file_lets_it_listen(file, capsys) -> None:
    assert main(["envoy", str(file)]) == 0
    picker = cluster(yaml.safe_load(capsys.readouterr().out), "picker")
    assert hosts(picker) == ["127.0.0.1:9002"]
    assert "transport_socket" not in picker
    file.write_text("epp: {listen: '10.0.0.9:9', tls: self-signed}" + PLAIN)
    assert main(["envoy", str(file)]) == 0
    picker = cluster(yaml.safe_load(capsys.readouterr().out), "picker")
    assert hosts(picker) == ["10.0.0.9:9"]
    context = picker["transport_socket"]["typed_config"]["common_tls_context"]
    assert context == {"alpn_protocols": ["h2"]}, "a certificate of its own, which nobody can verify"
    assert picker["health_checks"][0]["tls_options"] == {"alpn_protocols": ["h2"]}


def test_the_pickers_certificate_is_checked_where_there_is_an_authority(file, capsys) -> None:
    assert main(["envoy", str(file), "--picker-ca", "/ca.pem", "--picker", "picker.example:9002"]) == 0
    picker = cluster(yaml.safe_load(capsys.readouterr().out), "picker")
    [name] = picker["transport_socket"]["typed_config"]["common_tls_context"]["validation_context"][
        "match_typed_subject_alt_names"
    ]
    assert name["matcher"] == {"exact": "picker.example"}


def test_of_several_pickers_each_may_show_the_certificate_of_its_own_name(file, capsys) -> None:
    pickers = [word for one in ("a.example:9002", "a.example:9012", "10.0.0.9:9002") for word in ("--picker", one)]
    assert main(["envoy", str(file), "--picker-ca", "/ca.pem", *pickers]) == 0
    picker = cluster(yaml.safe_load(capsys.readouterr().out), "picker")
    context = picker["transport_socket"]["typed_config"]["common_tls_context"]["validation_context"]
    assert context["match_typed_subject_alt_names"] == [
        {"san_type": "DNS", "matcher": {"exact": "a.example"}},
        {"san_type": "IP_ADDRESS", "matcher": {"exact": "10.0.0.9"}},
    ]


@pytest.mark.parametrize("words", [("--listen", "8000"), ("--picker", ":1"), ("--admin", "a:x"), ("--listen", "a:0")])
def test_a_wrong_address_is_refused(words, file, capsys) -> None:
    assert main(["envoy", str(file), *words]) == EXIT_CONFIG
    assert f"{words[0]}: " in capsys.readouterr().err


def test_addresses() -> None:
    assert Address.parse("[::1]:80") == Address("::1", 80)
    assert str(Address("::1", 80)) == "[::1]:80"
