"""Runs a model's handler, and notifies stateful plugins of placed and settled requests.

Everything is synchronous: the caller of ``schedule`` reserves the plan before the next ``await``, so that concurrent
requests see each other's work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from gateway.core.observer import Observer
from gateway.errors import GatewayError, PluginFailed
from gateway.framework import Endpoint, Handler, Outcome, Plan, Request
from gateway.scheduling.herd import HerdGuard
from gateway.scheduling.profile import Profile, run_profile
from gateway.scheduling.trace import Trace


class Scheduler:
    """``profiles`` and ``handlers`` by name. One for all models: ``request.model.handler`` says which handler runs.

    ``on_placed``, ``on_settled``, ``answering``: the plugins that have a method of this name (or ``answer_headers``),
    which ``placed``, ``settled`` and ``answer_headers`` call; mostly there are none, and the caller need not ask.
    ``guard``: None where nobody else places requests.
    """

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        handlers: Mapping[str, Handler],
        observer: Observer,
        guard: HerdGuard | None = None,
    ) -> None:
        self.profiles = profiles
        self.handlers = handlers
        self.guard = guard
        self._observer = observer
        self.on_placed = self._hooks("on_placed")
        self.on_settled = self._hooks("on_settled")
        self.answering = self._hooks("answer_headers")
        self._on_heard = {name: (kind, hook) for kind, name, hook in self._hooks("on_heard") if kind != "handler"}

    def schedule(self, request: Request, endpoints: Sequence[Endpoint], trace: Trace | None = None) -> Plan:
        """Raises NoEndpoint where a filter left none, PluginFailed where a filter, picker or handler failed."""
        name = request.model.handler
        handler = self.handlers.get(name)
        if handler is None:
            raise PluginFailed(f"the handler {name!r} of model {request.model.name!r} is not configured")

        run = partial(run_profile, self.profiles, request, self._observer, trace, guard=self.guard)
        try:
            plan = handler.plan(request, endpoints, run)
            for kind, endpoint in plan.legs:
                if endpoint not in endpoints:
                    raise ValueError(f"planned what was no candidate, for the leg {kind!r}")
        except GatewayError:
            raise  # a profile's own: no endpoint, or a plugin of it that failed
        except Exception as error:
            self._observer.plugin_failed("handler", name, error)
            raise PluginFailed(f"the handler {name!r} failed ({type(error).__name__})") from error
        return plan

    def placed(self, request: Request, plan: Plan) -> None:
        """Tell every plugin that has ``on_placed``. Never raises: what fails is counted."""
        for kind, name, hook in self.on_placed:
            try:
                hook(request, plan)
            except Exception as error:
                self._observer.plugin_failed(kind, name, error)

    def settled(self, request: Request, plan: Plan, outcome: Outcome) -> None:
        """Call ``on_settled`` of every plugin that has it. Never raises: failures are counted."""
        for kind, name, hook in self.on_settled:
            try:
                hook(request, plan, outcome)
            except Exception as error:
                self._observer.plugin_failed(kind, name, error)

    def answer_headers(self, request: Request, plan: Plan) -> list[tuple[str, str]]:
        """What plugins add to the head of the answer, each name once. Never raises: failures are counted."""
        headers: dict[str, str] = {}
        for kind, name, hook in self.answering:
            try:
                headers.update(cast(Mapping[str, str], hook(request, plan)))
            except Exception as error:
                self._observer.plugin_failed(kind, name, error)
        return list(headers.items())

    def heard(self, name: str, note: bytes) -> None:
        """The plugin of this name in another worker tells this. Never raises: failures are counted."""
        if (there := self._on_heard.get(name)) is None:  # it is of a configuration that is not in force here
            return
        kind, hook = there
        try:
            hook(note)
        except Exception as error:
            self._observer.plugin_failed(kind, name, error)

    def remembered(self) -> Iterator[tuple[str, bytes]]:
        """What plugins in a worker that has just started must hear, with the plugins' names. Never raises."""
        for kind, name, hook in self._hooks("remembered"):
            try:
                for note in cast(Iterable[bytes], hook()):
                    yield name, note
            except Exception as error:
                self._observer.plugin_failed(kind, name, error)

    def _hooks(self, method: str) -> tuple[tuple[str, str, Callable[..., object]], ...]:
        """Kind, name and hook of each plugin that has it: once, however many profiles share the instance."""
        plugins: dict[int, tuple[str, str, Any]] = {}
        for profile in self.profiles.values():
            for name, plugin in profile.filters:
                plugins.setdefault(id(plugin), ("filter", name, plugin))
            for name, scorer, _ in profile.scorers:
                plugins.setdefault(id(scorer), ("scorer", name, scorer))
            name, picker = profile.picker
            plugins.setdefault(id(picker), ("picker", name, picker))
        for name, handler in self.handlers.items():
            plugins.setdefault(id(handler), ("handler", name, handler))
        hooks = ((kind, name, getattr(plugin, method, None)) for kind, name, plugin in plugins.values())
        return tuple((kind, name, hook) for kind, name, hook in hooks if hook is not None)
