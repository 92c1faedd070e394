"""The scrape has the names, labels and types of a real one."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.simulator.conftest import DATA, Running, Start

SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$")
REAL = {
    connector: (DATA / f"metrics_{name}.txt").read_text() for connector, name in (("none", "plain"), ("nixl", "nixl"))
}
LABEL = re.compile(r'(\w+)="')


def names(text: str) -> dict[str, set[str]]:
    """Sample name -> label names."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = SAMPLE.match(line)
        assert match is not None, line
        found.setdefault(match[1], set()).update(LABEL.findall(match[2] or ""))
    return found


def types(text: str) -> dict[str, str]:
    return dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))


@pytest.mark.parametrize("connector", REAL)
async def test_every_vllm_metric_is_there_with_its_labels(start: Start, connector: str) -> None:
    engine = await start(connector=connector)
    await engine.chat(max_tokens=2)
    ours = (await engine.client.get("/metrics")).text
    real = REAL[connector]
    optional = re.compile(
        r"vllm:estimated_|http_request_|http_response_|http_requests_created|python_gc|process_max|"
        r"process_virtual"
    )
    wanted = {name: labels for name, labels in names(real).items() if not optional.match(name)}
    found = names(ours)
    assert set(wanted) <= set(found)
    for name, labels in wanted.items():
        if name != "vllm:cache_config_info":
            assert found[name] == labels, name
    assert {name: kind for name, kind in types(real).items() if name in found and name in types(ours)}.items() <= types(
        ours
    ).items()
    assert found["vllm:cache_config_info"] <= wanted["vllm:cache_config_info"]


@pytest.mark.parametrize("connector", REAL)
async def test_buckets_are_the_real_ones(start: Start, connector: str) -> None:
    engine = await start(connector=connector)
    ours = (await engine.client.get("/metrics")).text

    def buckets(text: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, bound in re.findall(r'^(vllm:\w+_bucket)\{.*?le="([^"]+)"', text, re.MULTILINE):
            found.setdefault(name, []).append(bound)
        return found

    assert buckets(ours) == buckets(REAL[connector])


async def test_prometheus_reads_it(engine: Running) -> None:
    await engine.chat("hello" * 20, max_tokens=3)
    families = {
        family.name: family for family in text_string_to_metric_families((await engine.client.get("/metrics")).text)
    }
    ttft = families["vllm:time_to_first_token_seconds"]
    assert next(s.value for s in ttft.samples if s.name.endswith("_count")) == 1
    assert next(s.value for s in ttft.samples if s.labels.get("le") == "+Inf") == 1
    assert families["vllm:generation_tokens"].samples[0].value == 3


async def test_the_figures_that_a_gateway_reads(start: Start) -> None:
    running = await start(served_name="a", block_size=32, num_blocks=100, ranks=2)
    labels = {"engine": "1"}
    assert await running.metric("vllm:num_requests_running", **labels) == 0
    assert await running.metric("vllm:kv_cache_usage_perc", **labels) == 0
    config = {"block_size": "32", "kv_cache_size_tokens": "3200", "num_gpu_blocks": "200"}
    assert await running.metric("vllm:cache_config_info", **labels, **config) == 1
    started = await running.metric("process_start_time_seconds")
    assert started == await running.metric("vllm:prompt_tokens_created", **labels)
    assert running.server.url.encode() not in (await running.client.get("/metrics")).content


async def test_requests_are_counted_by_route_and_status(engine: Running) -> None:
    await engine.chat(max_tokens=1)
    await engine.client.post("/v1/chat/completions", json={})
    path = "/v1/chat/completions"
    assert await engine.metric("http_requests_total", handler=path, status="2xx") == 1
    assert await engine.metric("http_requests_total", handler=path, status="4xx") == 1


async def test_content_type_is_prometheus_text(engine: Running) -> None:
    answer = await engine.client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert set(answer.headers) == {"date", "server", "vary", "content-type", "content-length"}
