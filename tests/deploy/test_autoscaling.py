"""deploy/kubernetes/autoscaling: each query, asked of a real Prometheus that scrapes a running gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.api.settings import SloSettings
from gateway.commands.processes import Processes
from gateway.fleet.settings import EndpointSettings
from gateway.flow.settings import FlowSettings
from tests.deploy.conftest import ROOT
from tests.support.engines import engines
from tests.support.gateway import config_for, running
from tests.support.ports import free_in_a_row
from tests.support.wait import until

FOLDER = ROOT / "deploy/kubernetes/autoscaling"
PROMETHEUS = shutil.which("prometheus")
SLO = SloSettings(ttft_ms=2000, tpot_ms=50)
ASKED = {"model": "sim", "messages": [{"role": "user", "content": "some words " * 40}], "max_tokens": 8}
PATH = "/v1/chat/completions"

# A user's machine may do without; CI has to have it.
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None and not os.environ.get("CI"), reason="prometheus is not installed: apt-get install prometheus"
)


def documents(name: str) -> list[dict[str, Any]]:
    text = (FOLDER / name).read_text().replace("my-model", "sim")
    return [one for one in yaml.safe_load_all(text) if one is not None]


def triggers(name: str) -> list[dict[str, Any]]:
    return [trigger for one in documents(name) for trigger in one["spec"]["triggers"]]


def of_adapter() -> str:
    """The query that prometheus-adapter makes for the HPA's metric."""
    [hpa], [values] = documents("hpa.yaml"), documents("prometheus-adapter.yaml")
    [wanted], [rule] = hpa["spec"]["metrics"], values["rules"]["external"]
    metric = wanted["external"]["metric"]
    names = re.fullmatch(r'\{__name__=~"(.*)"\}', rule["seriesQuery"])
    assert names is not None
    assert re.fullmatch(names[1], metric["name"])
    labels = ",".join(f'{label}="{value}"' for label, value in metric["selector"]["matchLabels"].items())
    return rule["metricsQuery"].replace("<<.Series>>", metric["name"]).replace("<<.LabelMatchers>>", labels)


@pytest.mark.parametrize("name", ["keda.yaml", "keda-prefill-decode.yaml", "keda-llm-d.yaml"])
def test_triggers_are_of_a_form_that_keda_takes(name: str) -> None:
    for one in documents(name):
        assert (one["apiVersion"], one["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
        assert one["spec"]["scaleTargetRef"]["name"]
    for trigger in triggers(name):
        assert trigger["type"] == "prometheus"
        assert trigger["metricType"] in ("AverageValue", "Value")
        assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold", "ignoreNullValues"}
        assert trigger["metadata"]["ignoreNullValues"] == "false", "or figures that are away would count as 0"
        assert float(trigger["metadata"]["threshold"]) > 0


class Asked:
    """A Prometheus that scrapes one target every second."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self._url = url
        self._client = client

    async def ready(self) -> bool:
        try:
            return (await self.value('up{job="kvgate"}')) == 1
        except httpx.HTTPError:
            return False

    async def shows(self, queries: Sequence[str], value: float) -> bool:
        """Whether each query has this value. A scrape that a busy machine answers too late leaves none for a while."""
        return [await self.value(query) for query in queries] == [value] * len(queries)

    async def value(self, query: str) -> float | None:
        """What KEDA makes of a query: its one value; None: nothing came, which KEDA takes for an error."""
        reply = await self._client.get(f"{self._url}/api/v1/query", params={"query": query})
        if reply.status_code == 503:
            return None
        assert reply.status_code == 200, reply.text
        found = reply.json()["data"]["result"]
        assert len(found) <= 1, f"{query} has several values"
        return float(found[0]["value"][1]) if found else None


async def prometheus(processes: Processes, folder: Path, target: str, client: httpx.AsyncClient) -> Asked:
    port = free_in_a_row()
    jobs = [{"job_name": "kvgate", "static_configs": [{"targets": [target]}]}]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    where = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command = [str(PROMETHEUS), *where, f"--web.listen-address=127.0.0.1:{port}"]
    processes.start("prometheus", command, env=dict(os.environ))
    asked = Asked(f"http://127.0.0.1:{port}", client)
    await until(asked.ready, within=60)
    return asked


@pytest.mark.slow
@needs_prometheus
async def test_every_query_has_a_value_before_a_request_and_follows_what_is_asked(processes, tmp_path):
    async with engines(1, step_seconds=0.02) as servers, httpx.AsyncClient(timeout=30) as client:
        config = config_for(servers[0].url, slo=SLO, limits=FlowSettings(no_endpoint_timeout=60.0))
        async with running(config) as gateway:
            asked = await prometheus(processes, tmp_path, gateway.admin_url.removeprefix("http://"), client)
            queries = [one["metadata"]["query"] for name in ("keda.yaml", "keda-llm-d.yaml") for one in triggers(name)]
            queries.append(of_adapter())
            await until(lambda: asked.shows(queries, 0), within=30)
            sent = [
                asyncio.create_task(gateway.client.post(PATH, json=ASKED | {"max_tokens": 3000, "ignore_eos": True}))
                for _ in range(4)
            ]
            running_now, wanted = "sum(llm_d_epp_request_running)", triggers("keda.yaml")[0]["metadata"]["query"]

            async def shown() -> bool:
                engines_wanted = await asked.value(wanted) or 0
                return await asked.shows([running_now], 4) and engines_wanted >= 1

            await until(shown, within=30)

            async def agree() -> bool:
                return await asked.value(of_adapter()) == await asked.value(wanted) is not None

            await until(agree, within=30)
            for task in sent:
                task.cancel()


@pytest.mark.slow
@needs_prometheus
async def test_each_role_is_wanted_by_itself(processes, tmp_path):
    async with engines(2) as servers, httpx.AsyncClient(timeout=30) as client:
        roles = ("prefill", "decode")
        endpoints = tuple(EndpointSettings(url=s.url, role=r) for s, r in zip(servers, roles, strict=True))
        async with running(config_for(endpoints=endpoints, slo=SLO)) as gateway:
            asked = await prometheus(processes, tmp_path, gateway.admin_url.removeprefix("http://"), client)
            queries = [one["metadata"]["query"] for one in triggers("keda-prefill-decode.yaml")]
            await until(lambda: asked.shows(queries, 0), within=30)
            assert (await gateway.client.post(PATH, json=ASKED)).status_code == 200

            async def wanted() -> bool:
                return [(await asked.value(query) or 0) >= 1 for query in queries[:2]] == [True, True]

            await until(wanted, within=30)
