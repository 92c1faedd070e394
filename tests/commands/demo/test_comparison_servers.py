from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.commands.demo.comparison import environment, start_engines, start_gateway
from gateway.commands.processes import NotReady, Processes


def test_engines_serve_until_the_context_is_left(tmp_path: Path) -> None:
    with Processes(tmp_path) as running:
        urls = start_engines(running, 2, ["--served-name=mine"])
        for url in urls:
            assert httpx.get(f"{url}/v1/models", trust_env=False, verify=False).json()["data"][0]["id"] == "mine"
        started = list(running._running)
    assert [process.child.returncode for process in started] == [0, 0]
    for url in urls:
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, trust_env=False, verify=False)


def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    with Processes(tmp_path) as running, pytest.raises(NotReady, match=r"no tokenizer\.json"):
        start_engines(running, 1, [f"--tokenizer={tmp_path}"])


def test_a_gateway_that_does_not_start_says_why(tmp_path: Path) -> None:
    with Processes(tmp_path) as running, pytest.raises(NotReady, match="gateway did not start"):
        start_gateway(running, {"models": [{"name": "sim", "endpoints": [{"url": "ftp://nowhere"}]}]})


def test_processes_see_no_proxy_and_no_hub() -> None:
    seen = environment({"PATH": "/bin", "http_proxy": "x", "HTTPS_PROXY": "x", "NO_PROXY": "x"})
    assert seen == {"PATH": "/bin", "HF_HUB_OFFLINE": "1", "RAYON_NUM_THREADS": "1"}
