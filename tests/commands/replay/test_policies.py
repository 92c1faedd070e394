"""The named policies are configurations like any other's, and ``default`` is the default."""

from __future__ import annotations

import pickle
import random

import pytest

from gateway.commands.replay.policies import POLICIES, load_policies, load_policy, with_parameters
from gateway.config.build import build_scheduler
from gateway.config.settings import DEFAULT_HANDLERS, DEFAULT_PLUGINS, DEFAULT_PROFILES
from gateway.core.clock import SystemClock
from gateway.errors import ConfigError
from gateway.framework import Context

OWN = """
plugins:
- {name: cost, type: placement-cost, parameters: {lam: 0.2}}
- {name: best, type: max-score}
profiles:
- {name: default, scorers: [{plugin: cost}], picker: best}
"""


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_wired(name) -> None:
    policy = load_policy(name)
    scheduler = build_scheduler(policy.config, lambda plugin: Context(plugin, SystemClock(), random.Random(1)))
    assert policy.name == name
    assert policy.handler in scheduler.handlers


def test_the_default_is_exactly_the_default() -> None:
    config = load_policy("default").config
    assert config.plugins == DEFAULT_PLUGINS
    assert config.profiles == DEFAULT_PROFILES
    assert config.handlers == DEFAULT_HANDLERS


def test_llm_d_is_as_it_ships() -> None:
    config = load_policy("llm-d").config
    [profile] = config.profiles
    weights = {scorer.plugin: scorer.weight for scorer in profile.scorers}
    assert weights == {"prefix": 3, "queue": 2, "kv": 2}
    assert {plugin.name: dict(plugin.parameters) for plugin in config.plugins}["queue"] == {"relative": True}


def test_a_worker_process_can_be_given_one() -> None:
    for policy in load_policies("all"):
        assert pickle.loads(pickle.dumps(policy)) == policy


def test_names_are_taken_once_and_in_order() -> None:
    assert [one.name for one in load_policies("lmetric, default,lmetric")] == ["lmetric", "default"]
    assert [one.name for one in load_policies("all")] == list(POLICIES)
    assert [one.name for one in load_policies("lmetric,all")][:2] == ["lmetric", "default"]


def test_a_file_is_a_policy_with_or_without_models(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(OWN)
    assert load_policy(str(path)).name == "mine"
    assert load_policy(str(path)).config.plugins[0].parameters == {"lam": 0.2}
    path.write_text("models: [{name: m, endpoints: [{url: 'http://127.0.0.1:1'}]}]\n" + OWN)
    assert load_policy(str(path)).config.models[0].name == "m"
    path.write_text("")
    assert load_policy(str(path)).config.plugins == DEFAULT_PLUGINS


def test_an_error_in_a_file_names_its_line(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(OWN.replace("scorers", "scorer"))
    with pytest.raises(ConfigError, match=r"mine\.yaml:6: profiles\[0\]\.scorer: unknown key"):
        load_policy(str(path))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("lmetrics", "there is no policy 'lmetrics'; did you mean 'lmetric'"),
        (" , ", "name at least one policy"),
        ("nowhere.yaml", r"nowhere\.yaml: cannot be read"),
    ],
)
def test_what_is_no_policy(names, said) -> None:
    with pytest.raises(ConfigError, match=said):
        load_policies(names)


def test_two_files_of_one_name(tmp_path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text(OWN)
    with pytest.raises(ConfigError, match="two policies have the name 'mine'"):
        load_policies(f"{tmp_path}/a/mine.yaml,{tmp_path}/b/mine.yaml")


def test_other_numbers_change_what_they_name_and_nothing_else() -> None:
    given = load_policy("llm-d")
    changed = with_parameters(given, {("queue", "weight"): 5.0, ("prefix", "of"): 3.0}).config
    assert [scorer.weight for scorer in changed.profiles[0].scorers] == [3.0, 5.0, 2.0]
    assert [plugin.parameters for plugin in changed.plugins if plugin.parameters] == [
        {"allow": ["decode", "both"]},
        {"of": 3.0},
        {"relative": True},
    ]
    assert with_parameters(given, {}) == given
