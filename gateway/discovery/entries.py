"""A list of endpoints as a file or an HTTP server gives it, in any of three forms, which may be mixed:

- our own: what may stand under ``endpoints`` of a model in plugins.yaml;
- Prometheus' target groups (file_sd, http_sd): ``{targets: ["host:port"], labels: {...}}``. The labels ``role`` and
  ``name`` are an endpoint's role and name, and ``__scheme__`` its URL's; others that begin with ``__`` are Prometheus'
  own and dropped;
- llm-d's (file-discovery): ``{name, namespace, address, port, labels}``.

The whole may be the value of the only key ``endpoints``. What is wrong with the whole is an error. An entry that is
wrong is left out, and named with its line: the others are not worse for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from gateway.config.decode import decode
from gateway.config.document import read_text
from gateway.config.origin import KeyPath, Origin
from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import endpoint_of, with_defaults
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings

ROLES = ("prefill", "decode", "both")


@dataclass(frozen=True, slots=True)
class Listed:
    """``wrong``: entries that are left out, with the reason, a line each."""

    endpoints: Sequence[EndpointSettings] = ()
    wrong: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """As Prometheus writes it."""

    targets: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddressedEndpoint:
    """As llm-d writes it. ``namespace`` is not used."""

    address: str
    port: int | str
    name: str | None = None
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


def of_yaml(text: str, file: str, settings: DiscoverSettings, environ: Mapping[str, str]) -> Listed:
    """As plugins.yaml is read, ``${NAME}`` included. Raises ConfigError with file and line."""
    value, origin = read_text(text, file, environ)
    return _listed(value, origin, settings)


def of_json(text: str | bytes, place: str, settings: DiscoverSettings) -> Listed:
    """``place``: what errors begin with. Raises ConfigError."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{place}:{error.lineno}: not JSON: {error.msg}") from None
    return _listed(value, Origin(file=place), settings)


def with_lines(text: str, file: str, settings: DiscoverSettings) -> Listed:
    """As ``of_json``, with the lines of what is wrong. JSON is read as YAML for them, which takes a hundred times as
    long."""
    listed = of_json(text, file, settings)
    if listed.wrong:
        try:
            value, origin = read_text(text.replace("$", "$$"), file, {})
            return _listed(value, origin, settings)
        except ConfigError:
            return listed  # JSON that our YAML does not read: what is wrong is named without lines
    return listed


def _listed(value: Any, origin: Origin, settings: DiscoverSettings) -> Listed:
    path: KeyPath = ()
    if isinstance(value, dict) and value.keys() == {"endpoints"}:
        value, path = value["endpoints"], ("endpoints",)
    if not isinstance(value, list):
        raise origin.error(path, "expected a list: of endpoints, or of Prometheus' groups of targets")
    endpoints: list[EndpointSettings] = []
    wrong: list[str] = []
    for number, entry in enumerate(value):
        try:
            for make in _made(entry, (*path, number), origin, settings):
                try:
                    endpoints.append(make())
                except ConfigError as error:
                    wrong.append(error.message)
        except ConfigError as error:
            wrong.append(error.message)
    return Listed(endpoints, wrong)


def _made(
    entry: Any, path: KeyPath, origin: Origin, settings: DiscoverSettings
) -> Iterator[Callable[[], EndpointSettings]]:
    """What makes each endpoint of an entry. Raises ConfigError, as these do."""
    if isinstance(entry, dict) and "targets" in entry:
        group = decode(TargetGroup, entry, path, origin)
        given = _of_labels(group.labels, path, origin)
        for number, target in enumerate(group.targets):
            yield partial(_of_target, target, given, (*path, "targets", number), origin, settings)
    elif isinstance(entry, dict) and "address" in entry:
        one = decode(AddressedEndpoint, entry, path, origin)
        yield partial(_of_address, one, path, origin, settings)
    else:
        endpoint = decode(EndpointSettings, entry, path, origin)
        said = {name: getattr(endpoint, name) for name in entry}
        yield partial(_blaming, partial(with_defaults, settings, said), path, origin)


def _of_labels(labels: Mapping[str, str], path: KeyPath, origin: Origin) -> dict[str, Any]:
    """What the labels of a group say of its endpoints. Raises ConfigError."""
    role = labels.get("role")
    if role is not None and role not in ROLES:
        raise origin.error((*path, "labels", "role"), f"{role[:60]!r} is no role: give one of {', '.join(ROLES)}")
    return {
        "role": role,
        "name": labels.get("name"),
        "scheme": labels.get("__scheme__"),
        "labels": {name: value for name, value in labels.items() if not name.startswith("__")},
    }


def _of_target(
    target: str, given: Mapping[str, Any], path: KeyPath, origin: Origin, settings: DiscoverSettings
) -> EndpointSettings:
    host, colon, port = target.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit()) or "/" in target:
        raise origin.error(path, f"{target[:200]!r} must be HOST:PORT, with an IPv6 address in brackets")
    return _blaming(partial(endpoint_of, settings, host, int(port), **given), path, origin)


def _of_address(one: AddressedEndpoint, path: KeyPath, origin: Origin, settings: DiscoverSettings) -> EndpointSettings:
    port = str(one.port)
    if not (port.isascii() and port.isdigit()):
        raise origin.error((*path, "port"), f"{port[:60]!r} is no port")
    make = partial(endpoint_of, settings, one.address, int(port), name=one.name, labels=one.labels)
    return _blaming(make, path, origin)


def _blaming(make: Callable[[], EndpointSettings], path: KeyPath, origin: Origin) -> EndpointSettings:
    """Raises ConfigError where ``make`` raises ValueError."""
    try:
        return make()
    except ValueError as error:
        raise origin.error(path, str(error)) from None
