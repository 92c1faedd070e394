"""Files of TLS: certificates, their keys and authorities, each problem with the file's name.

OpenSSL names neither the file nor what is wrong with it in words that help, and asks the terminal for the passphrase
of a key that has one.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import NoReturn, overload

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
        readable(self.certificate, "certificate")
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


@overload
def readable(file: str, member: str) -> str: ...
@overload
def readable(file: None, member: str) -> None: ...
def readable(file: str | None, member: str) -> str | None:
    """``file``, if it holds certificates that OpenSSL can read. Raises Unusable."""
    if file is None:
        return None
    content = _read(file, member)
    if CERTIFICATE not in content and TRUSTED not in content:
        raise Unusable(member, f"{file} holds no certificate in PEM")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise Unusable(member, f"{file} cannot be used: {reason or error}") from error
    return file


def _read(file: str, member: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise Unusable(member, f"{file} cannot be read: {error.strerror or error}") from error


def _passphrase() -> NoReturn:
    raise ssl.SSLError("a passphrase is needed")
