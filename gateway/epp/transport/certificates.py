"""TLS of a picker's listener: of files, or with a certificate that is made at the start.

Gateways that speak TLS to a picker take any certificate (Envoy without a validation context, Istio with
``insecureSkipVerify``): it keeps those who only listen from reading prompts, and nobody else.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from functools import partial
from pathlib import Path

from gateway.core.tls import KeyPair, Unusable, WatchedContext
from gateway.errors import ConfigError

NAME = "kvgate"

LIFE = datetime.timedelta(days=3650)
"""Of a certificate made here: longer than any process."""


def of_files(pair: KeyPair) -> WatchedContext:
    """Read again when they change. Raises ConfigError, whose ``param`` is ``certificate`` or ``key``."""
    try:
        return WatchedContext(partial(_context, pair), pair.files)
    except Unusable as error:
        raise ConfigError(str(error), param=error.member) from error


def self_signed() -> WatchedContext:
    """With a key that is nowhere else, and is forgotten with the process. Raises ConfigError."""
    try:
        certificate, key = _made()
    except ImportError as error:
        raise ConfigError("self-signed needs the package cryptography: pip install 'kvgate[epp]'") from error
    with tempfile.TemporaryDirectory(prefix="kvgate-") as folder:  # OpenSSL reads files only; nobody else can
        file = Path(folder) / "picker.pem"
        file.write_bytes(key + certificate)
        context = _context(KeyPair(str(file)))
    return WatchedContext(lambda: context, ())


def _context(pair: KeyPair) -> ssl.SSLContext:
    """Raises Unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    pair.load(context)
    return context


def _made() -> tuple[bytes, bytes]:
    """A certificate and its key, in PEM."""
    from cryptography import x509  # not before: few use it
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME), x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), secret
