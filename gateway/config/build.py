"""Builds the scheduler, and the order of each queue, from a checked configuration: finds the plugins, decodes their
parameters, constructs them.

A plugin's errors before its first request are found here. They stop the start. The message has the file, line and key
of the instance, and the plugin's entry point and distribution if the plugin causes the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from gateway.config.decode import decode
from gateway.config.origin import KeyPath, Origin, nearest
from gateway.config.registry import PluginKind, PluginType, Registry, discover
from gateway.config.settings import Config
from gateway.core.observer import NULL_OBSERVER, Observer
from gateway.errors import ConfigError
from gateway.flow.settings import FAIR
from gateway.framework import Context, Order
from gateway.scheduling.herd import HerdGuard
from gateway.scheduling.profile import Profile
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.settings import HandlerSettings, PluginSettings

T = TypeVar("T")


def build_scheduler(
    config: Config,
    context: Callable[[str], Context],
    registry: Registry | None = None,
    before: tuple[Config, Scheduler] | None = None,
    *,
    observer: Observer = NULL_OBSERVER,
    guard: HerdGuard | None = None,
) -> Scheduler:
    """The scheduler of ``config``. ``context(instance_name)`` makes the ``Context`` of a plugin's constructor.

    ``registry``: None: all installed plugins. ``before``: the configuration and scheduler in force. An instance with
    the same name, type and parameters is kept, with its memory. ``observer``: counts what the scheduler does.
    ``guard``: None where nobody else places requests. Raises ConfigError.
    """
    found = discover() if registry is None else registry
    origin = config.origin
    plugins_before, handlers_before = _instances(before)
    plugins: dict[str, tuple[PluginKind, Any]] = {}
    for i, settings in enumerate(config.plugins):
        plugin_type = find(found.plugins, settings, ("plugins", i), origin)
        there = _same(plugins_before, settings)
        instance = _construct(plugin_type, settings, ("plugins", i), origin, context, there)
        plugins[settings.name] = plugin_type.kind, instance
    profiles = {}
    for i, profile in enumerate(config.profiles):
        path: KeyPath = ("profiles", i)
        filters = [
            (name, _instance(plugins, name, PluginKind.FILTER, (*path, "filters", j), origin))
            for j, name in enumerate(profile.filters)
        ]
        scorers = [
            (
                one.plugin,
                _instance(plugins, one.plugin, PluginKind.SCORER, (*path, "scorers", j, "plugin"), origin),
                one.weight,
            )
            for j, one in enumerate(profile.scorers)
        ]
        picker = (profile.picker, _instance(plugins, profile.picker, PluginKind.PICKER, (*path, "picker"), origin))
        profiles[profile.name] = Profile(profile.name, filters, scorers, picker)
    handlers = {}
    for i, handler in enumerate(config.handlers):
        path = ("handlers", i)
        handler_type = find(found.handlers, handler, path, origin)
        there = _same(handlers_before, handler)
        instance = _construct(handler_type, handler, path, origin, context, there)
        _check_profiles(handler_type, instance, profiles, path, origin)
        handlers[handler.name] = instance
    return Scheduler(profiles, handlers, observer, guard)


def build_orders(
    config: Config,
    context: Callable[[str], Context],
    registry: Registry | None = None,
    before: tuple[Config, Mapping[str, Order]] | None = None,
) -> dict[str, Order]:
    """By a model's name, the order of its queue: an instance of its own. A model without a queue has none.

    ``context``, ``registry``: as in ``build_scheduler``. ``before``: the configuration in force, and what was built
    from it. A model's order is kept, with its memory, if it is of an instance with the same name, type and parameters.
    Raises ConfigError.
    """
    found, origin = discover() if registry is None else registry, config.origin
    used = {} if before is None else _orders_in_force(*before)
    plugins: dict[str, tuple[PluginKind, int]] = {}
    for i, settings in enumerate(config.plugins):
        plugins[settings.name] = find(found.plugins, settings, ("plugins", i), origin).kind, i
    orders = {}
    for number, model in enumerate(config.models):
        if model.queue is None:
            continue
        name, path = model.queue.order, ("models", number, "queue", "order")
        if name == FAIR and name not in plugins:
            problem = f"there is no plugin {name!r}, which is one of the default plugins: the file's own replace them"
            raise origin.error(path, f"{problem}; add {{name: {name}, type: fair-cost}} to them")
        i = _instance(plugins, name, PluginKind.QUEUE, path, origin)
        settings, at = config.plugins[i], ("plugins", i)
        there = _same(used, settings, by=model.name)
        orders[model.name] = _construct(found.plugins[settings.type], settings, at, origin, context, there)
    return orders


def _orders_in_force(config: Config, orders: Mapping[str, Order]) -> Instances:
    """By model: the settings of its order, and the order."""
    plugins = {one.name: one for one in config.plugins}
    return {
        model.name: (plugins[model.queue.order], orders[model.name])
        for model in config.models
        if model.queue is not None and model.name in orders
    }


Instances: TypeAlias = Mapping[str, tuple[PluginSettings | HandlerSettings, Any]]
"""By name: the settings of an instance, and the instance."""


def _instances(before: tuple[Config, Scheduler] | None) -> tuple[Instances, Instances]:
    """The plugins and the handlers in force."""
    if before is None:
        return {}, {}
    config, scheduler = before
    used: dict[str, Any] = {}
    for profile in scheduler.profiles.values():
        used.update(profile.filters)
        used.update((name, scorer) for name, scorer, _ in profile.scorers)
        used.update((profile.picker,))
    plugins = {one.name: (one, used[one.name]) for one in config.plugins if one.name in used}
    return plugins, {one.name: (one, scheduler.handlers[one.name]) for one in config.handlers}


def _same(instances: Instances, settings: PluginSettings | HandlerSettings, by: str = "") -> Any | None:
    """``by``: what ``instances`` is by, if it is not the name in ``settings``."""
    made_of, instance = instances.get(by or settings.name, (None, None))
    return instance if made_of == settings else None


def find(
    types: Mapping[str, PluginType], settings: PluginSettings | HandlerSettings, path: KeyPath, origin: Origin
) -> PluginType:
    """The installed type of an instance. Raises ConfigError."""
    found = types.get(settings.type)
    if found is None:
        raise origin.error((*path, "type"), f"no plugin {settings.type!r} is installed{nearest(settings.type, types)}")
    return found


def parameters(
    plugin_type: PluginType, settings: PluginSettings | HandlerSettings, path: KeyPath, origin: Origin
) -> Any:
    """The typed parameters of an instance. Raises ConfigError."""
    where = (*path, "parameters")
    kind = _blaming(plugin_type.parameters, path, origin)
    try:
        return decode(kind, dict(settings.parameters), where, origin)
    except ConfigError:
        raise
    except Exception as error:
        problem = f"{plugin_type} cannot take its parameters: {type(error).__name__}: {error}"
        raise origin.error(where, origin.scrub(problem)) from error


def filled(
    types: Mapping[str, PluginType], settings: PluginSettings | HandlerSettings, path: KeyPath, origin: Origin
) -> Any:
    """The typed parameters of an instance of an installed type. Raises ConfigError."""
    return parameters(find(types, settings, path, origin), settings, path, origin)


def _construct(
    plugin_type: PluginType,
    settings: PluginSettings | HandlerSettings,
    path: KeyPath,
    origin: Origin,
    context: Callable[[str], Context],
    there: Any | None,
) -> Any:
    """``there``: the instance that is kept; None: a new one is made."""
    typed = parameters(plugin_type, settings, path, origin)
    if there is not None:
        return there
    made = _blaming(plugin_type.load, path, origin)
    try:
        instance = made(typed, context(settings.name))
    except Exception as error:
        problem = f"{plugin_type} cannot be constructed: {type(error).__name__}: {error}"
        raise origin.error(path, origin.scrub(problem)) from error
    _blaming(lambda: plugin_type.check(instance), path, origin)
    return instance


def _blaming(step: Callable[[], T], path: KeyPath, origin: Origin) -> T:
    """Run ``step`` of a plugin type, and add the instance's file, line and key to its error."""
    try:
        return step()
    except ConfigError as error:
        raise origin.error((*path, "type"), error.message) from error.__cause__


def _instance(
    plugins: Mapping[str, tuple[PluginKind, Any]], name: str, kind: PluginKind, path: KeyPath, origin: Origin
) -> Any:
    if name not in plugins:
        raise origin.error(path, f"there is no plugin {name!r}{nearest(name, plugins)}")
    actual, instance = plugins[name]
    if actual is not kind:
        fitting = [other for other, (its, _) in plugins.items() if its is kind]
        raise origin.error(path, f"{name!r} is a {actual}, not a {kind}{nearest(name, fitting)}")
    return instance


def _check_profiles(
    plugin_type: PluginType, instance: Any, profiles: Mapping[str, Profile], path: KeyPath, origin: Origin
) -> None:
    """Raises ConfigError if a handler's ``profiles`` name one that does not exist."""
    named: Iterable[str] = getattr(instance, "profiles", ())
    for name in named:
        if name not in profiles:
            if "handlers" not in origin.given and "profiles" in origin.given:
                problem = f"the default handlers need the profile {name!r}, which the file's own profiles lack"
                raise origin.error(("profiles",), f"{problem}; give 'handlers' too")
            problem = f"there is no profile {name!r}{nearest(name, profiles)}"
            raise origin.error((*path, "parameters"), problem)
