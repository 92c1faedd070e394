"""Lists of endpoints in three forms, and what is wrong with them."""

from __future__ import annotations

import pytest

from gateway.discovery.entries import of_json, of_yaml, with_lines
from gateway.discovery.settings import DiscoverSettings
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings

ANY = DiscoverSettings(file="x", labels={"fleet": "one"})

MIXED = """
- url: http://10.0.0.1:8000
  role: prefill
  api_key: ${KEY}
- targets: ["10.0.0.2:8000", "[fd00::2]:8000"]
  labels: {role: decode, zone: a, __scheme__: https, __meta_x: y}
- {name: four, namespace: default, address: 10.0.0.4, port: "8000", labels: {zone: b}}
"""


def test_forms_may_be_mixed_and_have_defaults() -> None:
    listed = of_yaml(MIXED, "f.yaml", ANY, {"KEY": "sk-secret"})
    both = {"role": "decode", "labels": {"fleet": "one", "role": "decode", "zone": "a"}}
    assert listed.wrong == []
    assert listed.endpoints == [
        EndpointSettings("http://10.0.0.1:8000", "prefill", labels={"fleet": "one"}, api_key="sk-secret"),
        EndpointSettings("https://10.0.0.2:8000", **both),
        EndpointSettings("https://[fd00::2]:8000", **both),
        EndpointSettings("http://10.0.0.4:8000", name="four", labels={"fleet": "one", "zone": "b"}),
    ]
    assert of_yaml("endpoints:" + MIXED.replace("\n", "\n  "), "f.yaml", ANY, {"KEY": "sk-secret"}) == listed


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ('{"url": "ftp://a"}', "3: [1]: url: 'ftp://a' must be http://HOST:PORT"),
        ('{"url": "http://a:1",\n"rolle": "both"}', "4: [1].rolle: unknown key; did you mean 'role'?"),
        ('{"targets": ["a:1",\n"b"]}', "4: [1].targets[1]: 'b' must be HOST:PORT"),
        ('{"targets": ["http://a:1"]}', "3: [1].targets[0]: 'http://a:1' must be HOST:PORT"),
        ('{"targets": ["a:0"]}', "3: [1].targets[0]: url: the port of 'http://a:0' must be in 1..65535"),
        ('{"targets": [],\n"labels": {"role": "worker"}}', "4: [1].labels.role: 'worker' is no role"),
        ('{"targets": "a:1"}', "3: [1].targets: expected a list"),
        ('{"address": "10.0.0.1", "port": "x"}', "3: [1].port: 'x' is no port"),
        ('{"address": "10.0.0.1"}', "3: [1].port: this key is required"),
        ("3", "3: [1]: expected a mapping"),
    ],
)
def test_an_entry_that_is_wrong_is_left_out_with_its_line(entry: str, wrong: str) -> None:
    text = f'[\n{{"targets": ["good:1"]}},\n{entry}]'
    for listed in (with_lines(text, "f", ANY), of_yaml(text, "f", ANY, {})):
        assert [one.url for one in listed.endpoints] == ["http://good:1", *(["http://a:1"] if '"b"' in entry else [])]
        (line,) = listed.wrong
        assert line.startswith(f"f:{wrong}")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- url: [", "f.yaml:1: not YAML"),
        ("a: 1", "f.yaml:1: expected a list: of endpoints"),
        ("endpoints: 3", "f.yaml:1: endpoints: expected a list: of endpoints"),
        ("- url: ${NONE}", "f.yaml:1: [0].url: the environment has no NONE"),
        ("", "f.yaml: expected a list"),
    ],
)
def test_what_is_wrong_with_the_whole_is_an_error(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        of_yaml(text, "f.yaml", ANY, {})
    assert error in raised.value.message


def test_json_has_no_references() -> None:
    text = '[{"targets": ["a:1"], "labels": {"cost": "$5 ${X}"}}, 3]'
    assert of_json(text, "f.json", ANY).endpoints[0].labels["cost"] == "$5 ${X}"
    assert with_lines(text, "f.json", ANY).wrong[0].startswith("f.json:1: [1]")
    with pytest.raises(ConfigError, match=r"f\.json:2: not JSON"):
        of_json("[\n", "f.json", ANY)
