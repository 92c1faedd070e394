"""TLS contexts from files: certificates, their keys and authorities, which are read again when they change.

Rules: each problem names its file, which OpenSSL does not do. A key that needs a passphrase is refused; OpenSSL would
ask the terminal for it. A change affects new connections only.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from gateway.core.files import state_of

log = logging.getLogger("kvgate.tls")

LOOK = 5.0
"""Seconds between two checks of the files: certificates are renewed hours to weeks before they expire."""

CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
TRUSTED = b"-----BEGIN TRUSTED CERTIFICATE-----"
KEY = b"PRIVATE KEY-----"
ENCRYPTED = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")


class Unusable(Exception):
    """A file cannot be used. ``member``: the setting that names it, such as ``certificate``."""

    def __init__(self, member: str, message: str) -> None:
        super().__init__(message)
        self.member = member


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its intermediates, and its key; None: the key is in the same file. PEM."""

    certificate: str
    key: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return (self.certificate,) if self.key is None else (self.certificate, self.key)

    def load(self, context: ssl.SSLContext) -> None:
        """Load them into ``context``. Raises Unusable; ``context`` may then hold a part of them."""
        trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self.certificate, "certificate")  # can it be read at all?
        name, member = (self.certificate, "certificate") if self.key is None else (self.key, "key")
        content = _read(name, member)
        if KEY not in content:
            raise Unusable(member, f"{name} holds no private key in PEM")
        if any(mark in content for mark in ENCRYPTED):
            raise Unusable(member, f"the key in {name} is encrypted, and nobody is there to type its passphrase")
        try:
            context.load_cert_chain(self.certificate, self.key, password=_passphrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                problem = f"the key in {name} is not that of the certificate in {self.certificate}"
                raise Unusable(member, problem) from error
            both = " or ".join(self.files)
            raise Unusable("certificate", f"{both} cannot be used: {error.reason or error}") from error
        except OSError as error:
            raise Unusable("certificate", f"{self.certificate} cannot be read: {error.strerror or error}") from error


def trust(context: ssl.SSLContext, file: str, member: str) -> None:
    """Let ``context`` trust the authorities in ``file``. Raises Unusable, also if ``file`` is just being written."""
    content = _read(file, member)
    if CERTIFICATE not in content and TRUSTED not in content:
        raise Unusable(member, f"{file} holds no certificate in PEM")
    try:
        context.load_verify_locations(cafile=file)
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise Unusable(member, f"{file} cannot be used: {reason or error}") from error


def _read(file: str, member: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise Unusable(member, f"{file} cannot be read: {error.strerror or error}") from error


def _passphrase() -> NoReturn:
    raise ssl.SSLError("a passphrase is needed")


async def _nobody() -> None:
    return None


class WatchedContext:
    """A TLS context that is made of files, and made again when they change.

    ``context``: made of the files when they were last usable. Take it for each connection; a connection keeps the
    context that it was made with. ``on_change``: awaited after ``context`` was replaced. If it raises OSError, that is
    logged, and it is called again at the next check.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Iterable[str]) -> None:
        """``make``: reads ``files``. Raises Unusable as it does."""
        self._make, self._files = make, tuple(files)
        self._state = self._now()
        self.context = make()
        self.on_change: Callable[[], Awaitable[None]] = _nobody
        self._announced = self.context
        self._announcing = asyncio.Lock()
        self._broken: Sequence[object] | None = None
        self._reported: Sequence[object] | None = None

    async def become(self, other: WatchedContext) -> None:
        """Use the files of ``other`` from the next connection on."""
        self._make, self._files, self._state = other._make, other._files, other._state
        self._broken, self._reported = other._broken, other._reported
        self.context = other.context
        await self._announce()

    async def look(self) -> None:
        """Read the files again if they have changed, in a thread: disks may be slow.

        Files that cannot be used are reported, and the context stays as it was; the next look may find them in order.
        They are reported at the second look: of a certificate and its key one is always replaced before the other.
        """
        make, state = self._make, await asyncio.to_thread(self._now)
        if state not in (self._state, self._reported):
            try:
                made = await asyncio.to_thread(make)
            except (Unusable, OSError) as error:  # ssl.SSLError is an OSError
                self._report(error, state)
            else:
                if make is self._make:  # else other files have come into force meanwhile
                    self.context, self._state, self._broken, self._reported = made, state, None, None
                    log.info("read again: %s", ", ".join(self._files))
        await self._announce()

    def _report(self, error: Unusable | OSError, state: Sequence[object]) -> None:
        if state == self._broken:
            self._reported = state
            problem = error if isinstance(error, Unusable) else f"{', '.join(self._files)} cannot be used: {error}"
            log.error("%s; what was there before stays in use", problem)
        self._broken = state

    async def _announce(self) -> None:
        async with self._announcing:
            if (context := self.context) is self._announced:
                return
            try:
                await self.on_change()
            except OSError as error:
                log.error("%s: not yet in use: %s", ", ".join(self._files), error)
            else:
                self._announced = context

    def _now(self) -> Sequence[object]:
        return [state_of(file) for file in self._files]


async def follow(contexts: Callable[[], Iterable[WatchedContext]], pause: float | None = None) -> None:
    """Check the files of ``contexts`` for ever, every ``pause`` seconds (``LOOK``)."""
    while True:
        await asyncio.sleep(LOOK if pause is None else pause)
        for context in list(contexts()):
            await context.look()
