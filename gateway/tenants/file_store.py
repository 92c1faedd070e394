"""Writes tenants and keys into their file, and keeps what people wrote there: comments, order, other values.

The file is replaced in one step: a reader sees the old content or the new one. Whoever else changes it this way waits
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from gateway.errors import ConfigError
from gateway.tenants.changes import Change, Decide, StoreFailed, plain
from gateway.tenants.settings import TenantsFileSettings

MODE = 0o644
"""The mode of a new file, which may be changed later. Who makes a key is often another user than the one that the
gateway runs as, and has to read the file. It has no secret: of keys there are digests."""

WIDTH = 4096
"""Columns: no line of the file is folded that was not."""


class Format(Protocol):
    """What can read a file of tenants and keys. ``name``: of the file."""

    @property
    def name(self) -> str: ...

    def parse(self, text: str, /) -> TenantsFileSettings:
        """Raises ConfigError."""
        ...


class FileStore:
    """A file, which need not exist yet: a ``Store``."""

    def __init__(self, file: Format) -> None:
        self.name = file.name
        self._parse = file.parse

    async def read(self) -> TenantsFileSettings:
        return await asyncio.to_thread(lambda: self._content()[1])

    async def change(self, decide: Decide) -> TenantsFileSettings:
        return await asyncio.to_thread(self._change, decide)

    def _content(self) -> tuple[str, TenantsFileSettings]:
        try:
            text = Path(self.name).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            text = ""
        except (OSError, UnicodeDecodeError) as error:
            raise StoreFailed(f"{self.name} cannot be read: {error}") from error
        try:
            return text, self._parse(text)
        except ConfigError as error:
            raise StoreFailed(f"{error.message}: correct the file first") from error

    def _change(self, decide: Decide) -> TenantsFileSettings:
        target = os.path.realpath(self.name)  # a link stays one
        try:
            with _alone(os.path.dirname(target)):
                text, content = self._content()
                edited = _edited(text, content, decide(content))
                try:
                    after = self._parse(edited)
                except ConfigError as error:
                    raise StoreFailed(f"not written, since it could not be read again: {error.message}") from error
                _replace(target, edited)
        except OSError as error:
            why = error.strerror or error
            raise StoreFailed(f"{self.name} cannot be written: {why}; its folder must be writable, too") from error
        return after


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Hold the lock of ``folder``, which is let go with the process if need be. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(target: str, text: str) -> None:
    """Write beside ``target``, then rename. Raises OSError, and has changed nothing then."""
    folder = os.path.dirname(target)
    handle, beside = tempfile.mkstemp(prefix=".tenants-", dir=folder)
    try:
        with open(handle, "w", encoding="utf-8") as stream:
            try:
                before = os.stat(target)
            except FileNotFoundError:
                os.fchmod(handle, MODE)
            else:
                os.fchmod(handle, stat.S_IMODE(before.st_mode))
                with contextlib.suppress(PermissionError):  # who may not give it away becomes its owner
                    os.fchown(handle, before.st_uid, before.st_gid)
            stream.write(text)
            stream.flush()
            os.fsync(handle)
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    with contextlib.suppress(OSError):  # not every file system can
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _edited(text: str, content: TenantsFileSettings, change: Change) -> str:
    """``text``, whose ``content`` is known, with the change in it. Raises StoreFailed."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = WIDTH
    try:
        root = yaml.load(text)
    except YAMLError as error:
        raise StoreFailed(f"the file cannot be edited: {type(error).__name__}") from None
    root = CommentedMap() if root is None else root
    names = [one.name for one in content.tenants]
    for tenant in change.tenants:
        _put(root, "tenants", names, tenant.name, plain(tenant))
    digests = [one.sha256 for one in content.keys]
    for key in change.keys:
        _put(root, "keys", digests, key.sha256, plain(key))
    for gone in change.gone:
        position = digests.index(gone)
        del root["keys"][position], digests[position]
    written = io.StringIO()
    yaml.dump(root, written)
    return written.getvalue()


def _put(root: CommentedMap, section: str, known: list[str], identity: str, values: Mapping[str, Any]) -> None:
    """Enter ``values`` into the item of ``identity`` in the list ``section``, or append one. ``known``: the identities
    of the items, in their order."""
    if identity in known:
        item = root[section][known.index(identity)]
        for name in [name for name in item if name not in values]:
            del item[name]
        for name, value in values.items():
            if item.get(name) != value:
                item[name] = value
        return
    if not root.get(section):  # missing, null or an empty list
        root[section] = CommentedSeq()
    root[section].append(CommentedMap(values))
    known.append(identity)
