"""The whole configuration of Envoy, and as YAML."""

from __future__ import annotations

import yaml

from gateway.commands.envoy.engines import engines_cluster
from gateway.commands.envoy.fields import Message, extension, socket
from gateway.commands.envoy.hosts import keys_of, listed, one_fleet
from gateway.commands.envoy.listener import listener
from gateway.commands.envoy.picker import ext_procs, picker_cluster
from gateway.commands.envoy.wanted import Mode, Wanted
from gateway.config.settings import Config
from gateway.proxy.settings import KeySettings

SLACK = 10.0
"""Seconds beyond the longest wait that kvgate knows, for its own answer to arrive before Envoy gives up."""

CONNECTIONS = 50_000
"""Of clients, most of which are idle at a time. Beyond it they are refused: without a limit they could take all
descriptors, those for engines too."""


def document(config: Config, wanted: Wanted) -> Message:
    """A bootstrap of Envoy. Raises ConfigError: an engine that Envoy cannot reach."""
    answer = longest_wait(config) + SLACK
    # A retry may go to an engine that nobody has chosen.
    any_engine = listed(config) and one_fleet(config.models) and len(keys_of(config.models)) == 1
    retries = config.retries.attempts - 1 if any_engine else 0
    whole = config.timeouts.receive + answer + config.timeouts.total
    fail_open = wanted.fail_open and why_closed(config) is None
    filters = ext_procs(wanted, fail_open=fail_open, answer=answer, whole=whole)
    return {
        "admin": {"address": socket(wanted.admin)},
        "overload_manager": {"resource_monitors": [_most_connections()]},
        "static_resources": {
            "listeners": [listener(config, wanted, filters, answer=answer, retries=retries)],
            "clusters": [
                engines_cluster(config, system_ca=wanted.system_ca),
                picker_cluster(wanted, connect=config.timeouts.connect),
            ],
        },
    }


def _most_connections() -> Message:
    return extension(
        "envoy.resource_monitors.global_downstream_max_connections",
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=CONNECTIONS,
    )


def why_closed(config: Config) -> str | None:
    """Why no request may go to an engine without the picker; None: it may."""
    if config.client_keys != KeySettings() or config.tenants.wants_keys:
        return "clients need keys, which only the picker checks"
    if not listed(config):
        return "engines come and go, and only the picker knows which there are"
    if keys_of(config.models) != {None}:
        return "engines need keys, which only the picker sends"
    if not one_fleet(config.models):
        return "models have different engines, and only the picker knows which model is asked"
    return None


def notes(config: Config, wanted: Wanted) -> list[str]:
    """What whoever starts Envoy should know, a sentence each."""
    found = []
    if wanted.fail_open and (reason := why_closed(config)):
        found.append(f"Envoy fails closed: {reason}")
    if wanted.mode is Mode.OBSERVED and len(wanted.pickers) > 1:
        found.append("with several pickers most answers are told to another one than has placed them: nothing is heard")
    return found


def longest_wait(config: Config) -> float:
    """Seconds that a request may wait in kvgate before it is placed: for admission, for an endpoint, in its model's
    queue."""
    return max(
        model.limits.queue_timeout
        + (model.queue.max_wait if model.queue is not None else 0.0)
        + (model.limits.no_endpoint_timeout or 0.0)
        for model in config.models
    )


def as_yaml(message: Message, *, of: str) -> str:
    """Blocks in the order in which they were made. ``of``: the file that it was made of, for the comment above."""
    text: str = yaml.dump(message, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return f"# Made by kvgate envoy of {of}; docs/envoy.md says why it is as it is.\n{text}"


class _Dumper(yaml.SafeDumper):
    """Writes what occurs several times as often as it occurs: Envoy reads anchors, but who reads them by eye loses."""

    def ignore_aliases(self, data: object) -> bool:
        return True
