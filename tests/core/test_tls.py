from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from gateway.core.tls import KeyPair, Unusable, WatchedContext, follow, trust
from tests.support.tls import Authority
from tests.support.wait import eventually


def context_of(certificate: str, key: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    KeyPair(certificate, key).load(context)
    return context


def problem(certificate: str, key: str | None) -> tuple[str, str]:
    with pytest.raises(Unusable) as caught:
        context_of(certificate, key)
    return caught.value.member, str(caught.value)


def test_a_pair_in_two_files_and_in_one(authority, tmp_path):
    certificate, key = authority.issue("a")
    context_of(certificate, key)
    both = tmp_path / "both.pem"
    both.write_bytes(Path(certificate).read_bytes() + Path(key).read_bytes())
    context_of(str(both), None)
    assert KeyPair(str(both)).files == (str(both),)


def test_every_problem_names_its_file(authority, tmp_path):
    certificate, key = authority.issue("a")
    _, other = authority.issue("b")
    missing, empty, torn = (str(tmp_path / name) for name in ("missing", "empty", "torn"))
    Path(empty).touch()
    Path(torn).write_bytes(b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    assert problem(missing, key) == ("certificate", f"{missing} cannot be read: No such file or directory")
    assert problem(str(tmp_path), key) == ("certificate", f"{tmp_path} cannot be read: Is a directory")
    assert problem(empty, key) == ("certificate", f"{empty} holds no certificate in PEM")
    member, said = problem(torn, key)
    assert (member, said.startswith(f"{torn} cannot be used: ")) == ("certificate", True)
    assert problem(certificate, missing) == ("key", f"{missing} cannot be read: No such file or directory")
    assert problem(certificate, certificate) == ("key", f"{certificate} holds no private key in PEM")
    assert problem(certificate, None) == ("certificate", f"{certificate} holds no private key in PEM")
    assert problem(certificate, other) == ("key", f"the key in {other} is not that of the certificate in {certificate}")
    cut = tmp_path / "cut.key"
    cut.write_bytes(Path(key).read_bytes()[:100])
    member, said = problem(certificate, str(cut))
    assert str(cut) in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(authority):
    certificate, key = authority.issue("a")
    os.chmod(key, 0)
    assert problem(certificate, key) == ("key", f"{key} cannot be read: Permission denied")


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_a_key_with_a_passphrase_asks_nobody(authority, form):
    certificate, key = authority.issue("a")
    loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"secret")
    Path(key).write_bytes(loaded.private_bytes(serialization.Encoding.PEM, form, how))
    said = f"the key in {key} is encrypted, and nobody is there to type its passphrase"
    assert problem(certificate, key) == ("key", said)


def test_an_authority_that_is_none(authority, tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust(context, authority.file, "ca")
    assert len(context.get_ca_certs()) == 1
    _, key = authority.issue("a")
    with pytest.raises(Unusable, match="holds no certificate in PEM") as caught:
        trust(context, key, "ca")
    assert caught.value.member == "ca"


class Files:
    """A pair that is renewed, and the context that follows it."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.certificate, self.key = authority.issue("a")
        self.watched = WatchedContext(lambda: context_of(self.certificate, self.key), (self.certificate, self.key))

    def renew(self, *, certificate: bool = True, key: bool = True) -> None:
        """Put a new pair, or the named half of the one that was made last, where the old one is."""
        if certificate:
            self.authority.issue("next")
            os.replace(self.authority.folder / "next.crt", self.certificate)
        if key:
            os.replace(self.authority.folder / "next.key", self.key)

    def spoil(self) -> None:
        Path(self.key).write_bytes(b"rubbish")

    def remove(self) -> None:
        Path(self.certificate).unlink()

    def shown(self) -> bytes | None:
        """The certificate that the next connection is shown: a handshake in memory."""
        client, server = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
        asking = self.authority.trusting().wrap_bio(*client, server_hostname="localhost")
        answering = self.watched.context.wrap_bio(*server, server_side=True)
        while True:
            done = 0
            for side in (asking, answering):
                try:
                    side.do_handshake()
                    done += 1
                except ssl.SSLWantReadError:
                    pass
                server[0].write(client[1].read())
                client[0].write(server[1].read())
            if done == 2:
                return asking.getpeercert(binary_form=True)


@pytest.fixture
def files(authority):
    return Files(authority)


async def test_a_renewed_pair_is_shown_to_the_next_connection(files, caplog):
    caplog.set_level(logging.INFO)
    before = files.shown()
    await files.watched.look()
    assert files.shown() == before
    files.renew(key=False)
    await files.watched.look()
    # The other half is yet to come: nothing is wrong so far.
    assert files.shown() == before
    assert not caplog.records
    files.renew(certificate=False)
    await files.watched.look()
    assert files.shown() != before
    assert [record.message for record in caplog.records] == [f"read again: {files.certificate}, {files.key}"]


async def test_a_broken_pair_keeps_the_old_one_and_is_told_once(files, caplog):
    before = files.shown()
    files.spoil()
    for _ in range(4):
        await files.watched.look()
    assert files.shown() == before
    kept = "what was there before stays in use"
    assert [record.message for record in caplog.records] == [f"{files.key} holds no private key in PEM; {kept}"]
    files.remove()
    for _ in range(4):
        await files.watched.look()
    assert caplog.records[-1].message == f"{files.certificate} cannot be read: No such file or directory; {kept}"
    assert len(caplog.records) == 2
    files.renew()
    await files.watched.look()
    assert files.shown() != before
    assert len(caplog.records) == 2


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ssl.SSLError(1, "no such thing")])
async def test_whatever_is_the_matter_is_told_once_and_the_old_stays(files, caplog, error):
    """Files may be written anew, or their disk fail, while OpenSSL reads them."""
    before = files.shown()
    make = files.watched._make

    def fails() -> ssl.SSLContext:
        raise error

    files.watched._make = fails
    files.renew()
    for _ in range(4):
        await files.watched.look()
    assert files.shown() == before
    said = f"{files.certificate}, {files.key} cannot be used: {error}; what was there before stays in use"
    assert [record.message for record in caplog.records] == [said]
    files.watched._make = make
    files.renew()
    await files.watched.look()
    assert files.shown() != before


async def test_a_link_that_is_turned_is_a_change(authority, tmp_path):
    """As Kubernetes and certbot renew: the names are links."""
    first, key = authority.issue("first")
    second, _ = authority.issue("second")
    link = tmp_path / "live"
    link.symlink_to(first)
    read = []
    context = WatchedContext(lambda: read.append(link.resolve()) or ssl.create_default_context(), [str(link)])
    link.unlink()
    link.symlink_to(second)
    await context.look()
    assert [path.name for path in read] == ["first.crt", "second.crt"]
    assert key


async def test_other_files_come_into_force_while_the_old_ones_are_read(files, authority):
    other = Files(authority)
    held, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    made = ssl.create_default_context()

    def slow() -> ssl.SSLContext:
        loop.call_soon_threadsafe(held.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return made

    files.watched._make = slow
    os.utime(files.certificate, ns=(1, 1))
    looking = asyncio.create_task(files.watched.look())
    await held.wait()
    await files.watched.become(other.watched)
    go.set()
    await looking
    assert files.watched.context is other.watched.context


async def test_it_is_looked_at_again_and_again(files):
    before = files.shown()
    following = asyncio.create_task(follow(lambda: [files.watched], pause=0.01))
    try:
        for _ in range(2):
            before = files.shown()
            files.renew()
            await eventually(lambda old=before: files.shown() != old, "the new certificate is shown")
    finally:
        following.cancel()


async def test_who_uses_the_context_is_told_of_a_change_until_that_succeeds(files, caplog):
    told = []

    async def changed() -> None:
        told.append(files.watched.context)
        if len(told) == 1:
            raise OSError(24, "Too many open files")

    files.watched.on_change = changed
    await files.watched.look()
    assert told == []
    files.renew()
    for _ in range(3):
        await files.watched.look()
    assert told == [files.watched.context] * 2
    assert "not yet in use" in caplog.text
