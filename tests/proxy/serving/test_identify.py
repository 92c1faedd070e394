"""What a request's headers say of it, before it has tokens."""

from __future__ import annotations

import pytest

from gateway.api.routes import ROUTES
from gateway.api.settings import SessionSettings
from gateway.proxy.serving.identify import client_of
from gateway.scheduling.settings import PluginSettings, ProfileSettings, WeightedScorer
from tests.support.chat import CHAT, COMPLETE
from tests.support.gateway import config_for, running
from tests.support.in_memory import MemoryClient
from tests.support.scene import Scene
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import answer

STICKY = {
    "plugins": (
        PluginSettings("healthy", "healthy"),
        PluginSettings("session", "session-affinity"),
        PluginSettings("best", "max-score"),
    ),
    "profiles": (
        ProfileSettings("default", filters=("healthy",), scorers=(WeightedScorer("session"),), picker="best"),
    ),
}


async def test_a_session_in_a_cookie_stays_where_it_was() -> None:
    asked: list[int] = []

    def served_by(number):
        async def post(connection, head, body):
            asked.append(number)
            await connection.say(answer(COMPLETE))

        return post

    session = SessionSettings(cookie="sid")
    async with (
        ScriptedEngine(served_by(1)) as one,
        ScriptedEngine(served_by(2)) as other,
        ScriptedEngine(served_by(3)) as third,
    ):
        async with running(config_for(one.url, other.url, third.url, session=session, **STICKY)) as gateway:
            for _ in range(6):
                for name in ("a", "b", "c"):
                    # In a header of our own: the client would keep a cookie jar.
                    headers = {"Cookie": f"theme=dark; sid={name}"}
                    reply = await gateway.client.post("/v1/chat/completions", json=CHAT, headers=headers)
                    assert reply.status_code == 200
            homes = [set(asked[start::3]) for start in range(3)]
            assert [len(pinned_url) for pinned_url in homes] == [1, 1, 1]


def test_clients_are_told_apart_by_their_keys_and_else_by_their_addresses() -> None:
    mine, yours = [("Host", "g"), ("Authorization", "Bearer mine")], [("X-API-Key", "yours")]
    assert client_of(mine, "10.0.0.1") == client_of(mine, "10.0.0.2")
    assert len({client_of(mine, "a"), client_of(yours, "a"), client_of([], "a"), client_of([], "b")}) == 4
    assert "mine" not in client_of(mine, "a")
    assert client_of([], None) == ""


@pytest.mark.parametrize(
    ("path", "body", "output"),
    [
        ("/v1/chat/completions", CHAT, 16.0),
        ("/v1/embeddings", {"input": "a"}, 0.0),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, 0.0),
        ("/v1/score", {"text_1": "a", "text_2": "b"}, 0.0),
    ],
)
async def test_only_what_generates_is_expected_to_have_output(path, body, output) -> None:
    async with Scene() as scene:
        life = scene.request(ROUTES[path])
        call = await life.read(MemoryClient(body | {"max_tokens": 16}))
        assert call.request.expected_output == output
        life.settle()


async def test_the_longest_context_of_a_models_engines_is_known() -> None:
    async def post(connection, head, body):
        await connection.say(answer(COMPLETE))

    async with ScriptedEngine(post) as server, running(config_for(server.url)) as gateway:
        model = gateway.gateway.directory.runtimes[0].model
        assert gateway.gateway.directory.longest_context(model) == 4096
    async with ScriptedEngine(post) as server, running(config_for(server.url, served_name="unlisted")) as gateway:
        model = gateway.gateway.directory.runtimes[0].model
        assert gateway.gateway.directory.longest_context(model) is None
