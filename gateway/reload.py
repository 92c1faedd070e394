"""Reloads the configuration without a restart, and without an effect on running requests.

There are three steps. First the file is read and checked, and the new plugins, tokenizers and endpoints are made beside
the running ones; each new engine is probed once. If any of this fails, nothing has changed, and the error says why.
Then, in one synchronous step between two requests, the server switches to the new wiring and the fleet to its new
endpoints. At last, when the last request of the old wiring has ended, the parts that only it had are released.

Settings that only a restart can change stay as they are, and are reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gateway.config.describe import differences
from gateway.config.registry import discover
from gateway.config.settings import Config
from gateway.core.tasks import TaskSet
from gateway.discovering import Discovering
from gateway.doors import Doors, listening
from gateway.errors import ConfigError
from gateway.feed import CacheFeed
from gateway.fleet.fleet import FleetDiff
from gateway.notify import announced
from gateway.proxy.serving.model_directory import ModelRuntime
from gateway.wiring import Draft, Rooms, Wiring, blaming, topics

log = logging.getLogger("kvgate.reload")

Read = Callable[[], Config]
"""Reads the configuration again. Blocking; raises ConfigError."""

Agree = Callable[[], Awaitable[None]]
"""Awaited when all is prepared and nothing is changed yet; raises ConfigError if it is not to be."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """``changes``: key paths that are in force now. ``restart``: those that wait for one."""

    changes: Sequence[str]
    restart: Sequence[str]


class Reloading:
    """Holds the wiring that is in force. ``discovering``: what is found beside it. ``doors``: where requests
    come in. ``read``: None if there is no file. ``adopted``: called with each configuration that comes into force, what
    is found included."""

    def __init__(
        self,
        wiring: Wiring,
        discovering: Discovering,
        *,
        rooms: Rooms,
        feed: CacheFeed,
        doors: Doors,
        read: Read | None,
        adopted: Callable[[Config], None],
    ) -> None:
        self.wiring = wiring
        self.open = False
        """Whether the gateway has started: before that it cannot reload."""
        self._rooms = rooms
        self._feed = feed
        self._doors = doors
        self._read = read
        self.discovering = discovering
        self._adopted = adopted
        self._ending: list[Wiring] = []
        self._one_at_a_time = asyncio.Lock()
        self._tasks = TaskSet()

    async def reload(self, agree: Agree | None = None) -> Reloaded:
        """Read the configuration again and serve by it. Several at once: one after the other, each reads anew.

        Raises ConfigError, with nothing changed; nor has anything where it is cancelled.
        """
        async with self._one_at_a_time:
            if self._read is None or not self.open:
                why = "there is no file to reload" if self.open else "the gateway is still starting"
                log.error("not reloaded: %s", why)
                raise ConfigError(why)
            done = self._reload(self._read, agree)
            return await announced(done, self._rooms.common.clock.monotonic(), lambda reloaded: len(reloaded.changes))

    async def refresh(self) -> None:
        """Have the fleet follow what is found, by the configuration in force. Raises ConfigError, with nothing changed;
        nor has anything where it is cancelled."""
        async with self._one_at_a_time:
            discovering, wiring = self.discovering, self.wiring
            following = discovering.discovery.following
            if not discovering.differs(wiring.config):
                return
            whole, change, notes = await discovering.found(wiring.config, wiring.directory.runtimes, following)
            if api_keys(whole) - api_keys(discovering.config):
                self._adopted(whole)
            self._rooms.fleet.apply(change)
            self._feed.expect(topics(whole))
            discovering.adopt(whole, following, notes)

    async def close(self) -> None:
        """Release the wirings, after the last request."""
        await self._tasks.close()
        for tokens in self.wiring.tokens.union(*(wiring.tokens for wiring in self._ending)):
            await tokens.close()

    async def _reload(self, read: Read, agree: Agree | None) -> Reloaded:
        wanted, registry = await asyncio.to_thread(lambda: (read(), discover()))
        before = self.wiring
        config, restart = possible(before.config, wanted)
        if topics(config) and config.kv_events.listen is None:
            raise ConfigError(
                "kv_events.listen needs a restart, and until then no endpoint can have kv_events.connects"
            )
        tls = listening(config)
        draft = Draft.make(config, self._rooms.common, before, registry)
        following = self.discovering.prepare(config)
        new = [runtime for runtime in draft.runtimes if runtime.model.name not in before.models]
        for runtime in new:
            self._feed.add(runtime.model.name, runtime.index)
        try:
            await draft.load()
            for tokens in draft.fresh:
                tokens.log_status()
            await following.told()
            with blaming(config, "models"):
                whole, change, notes = await self.discovering.found(config, draft.runtimes, following)
            if agree is not None:
                try:
                    await agree()
                except BaseException:
                    self._rooms.fleet.undo(change)
                    raise
        except BaseException:
            self._take_back(new)
            self.discovering.discovery.discard(following)
            await draft.discard()
            raise
        self._adopt(draft, change, whole)
        self.discovering.adopt(whole, following, notes)
        await self._doors.use_certificate(tls)
        reloaded = Reloaded(list(differences(before.config, config)), restart)
        for name in reloaded.changes:
            log.info("changed: %s", name)
        for name in restart:
            log.warning("not changed, since it needs a restart: %s", name)
        log.info("reloaded: %d changes", len(reloaded.changes))
        return reloaded

    def _take_back(self, new: Sequence[ModelRuntime]) -> None:
        """Undo the effects of a failed draft's models on other rooms."""
        for runtime in new:
            self._feed.remove(runtime.model.name)
            self._rooms.common.observer.model_dropped(runtime.model.name)
        for settings, runtime in self.wiring.models.values():
            if settings.tokenizer is not None:  # a new one may have said otherwise when it was loaded
                runtime.tokens.parity.report()

    def _adopt(self, draft: Draft, change: FleetDiff, whole: Config) -> None:
        """Serve with ``draft``. Without an await, so that no request sees only a part of the change. ``whole``: its
        configuration, with what is found."""
        before, config = self.wiring, draft.config
        gone = before.models.keys() - {settings.name for settings in config.models}
        for name in gone:
            for wiring in (before, *self._ending):
                if name in wiring.models:
                    wiring.directory.keep_last_endpoints(wiring.models[name][1].model)
        self._rooms.fleet.apply(change)
        for name in gone:
            self._feed.remove(name)
        for runtime, settings in zip(draft.runtimes, config.models, strict=True):
            runtime.admission.set_limits(settings.limits)
            runtime.standby.set_limits(settings.limits)
        self._rooms.memory.allow(config.listen.max_held)
        wiring = self.wiring = Wiring.make(draft, self._rooms, before)
        self._doors.use(wiring)
        self._rooms.sources.adopt(config.tenants, draft.client_keys, draft.source)
        self._feed.expect(topics(whole))
        self._adopted(whole)
        self._ending.append(before)
        before.retire(partial(self._ended, before))

    def _ended(self, wiring: Wiring) -> None:
        """The wiring's last request has ended: release the parts that no other wiring uses."""
        self._ending.remove(wiring)
        left = (self.wiring, *self._ending)
        for tokens in wiring.tokens.difference(*(other.tokens for other in left)):
            self._tasks.start(tokens.close(), name="close a tokenizer")
        for name in wiring.models.keys() - {name for other in left for name in other.models}:
            self._rooms.common.observer.model_dropped(name)


