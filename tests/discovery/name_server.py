"""A small name server on real sockets, UDP and TCP, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


@dataclass
class NameServer(asyncio.DatagramProtocol):
    """``records``: by name and type, with their TTL: ``("engines.test.", "A"): (5, ["10.0.0.1"])``. ``fails``: types of
    questions that are answered SERVFAIL. ``mute``: nothing is answered. ``asked``: each question."""

    records: dict[tuple[str, str], tuple[int, list[str]]] = field(default_factory=dict)
    fails: set[str] = field(default_factory=set)
    mute: bool = False
    truncates: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, where: tuple[str, int]) -> None:
        if (answer := self.answer(data)) is not None:
            if self.truncates:
                answer.answer.clear()
                answer.flags |= dns.flags.TC
            self.transport.sendto(answer.to_wire(), where)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2), "big")
        if (answer := self.answer(await reader.readexactly(length))) is not None:
            wire = answer.to_wire()
            writer.write(len(wire).to_bytes(2, "big") + wire)
        writer.close()
        await writer.wait_closed()

    def answer(self, data: bytes) -> dns.message.Message | None:
        question = dns.message.from_wire(data)
        (asked,) = question.question
        name, kind = str(asked.name), dns.rdatatype.to_text(asked.rdtype)
        self.asked.append((name, kind))
        if self.mute:
            return None
        answer = dns.message.make_response(question)
        answer.flags |= dns.flags.RA
        if kind in self.fails:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif (name, kind) in self.records:
            ttl, values = self.records[name, kind]
            answer.answer.append(dns.rrset.from_text_list(name, ttl, "IN", kind, values))
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    server = NameServer()
    tcp = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    server.port = tcp.sockets[0].getsockname()[1]
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", server.port))
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: server, sock=udp)
    try:
        yield server
    finally:
        transport.close()
        tcp.close()
        await tcp.wait_closed()
