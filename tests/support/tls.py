"""An authority of a test's own, and files of the certificates that it gives out."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import trustme


@dataclass
class Authority:
    """``folder``: where the files are. Certificates are for 127.0.0.1, ::1 and ``localhost`` where nothing is named."""

    folder: Path
    name: str = "ca"
    made: trustme.CA = field(default_factory=trustme.CA)

    @property
    def file(self) -> str:
        path = self.folder / f"{self.name}.pem"
        if not path.exists():
            self.made.cert_pem.write_to_path(str(path))
        return str(path)

    def issue(self, name: str, *identities: str) -> tuple[str, str]:
        """Files of a certificate and its key, which replace those of the same name."""
        issued = self.made.issue_cert(*identities or ("127.0.0.1", "::1", "localhost"))
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return str(certificate), str(key)

    def serving(self, name: str = "server", *identities: str) -> ssl.SSLContext:
        """A server's context."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(name, *identities))
        return context

    def asking(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """``context`` demands certificates of this authority from clients."""
        context.load_verify_locations(cafile=self.file)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def trusting(self) -> ssl.SSLContext:
        """A client's context that believes this authority only."""
        return ssl.create_default_context(cafile=self.file)
