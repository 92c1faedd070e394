"""docs/metrics.md names every series that there is, with its type and labels, and every word that the code puts into
them, and none that there is not.

The words that are in no enumeration are read in the source: it has no list of them either, that could be forgotten.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import errors
from gateway.api import indivisible
from gateway.core.observer import Charge, Hit
from gateway.core.queue_view import EndpointRoom, QueueView
from gateway.core.scaling_view import RoleView, ScalingView
from gateway.core.source_view import SourceView
from gateway.observability.metrics import Metrics
from gateway.proxy.serving.handover_failures import HANDOVER_RULES
from gateway.proxy.serving.timeline import Phase
from gateway.proxy.upstream.legs import RETRY_STATUSES, Cause
from gateway.tokens.reasons import Why

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
ROW = re.compile(
    r"^\| `(?P<name>(?:kvgate|llm_d_epp|inference_extension)_\w+)` \| (?P<type>\w+) \| (?P<labels>[^|]*?) \| .+ \|$",
    re.MULTILINE,
)


def described() -> dict[str, tuple[str, tuple[str, ...]]]:
    return {
        row["name"]: (row["type"], tuple(filter(None, row["labels"].split(", "))))
        for row in ROW.finditer(PAGE.read_text())
    }


def test_the_page_describes_what_there_is(clock, settled) -> None:
    metrics = Metrics(clock, "1")
    metrics.placed("m", "split", 0.001)
    metrics.attempted("m", "a", "decode", "ok")
    metrics.settled(settled(slo="met", counted=1, hits=[Hit("a", 3, 2, 1)], charge=Charge("red", 3, 2, 1)))
    metrics.limit_refused("red", "tokens")
    metrics.prefilled("m", 0.1)
    metrics.handed_over("m", 0.1)
    metrics.fell_back("m", "late")
    metrics.read_from(
        held=lambda: 0,
        in_flight=lambda: {"a": 1},
        budgets=lambda: {("red",): 0.5},
        standing_by=lambda: {"m": 1},
    )
    metrics.read_tenants_from(keys=lambda: 1, header_tenants=lambda: 0, source=lambda: {"file": True})
    metrics.queued("m", 1)
    metrics.read_queues_from(lambda: [QueueView("m", {0: 1}, 2.0, 0.5, [EndpointRoom("a", 1.2, "kv", 0.8)])])
    role = RoleView("both", usable=1, queued=0.5, kv=0.1, busy=0.7, wanted=2)
    metrics.read_scaling_from(lambda: [ScalingView("m", 1, 2, 0.5, 0.3, [role])])
    metrics.held("m", 0, "placed", 0.5)
    metrics.served("m", "red", 0, 0.5)
    metrics.shed("m", 0, "late")
    metrics.disconnected("m", "queued")
    metrics.read_sources_from(lambda: [SourceView("m", "file x", None, 1.0, ["http://a:1"], [])])
    metrics.bus_dropped("old")
    metrics.read_replicas_from(peers=lambda: {"fresh": 1}, connected=lambda: True)
    metrics.tokens_estimated("m", "x")
    metrics.media_rendered("m", "asked")
    metrics.prompt_asked("m", "asked")
    metrics.ids_compared("m", False)
    metrics.parity("m", True)
    metrics.prompts_exact("m", 0.5)
    metrics.endpoint_parity("m", "a", False)
    metrics.cache_lookups("a", "own", 3, 2)
    metrics.plugin_failed("scorer", "x", ValueError())
    metrics.score_refused("x")
    metrics.engine_state("e", False, "refused")
    metrics.engine_spared("e", True)
    metrics.draining("a", False)
    metrics.scraped("e", True, 0.0)
    metrics.kv_transfers("a", 1.0, {"in_progress": 1})
    metrics.sibling_refused("topic")
    metrics.read_limits_from(lambda: {("divided",): 1.0})
    metrics.kv_events("a", "stored", 1)
    metrics.kv_gap("a", "lost")
    metrics.kv_stream("a", "live")
    metrics.kv_blocks("m", 1)
    metrics.families.worker_up["0",] = 1  # these two are the parent's of several workers
    metrics.families.worker_restarts["0",] = 1

    there: dict[str, tuple[str, tuple[str, ...]]] = {}
    text = b"".join(metrics.families.text()).decode()
    for family in metrics.families.all:
        counted = re.search(rf"^{family.name}(_bucket)?[{{ ]", text, re.MULTILINE)
        assert counted, f"{family.name} was not counted: this test must call what counts it"
        there[family.name] = (family.kind, family.labels)
    assert described() == there


def test_the_queries_use_metrics_that_there_are() -> None:
    names = set(described())
    for query in re.findall(r"```promql\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for used in re.findall(r"kvgate_\w+", query):
            assert re.sub(r"_(bucket|sum|count)$", "", used) in names


LEG_FAILURES = {str(cause) for cause in Cause} - {"status"}


def row(name: str) -> set[str]:
    """The words in the meaning of a metric, and in the tables that it links to."""
    page = PAGE.read_text()
    (meaning,) = re.findall(rf"^\| `{name}` \|.*?\|.*?\| (.*) \|$", page, re.MULTILINE)
    words = set(re.findall(r"`([\w-]+)`", meaning))
    anchors = re.findall(r"\]\(#([\w-]+)\)", meaning)
    headings = re.findall(r"^### (.+)$", page, re.MULTILINE)
    return words.union(*(listed(one) for one in headings if one.lower().replace(" ", "-") in anchors))


def listed(heading: str) -> set[str]:
    """The words in the first column of the table below a heading."""
    _, _, below = PAGE.read_text().partition(f"### {heading}\n")
    rows = itertools.dropwhile(lambda line: not line.startswith("|"), below.splitlines())
    _head, _line, *table = itertools.takewhile(lambda line: line.startswith("|"), rows)
    return {word for line in table for word in re.findall(r"`([\w-]+)`", line.split("|")[1])}


def constants(node: ast.AST) -> Iterator[str]:
    """Words of a label's form that an expression may come to; what it only compares with is none."""
    if isinstance(node, ast.Constant) and re.fullmatch("[a-z]+(-[a-z]+)*", str(node.value)):
        yield str(node.value)
    elif not isinstance(node, ast.Compare):
        for inner in ast.iter_child_nodes(node):
            yield from constants(inner)