def api_keys(config: Config) -> set[str]:
    """The secrets of engines."""
    return {endpoint.api_key for model in config.models for endpoint in model.endpoints if endpoint.api_key}


BOUND = ("host", "port", "admin", "metrics", "workers")
"""Of ``listen``: what only a restart can change."""

BOUND_PICKER = ("listen", "health", "tls")
"""The same of ``epp``. The files of ``tls`` are read again all the same."""


def possible(before: Config, wanted: Config) -> tuple[Config, Sequence[str]]:
    """``wanted``, with the values of ``before`` for settings that only a restart can change; and their key paths.

    Listeners are bound, replicas heard, engines watched, indexes sized, state files read and the log's form chosen at
    the start.
    """
    kept = {model.name: model.kv_cache for model in before.models}
    listen = replace(wanted.listen, **{name: getattr(before.listen, name) for name in BOUND})
    if (before.listen.tls is None) != (wanted.listen.tls is None):
        listen = replace(listen, tls=before.listen.tls)
    epp = before.epp
    if epp is not None and wanted.epp is not None:
        epp = replace(wanted.epp, **{name: getattr(epp, name) for name in BOUND_PICKER})
    config = replace(
        wanted,
        listen=listen,
        epp=epp,
        kv_events=before.kv_events,
        tenants=replace(wanted.tenants, state=before.tenants.state),
        fleet=replace(before.fleet, cost=wanted.fleet.cost),
        sharing=before.sharing,
        log=replace(wanted.log, format=before.log.format),
        state=before.state,
        models=tuple(replace(model, kv_cache=kept.get(model.name, model.kv_cache)) for model in wanted.models),
    )
    return config, list(differences(config, wanted))
