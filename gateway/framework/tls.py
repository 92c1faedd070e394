"""Files of TLS: certificates, their keys and authorities, read again when they change.

Rules: each problem names its file, which OpenSSL does not; a key that needs a passphrase is refused, where OpenSSL
would ask the terminal for it. Connections that there are stay as they are, whatever becomes of the files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

log = logging.getLogger("kvgate.tls")

LOOK = 5.0
"""Seconds between two looks at the files: certificates are renewed hours to weeks before they expire."""

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
class Pair:
    """A certificate with those between it and its authority, and its key; None: in the same file. PEM."""

    certificate: str
    key: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return (self.certificate,) if self.key is None else (self.certificate, self.key)

    def load(self, context: ssl.SSLContext) -> None:
        """Raises Unusable; ``context`` may then have a part of it."""
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
    """Let ``context`` believe the authorities in ``file``. Raises Unusable, also where ``file`` is being written."""
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


class Renewed(ssl.SSLContext):
    """Makes each connection by a context of its files as they last were in order.

    asyncio, uvloop and aiohttp keep the context that they are given, and ask it for each connection's own part: what
    they are given is this, and the rest of it is never asked. A renewal takes effect whole, authorities included.
    """

    def __new__(cls, make: Callable[[], ssl.SSLContext], files: Iterable[str]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Iterable[str]) -> None:
        """``make``: reads ``files``. Raises Unusable as it does."""
        self._make, self._files = make, tuple(files)
        self._state = self._now()
        self._made = make()
        self._broken: Sequence[object] | None = None
        self._told: Sequence[object] | None = None

    def become(self, other: Renewed) -> None:
        """Go by the files of ``other`` from the next connection on."""
        for name in ("_make", "_files", "_state", "_made", "_broken", "_told"):
            setattr(self, name, getattr(other, name))

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self._made.wrap_bio(*arguments, **named)

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        return self._made.wrap_socket(*arguments, **named)

    async def look(self) -> None:
        """Read the files again if they have changed, in a thread: disks may be slow.

        What cannot be used is reported, and what was goes on, whatever is the matter: the next look may find it cured.
        Reported at the second look: of a certificate and its key one is always replaced before the other.
        """
        make, state = self._make, await asyncio.to_thread(self._now)
        if state in (self._state, self._told):
            return
        try:
            made = await asyncio.to_thread(make)
        except (Unusable, OSError) as error:  # ssl.SSLError is an OSError
            if state == self._broken:
                self._told = state
                problem = error if isinstance(error, Unusable) else f"{', '.join(self._files)} cannot be used: {error}"
                log.error("%s; what was there before stays in use", problem)
            self._broken = state
            return
        if make is self._make:  # else other files have come into force meanwhile
            self._made, self._state, self._broken, self._told = made, state, None, None
            log.info("read again: %s", ", ".join(self._files))

    def _now(self) -> Sequence[object]:
        return [_state(file) for file in self._files]


async def follow(contexts: Callable[[], Iterable[Renewed]], pause: float | None = None) -> None:
    """Look at the files of ``contexts`` for ever, ``pause`` seconds apart (``LOOK``)."""
    while True:
        await asyncio.sleep(LOOK if pause is None else pause)
        for context in list(contexts()):
            await context.look()


def _state(file: str) -> object:
    """What changes when ``file`` does: it may be written anew, replaced, or reached by a link that is turned."""
    try:
        status = os.stat(file)
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_mtime_ns, status.st_size