def tree(path: str) -> ast.AST:
    return ast.parse((ROOT / path).read_text())


def planned() -> Iterator[str]:
    """Reasons of plans: what fields of a body forbid, what functions return, and what is given as ``reason`` or
    ``one_leg``."""
    for _, word, _ in (*indivisible.FIELDS, *indivisible.RESPONSES_FIELDS):
        yield word
    for path in (
        "api/indivisible.py",
        "scheduling/prefill_decode.py",
        "scheduling/single.py",
        "placement/placing.py",
    ):
        for node in ast.walk(tree(f"gateway/{path}")):
            given = isinstance(node, ast.keyword) and node.arg == "reason"
            one_leg = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "one_leg"
            if isinstance(node, ast.Return) or given or one_leg:
                yield from constants(node)


def test_the_page_has_every_reason_of_a_plan() -> None:
    there = {"single", "split"}
    assert listed("Why a prefill was not split off") == set(planned()) - there
    assert there <= row("kvgate_plans_total")


def test_the_page_has_every_cause_of_a_fallback() -> None:
    assert listed("Why a hand-over failed") == set(HANDOVER_RULES)


def raised(*paths: str) -> Iterator[str]:
    """The reasons with which ``Dropped`` is raised."""
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Dropped":
                yield from constants(node)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kvgate_attempts_total", LEG_FAILURES | {f"status-{status}" for status in RETRY_STATUSES}),
        ("kvgate_client_disconnects_total", set(Phase)),
        ("kvgate_bus_dropped_total", set(raised("gateway/sharing/messages.py", "gateway/sharing/peers.py"))),
        ("kvgate_prompts_estimated_total", set(Why)),
        (
            "kvgate_requests_total",
            {one.outcome for one in vars(errors).values() if isinstance(one, type) and hasattr(one, "outcome")}
            - {errors.GatewayError.outcome, errors.ConfigError.outcome},
        ),
    ],
)
def test_the_page_has_every_word_of_a_label(name: str, words: set[str]) -> None:
    assert words - row(name) == set()


def test_the_page_says_what_several_workers_make_together(clock) -> None:
    rows = {
        "sum": "the sum",
        "lead": "what the leading worker says: the lowest that lives",
        "min": "the least",
        "once": "the growth of one of them, since each counts the same",
    }
    page = PAGE.read_text()
    families = Metrics(clock, "1").families.all
    for over, row in rows.items():
        (said,) = re.findall(rf"^\| {row} \| (.*) \|$", page, re.MULTILINE)
        there = {f.name for f in families if f.over == over and (over != "sum" or f.kind == "gauge")}
        assert set(re.findall(r"`(\w+)`", said)) == there, row
