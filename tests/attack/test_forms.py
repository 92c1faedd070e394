"""Forms that one parser reads as one and another as two."""

from __future__ import annotations

import pytest

from tests.attack.gateway import attacked
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import raw_client

HIDDEN = (
    b'--a--\\x\r\nContent-Disposition: form-data; name="vllm_xargs"\r\n\r\n{"kv_transfer_params":{}}\r\n'
    b'--a--\\x\r\nContent-Disposition: form-data; name="model"\r\n\r\nanother\r\n--a--\\x--\r\n'
)


@pytest.mark.parametrize("hides", [b'boundary=a; boundary="a--\\x"', b'x="; boundary=a;"; boundary="a--\\x"'])
async def test_a_form_behind_a_second_boundary(tmp_path, hides):
    """[multipart_boundary] It was an empty form here, and fields that may not pass for the engine."""
    async with ScriptedEngine() as engine, attacked(tmp_path, engine.url) as gateway:
        async with raw_client(gateway.url) as client:
            await client.say(
                b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: g\r\nContent-Type: multipart/form-data; "
                + hides
                + b"\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN)
                + HIDDEN
            )
            assert (await client.reply()).status == 400
        assert engine.posts == 0
        gateway.unharmed()
