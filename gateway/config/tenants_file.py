"""Reads tenants and keys, from plugins.yaml or from a file of their own, and checks them against each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.config.decode import decode
from gateway.config.document import read, read_text
from gateway.config.origin import KeyPath, Origin, nearest
from gateway.errors import ConfigError
from gateway.tenants.settings import DEFAULT, TenantsFileSettings

NOTHING = TenantsFileSettings()


class TenantsFile:
    """The format of the file ``name``. ``own``: what plugins.yaml has, which the file must not have, too."""

    def __init__(self, name: str, own: TenantsFileSettings, environ: Mapping[str, str]) -> None:
        self.name = name
        self._own = own
        self._environ = environ

    def load(self) -> TenantsFileSettings:
        """The content of the file. Raises ConfigError with file, line and key."""
        try:
            return self._checked(*read(Path(self.name), self._environ))
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                remedy = "`kvgate keys add` makes it, with the first key"
                raise ConfigError(f"{self.name}: there is no such file; {remedy}") from None
            raise

    def parse(self, text: str) -> TenantsFileSettings:
        """As ``load``, of a file with this text. An empty one has nothing. Raises ConfigError."""
        return self._checked(*read_text(text, self.name, self._environ))

    def _checked(self, value: Any, origin: Origin) -> TenantsFileSettings:
        found = NOTHING if value is None else decode(TenantsFileSettings, value, (), origin)
        check_tenants(found, (), origin, self._own)
        return found


def check_tenants(given: TenantsFileSettings, path: KeyPath, origin: Origin, known: TenantsFileSettings) -> None:
    """``given`` stands at ``path``. ``known``: from elsewhere. Raises ConfigError if a tenant or a key is given twice,
    a key is of a tenant that there is not, or the keys of one id are of several tenants."""
    names = {one.name for one in known.tenants}
    for i, tenant in enumerate(given.tenants):
        if tenant.name in names:
            raise origin.error((*path, "tenants", i, "name"), f"the tenant {tenant.name!r} is given twice")
        names.add(tenant.name)
    names.add(DEFAULT)
    owners = {one.id: one.tenant for one in known.keys}
    digests = {one.sha256 for one in known.keys}
    for i, key in enumerate(given.keys):
        where: KeyPath = (*path, "keys", i)
        if key.tenant not in names:
            raise origin.error((*where, "tenant"), f"there is no tenant {key.tenant!r}{nearest(key.tenant, names)}")
        if (owner := owners.setdefault(key.id, key.tenant)) != key.tenant:
            raise origin.error((*where, "id"), f"the key {key.id!r} is of the tenant {owner!r} already")
        if key.sha256 in digests:
            raise origin.error((*where, "sha256"), f"the key {key.id!r} has the same sha256 as another")
        digests.add(key.sha256)
