"""Reads plugins.yaml into a checked ``Config``.

Everything that can be checked without the plugins is checked here: types, ranges, duplicate names, unknown names. An
error has the file, line and key. The plugins' types and parameters are checked by ``wiring``.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.config.decode import decode
from gateway.config.document import read, read_text
from gateway.config.origin import KeyPath, Origin, nearest
from gateway.config.settings import Config, ModelSettings
from gateway.config.tenants_file import NOTHING, check_tenants
from gateway.discovery.settings import DiscoverSettings
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings, TlsSettings


def load(
    path: str | os.PathLike[str],
    environ: Mapping[str, str],
    missing: Mapping[str, Any] | None = None,
    text: str | None = None,
) -> Config:
    """The configuration in the file ``path``, references to ``environ`` filled in. Raises ConfigError.

    ``missing``: plain values of top-level keys, for those that the file has not. ``text``: the file's, where it has
    been read already.

    A relative ``tokenizer``, ``chat_template``, ``client_keys.file`` or file of TLS that exists beside the file is made
    absolute; so are ``state``, ``tenants.file``, ``tenants.state``, ``discover.file`` and ``kubeconfig``, which need
    not exist yet.
    """
    file = Path(path)
    content = read(file, environ) if text is None else read_text(text, str(file), environ)
    return _anchored(_config(*content, missing), file.parent)


def loads(
    text: str, environ: Mapping[str, str], file: str = "plugins.yaml", missing: Mapping[str, Any] | None = None
) -> Config:
    """As ``load``, from text; ``file`` is the name in errors, and relative paths are left as they are."""
    return _config(*read_text(text, file, environ), missing)


def _config(value: Any, origin: Origin, missing: Mapping[str, Any] | None) -> Config:
    if missing is not None and (value is None or isinstance(value, dict)):
        value = {**missing, **(value or {})}
    if value is None:
        raise ConfigError(
            f"{origin.file}: empty; the shortest useful file names a model and its engines under 'models'"
        )
    config = decode(Config, value, (), origin, {"origin": origin})
    _check_models(config, origin)
    _check_plugins(config, origin)
    check_tenants(config.tenants, ("tenants",), origin, NOTHING)
    if config.kv_events.listen is not None and config.listen.workers != 1:
        problem = "one process can listen there: let kvgate connect to the engines instead, or set listen.workers to 1"
        raise origin.error(("kv_events", "listen"), problem)
    if config.pass_through.authorization and config.tenants.has_keys:
        problem = "it would send the keys of tenants on to the engines; give each endpoint an 'api_key' instead"
        raise origin.error(("pass_through", "authorization"), problem)
    return config


def _check_models(config: Config, origin: Origin) -> None:
    names = _Names(origin, "model or alias")
    handlers = _Names(origin, "handler")
    for i, handler in enumerate(config.handlers):
        handlers.add(handler.name, ("handlers", i, "name"))
    endpoints: dict[str, str] = {}
    topics: dict[str, str] = {}
    for i, model in enumerate(config.models):
        path: KeyPath = ("models", i)
        names.add(model.name, (*path, "name"))
        for j, alias in enumerate(model.aliases):
            names.add(alias, (*path, "aliases", j))
        handlers.check(model.handler, (*path, "handler"))
        if not model.endpoints and not model.discover and (*path, "endpoints") not in origin.lines:
            problem = "this key is required, or 'discover'; endpoints: [] is for engines that register themselves"
            raise origin.error((*path, "endpoints"), problem)
        _check_endpoints(model, path, origin, endpoints)
        _check_connecting(config, model, path, origin, topics)
        _check_sources(config, model, path, origin)


def _check_endpoints(model: ModelSettings, path: KeyPath, origin: Origin, urls: dict[str, str]) -> None:
    """A model names each endpoint and URL once. In all models together a name has one URL (it labels metrics)."""
    names = _Names(origin, "endpoint")
    engines = _Names(
        origin, "engine", remedy="; an engine with several data-parallel ranks is one endpoint with 'ranks'"
    )
    for i, endpoint in enumerate(model.endpoints):
        where = (*path, "endpoints", i)
        url = endpoint.url.rstrip("/")
        engines.add(url, (*where, "url"))
        if endpoint.name is not None:
            names.add(endpoint.name, (*where, "name"))
            if urls.setdefault(endpoint.name, url) != url:
                other = origin.scrub(urls[endpoint.name])
                raise origin.error((*where, "name"), f"{endpoint.name!r} is the name of {other} in another model")


def _check_connecting(
    config: Config, model: ModelSettings, path: KeyPath, origin: Origin, engines: dict[str, str]
) -> None:
    """Engines that connect to us need ``kv_events.listen``, and a unique topic each. ``engines``: by topic."""
    for i, endpoint in enumerate(model.endpoints):
        if not endpoint.kv_events.connects:
            continue
        where: KeyPath = (*path, "endpoints", i, "kv_events")
        if config.kv_events.listen is None:
            problem = "it connects to nothing: give 'kv_events: {listen: \"tcp://*:5557\"}' at the top level"
            raise origin.error((*where, "connects"), problem)
        topic, url = endpoint.kv_topic(model.name), endpoint.url.rstrip("/")
        if engines.setdefault(topic, url) != url:
            other = origin.scrub(engines[topic])
            raise origin.error((*where, "topic"), f"{topic!r} is the topic of {other}, too: give each engine its own")


def _check_sources(config: Config, model: ModelSettings, path: KeyPath, origin: Origin) -> None:
    for i, source in enumerate(model.discover):
        where: KeyPath = (*path, "discover", i)
        if source.kv_events.connects and config.kv_events.listen is None:
            problem = "they connect to nothing: give 'kv_events: {listen: \"tcp://*:5557\"}' at the top level"
            raise origin.error((*where, "kv_events", "connects"), problem)
        if source.label in [other.label for other in model.discover[:i]]:
            raise origin.error(where, f"the source {origin.scrub(source.label)!r} is given twice")


def _check_plugins(config: Config, origin: Origin) -> None:
    plugins = _Names(origin, "plugin")
    for i, plugin in enumerate(config.plugins):
        plugins.add(plugin.name, ("plugins", i, "name"))
    profiles = _Names(origin, "profile")
    for i, profile in enumerate(config.profiles):
        path: KeyPath = ("profiles", i)
        profiles.add(profile.name, (*path, "name"))
        filters, scorers = _Names(origin, "filter of this profile"), _Names(origin, "scorer of this profile")
        for j, name in enumerate(profile.filters):
            filters.add(name, (*path, "filters", j))
            plugins.check(name, (*path, "filters", j))
        for j, scorer in enumerate(profile.scorers):
            scorers.add(scorer.plugin, (*path, "scorers", j, "plugin"))
            plugins.check(scorer.plugin, (*path, "scorers", j, "plugin"))
        plugins.check(profile.picker, (*path, "picker"))


class _Names:
    """Names of one kind: each may be given once, and only those may be referred to."""

    def __init__(self, origin: Origin, kind: str, remedy: str = "") -> None:
        self._origin, self._kind, self._remedy = origin, kind, remedy
        self._paths: dict[str, KeyPath] = {}
        self._given = origin.given

    def add(self, name: str, path: KeyPath) -> None:
        if not name:
            raise self._origin.error(path, f"the name of a {self._kind} must not be empty")
        if name in self._paths:
            shown, first = self._origin.scrub(name), self._origin.lines.get(self._paths[name])
            before = f", first on line {first}" if first else ""
            raise self._origin.error(path, f"the {self._kind} {shown!r} is given twice{before}{self._remedy}")
        self._paths[name] = path

    def check(self, name: str, path: KeyPath) -> None:
        if name in self._paths:
            return
        group = f"{self._kind}s"
        if path[0] not in self._given and group in self._given:
            problem = f"the default {path[0]} need the {self._kind} {name!r}, which the file's own {group} lack"
            raise self._origin.error((group,), f"{problem}; give {path[0]!r} too")
        raise self._origin.error(path, f"there is no {self._kind} {name!r}{nearest(name, self._paths)}")


def _anchored(config: Config, folder: Path) -> Config:
    """Relative paths of files that exist beside the configuration, made absolute; anything else stays (a hub id)."""

    def anchor(value: str | None) -> str | None:
        if not value or os.path.isabs(value):
            return value
        there = folder / value
        return os.path.abspath(there) if there.exists() else value

    def anchored_tls(tls: TlsSettings | None) -> TlsSettings | None:
        if tls is None:
            return None
        return replace(tls, ca=anchor(tls.ca), certificate=anchor(tls.certificate), key=anchor(tls.key))

    def anchored(endpoint: EndpointSettings) -> EndpointSettings:
        return endpoint if endpoint.tls is None else replace(endpoint, tls=anchored_tls(endpoint.tls))

    def anchored_source(source: DiscoverSettings) -> DiscoverSettings:
        source = replace(source, tls=anchored_tls(source.tls))
        if source.http is not None:
            source = replace(source, http=replace(source.http, tls=anchored_tls(source.http.tls)))
        if (kubernetes := source.kubernetes) is not None and kubernetes.kubeconfig is not None:
            kubeconfig = os.path.abspath(folder / kubernetes.kubeconfig)
            source = replace(source, kubernetes=replace(kubernetes, kubeconfig=kubeconfig))
        if source.file is not None:  # it need not exist yet, and it may be a pattern
            beside = glob.escape(str(folder.absolute())) if glob.has_magic(source.file) else str(folder.absolute())
            source = replace(source, file=os.path.join(beside, source.file))
        return source

    models = tuple(
        replace(
            model,
            tokenizer=anchor(model.tokenizer),
            chat_template=anchor(model.chat_template),
            endpoints=tuple(map(anchored, model.endpoints)),
            discover=tuple(map(anchored_source, model.discover)),
        )
        for model in config.models
    )
    listen = config.listen
    if (tls := listen.tls) is not None:
        certificate = anchor(tls.certificate) or tls.certificate
        tls = replace(tls, certificate=certificate, key=anchor(tls.key), client_ca=anchor(tls.client_ca))
        listen = replace(listen, tls=tls)
    keys = replace(config.client_keys, file=anchor(config.client_keys.file))
    tenants = config.tenants
    if tenants.file is not None:
        tenants = replace(tenants, file=os.path.abspath(folder / tenants.file))
    if tenants.state is not None:
        tenants = replace(tenants, state=os.path.abspath(folder / tenants.state))
    state = None if config.state is None else os.path.abspath(folder / config.state)
    return replace(config, models=models, listen=listen, client_keys=keys, tenants=tenants, state=state)
