from __future__ import annotations

import orjson
import pytest

from gateway.epp.guess import guess_route
from gateway.errors import ClientError


@pytest.mark.parametrize(
    ("body", "headers", "path"),
    [
        ({"messages": []}, {}, "/v1/chat/completions"),
        ({"messages": []}, {"anthropic-version": "2023-06-01"}, "/v1/messages"),
        ({"prompt": "x", "model": "m"}, {}, "/v1/completions"),
        ({"input": "x"}, {}, "/v1/embeddings"),
        ({"input": "x", "stream": True}, {}, "/v1/responses"),
        ({"query": "x", "documents": []}, {}, "/v1/rerank"),
        ({"text_1": "x", "text_2": "y"}, {}, "/v1/score"),
    ],
    ids=str,
)
def test_fields_tell_the_route(body, headers, path):
    assert guess_route(orjson.dumps(body), headers).path == path


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"model": "m"}'])
def test_what_tells_nothing_is_refused(body):
    with pytest.raises(ClientError):
        guess_route(body, {})
