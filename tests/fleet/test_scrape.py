from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.fleet.scrape import LOOK_AGAIN, MAX_SAMPLES, Scrape, ScrapeReader, read, restarted
from gateway.framework.fleet import EngineMetrics, TransferStats
from tests.support.examples import examples

ONE = b"""# HELP process_start_time_seconds Start time
process_start_time_seconds 1.5e+09
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.5e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 40.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="m"} 60.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 20.0
"""


def test_real_scrapes(data):
    plain = read((data / "metrics_plain.txt").read_bytes(), at=5.0)
    assert plain == Scrape(
        engines={"0": EngineMetrics(at=5.0, kv_capacity=1_048_576, block_size=128, prefix_queries=376.0)},
        started=1795217687.84,
        created={"0": 1795217747.89542},
    )
    nixl = read((data / "metrics_nixl.txt").read_bytes())
    assert nixl is not None
    assert nixl.engines["0"].block_size == 32
    assert nixl.engines["0"].prefix_hits == 320.0
    assert not nixl.asleep
    # Both lines are there from its start, before anything was handed over.
    assert (plain.has_kv_connector, nixl.has_kv_connector) == (False, True)
    assert nixl.engines["0"].kv_expired == 0
    assert nixl.engines["0"].kv_fetching == {"waiting_to_start": 0, "in_progress": 0, "completed_waiting": 0}


def test_every_wanted_line():
    scrape = read(ONE)
    assert scrape == Scrape(
        engines={
            "0": EngineMetrics(
                running=3,
                waiting=2,
                kv_usage=0.25,
                prefix_queries=100.0,
                prefix_hits=40.0,
                external_queries=60.0,
                external_hits=20.0,
            )
        },
        started=1.5e9,
        created={"0": 1.5e9},
    )


def ranks(*labels: str) -> bytes:
    lines = [b"other 1"]
    for name, value in (("num_requests_running", 1), ("num_requests_waiting", 2), ("kv_cache_usage_perc", 0.5)):
        lines += [b'vllm:%s{engine="%s"} %f' % (name.encode(), label.encode(), value) for label in labels]
    lines += [b'vllm:cache_config_info{engine="%s",kv_cache_size_tokens="100"} 1' % label.encode() for label in labels]
    return b"\n".join(lines) + b"\n"


def test_ranks_are_told_apart_and_counted_from_zero():
    scrape = read(ranks("10", "9", "8"))
    assert scrape is not None
    assert list(scrape.engines) == ["8", "9", "10"]
    assert scrape.rank(0) is scrape.engines["8"]
    assert scrape.rank(2) is scrape.engines["10"]
    assert scrape.rank(3) is None


def test_ranks_behind_one_endpoint_add_up():
    scrape = read(ranks("0", "1"))
    assert scrape is not None
    assert scrape.rank(None) == EngineMetrics(running=2, waiting=4, kv_usage=0.5, kv_capacity=200)


def test_ranks_without_a_capacity_average_their_usage():
    scrape = read(b'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 1\n'
                  b'vllm:kv_cache_usage_perc{engine="0"} 1\nvllm:kv_cache_usage_perc{engine="1"} 0\n')  # fmt: skip
    assert scrape is not None
    together = scrape.rank(None)
    assert together is not None
    assert together.kv_usage == 0.5


@pytest.mark.parametrize(
    ("labels", "capacity", "block_size"),
    [
        ('block_size="16",engine="0",kv_cache_size_tokens="4096",num_gpu_blocks="1"', 4096, 16),
        ('block_size="16",engine="0",kv_cache_size_tokens="None",num_gpu_blocks="10"', 160, 16),
        ('block_size="16",num_gpu_blocks="10"', 160, 16),
        ('block_size="None",engine="0",num_gpu_blocks="None"', 0, 0),
        ('mamba_block_size="8",engine="0",x=",block_size=\\"9\\"",hash_block_size="4"', 0, 0),
        ('block_size="%s",engine="0",num_gpu_blocks="1"' % ("9" * 5000), 0, 0),
        ('engine="0",kv="{\\"a\\": 1}",block_size="32",num_gpu_blocks="2"', 64, 32),
    ],
)
def test_capacity_comes_from_the_labels_of_the_configuration(labels, capacity, block_size):
    scrape = read(ONE + f"vllm:cache_config_info{{{labels}}} 1.0\n".encode())
    assert scrape is not None
    assert (scrape.engines["0"].kv_capacity, scrape.engines["0"].block_size) == (capacity, block_size)


def test_blocks_of_all_ranks_are_shared_out():
    text = ranks("0", "1").replace(b'kv_cache_size_tokens="100"', b'block_size="16",num_gpu_blocks="20"')
    scrape = read(text)
    assert scrape is not None
    assert scrape.engines["1"].kv_capacity == 160


FETCHING = b'vllm:num_requests_kv_fetch_by_stage{engine="%s",model_name="m",stage="%s"} %d\n'


def test_transfers_of_kv_are_told_apart_by_rank_and_add_up():
    scrape = read(
        ranks("0", "1")
        + b'vllm:nixl_num_kv_expired_reqs_total{engine="0"} 2\nvllm:nixl_num_kv_expired_reqs_total{engine="1"} 3\n'
        + FETCHING % (b"0", b"in_progress", 1)
        + FETCHING % (b"1", b"in_progress", 4)
        + FETCHING % (b"1", b"waiting_to_start", 5)
    )
    assert scrape is not None
    assert scrape.has_kv_connector
    assert [engine.kv_expired for engine in scrape.engines.values()] == [2, 3]
    assert [engine.kv_fetching for engine in scrape.engines.values()] == [
        {"in_progress": 1},
        {"in_progress": 4, "waiting_to_start": 5},
    ]
    together = scrape.rank(None)
    assert together is not None
    assert (together.kv_expired, together.kv_fetching) == (5, {"in_progress": 5, "waiting_to_start": 5})


def test_a_stage_is_one_of_few_short_words():
    stages = [b"Not A Word", b"x" * 33, *(b"stage_%s" % letter.encode() for letter in "abcdefghijkl")]
    scrape = read(ONE + b"".join(FETCHING % (b"0", stage, 1) for stage in stages))
    assert scrape is not None
    assert list(scrape.engines["0"].kv_fetching) == [f"stage_{letter}" for letter in "abcdefgh"]


def test_a_name_that_is_absent_is_looked_for_again():
    expired = b'vllm:nixl_num_kv_expired_reqs_total{engine="0"} 2\n'
    reader = ScrapeReader()
    reader.read(ONE)
    other_process = ONE.replace(b"process_start_time_seconds 1.5e+09", b"process_start_time_seconds 1.6e+09")
    scrape = reader.read(other_process + expired)
    assert scrape is not None
    assert scrape.engines["0"].kv_expired == 2
    # Nothing says that the process is another: then within some dozens of texts.
    silent = ranks("0")
    reader.read(silent)
    scrapes = [reader.read(silent + expired) for _ in range(LOOK_AGAIN)]
    assert [scrape.has_kv_connector for scrape in scrapes if scrape] == [False] * (LOOK_AGAIN - 1) + [True]


def test_old_names():
    scrape = read(
        b'vllm:num_requests_running{model_name="m"} 1\n'
        b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
        b'vllm:gpu_prefix_cache_queries_total{model_name="m"} 10\n'
        b'vllm:gpu_prefix_cache_hits_total{model_name="m"} 5\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
    )
    assert scrape is not None
    assert scrape.rank(None) == EngineMetrics(
        running=1, kv_usage=0.5, kv_capacity=1600, block_size=16, prefix_queries=160, prefix_hits=80
    )


def test_a_sleeping_engine():
    line = b'vllm:engine_sleep_state{engine="0",sleep_state="%s"} %d\n'
    awake = read(ONE + line % (b"awake", 1) + line % (b"discard_all", 0))
    asleep = read(ONE + line % (b"awake", 0) + line % (b"discard_all", 1))
    assert awake is not None
    assert asleep is not None
    assert (awake.asleep, asleep.asleep) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n\n",
        b"<html>404</html>",
        b'{"error": "no"}',
        b"vllm:num_requests_running",
        b"vllm:num_requests_running{",
        b'vllm:num_requests_running{engine="0"} 1',  # cut off: it may have been 12
        b'vllm:num_requests_running{engine="0"}\n',
        b"vllm:num_requests_running 1\n",  # every vLLM names its model
        b'vllm:num_requests_running{engine="0"} NaN\n',
        b'vllm:num_requests_running{engine="0"} +Inf\n',
        b'vllm:num_requests_running{engine="0"} -1\n',
        b'vllm:num_requests_running{engine="0"} 1e300\n',
        b'vllm:num_requests_running{engine="0"} many\n',
        b'xvllm:num_requests_running{engine="0"} 1\n',
        b"\xff\xfe\x00",
    ],
)
def test_what_is_no_scrape_is_none(text):
    assert read(text) is None


def test_odd_values_beside_good_ones():
    text = ONE.replace(b"} 0.25", b"} 7.5").replace(b"} 2.0", b"} NaN").replace(b"} 100.0", b"} 100.0 1795217687000")
    scrape = read(text)
    assert scrape is not None
    counted = {"prefix_queries": 100.0, "prefix_hits": 40.0, "external_queries": 60.0, "external_hits": 20.0}
    assert scrape.engines["0"] == EngineMetrics(running=3, kv_usage=1.0, **counted)


def test_an_endless_list_of_ranks_is_cut():
    scrape = read(ranks(*map(str, range(MAX_SAMPLES + 50))))
    assert scrape is not None
    assert len(scrape.engines) == MAX_SAMPLES


def test_a_reader_that_remembers_reads_what_a_fresh_one_reads(data):
    reader = ScrapeReader()
    texts = [(data / name).read_bytes() for name in ("metrics_plain.txt", "metrics_nixl.txt")]
    texts += [ONE, ranks("0", "1", "2"), b"# grown\n" * 2000 + ONE, texts[0], b"garbage", ranks("1", "0"), texts[1]]
    for text in texts:
        assert reader.read(text, 1.0) == read(text, 1.0)


WORDS = sorted({*re.findall(rb"[^ {},\n]+|[ {},\n]", ONE), b'"None"', b"\xff", b"-Inf", b'engine="1"', b"\\"})


@given(st.lists(st.sampled_from(WORDS) | st.binary(max_size=8), max_size=60).map(b"".join), st.integers(0, 400))
@examples(200)
@example(noise=b"vllm:external_prefix_cache_hits_total{", cut=0)
def test_no_text_raises_and_memory_changes_nothing(noise, cut):
    reader = ScrapeReader()
    for text in (ONE, ONE[:cut] + noise + ONE[cut:], noise, noise + ONE, ONE):
        assert reader.read(text, 1.0) == read(text, 1.0)


def scrape(started=None, created=None, queries=0.0, hits=0.0) -> Scrape:
    metrics = EngineMetrics(prefix_queries=queries, prefix_hits=hits)
    return Scrape(engines={"0": metrics}, started=started, created=created)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (scrape(started=1.0), scrape(started=1.0, queries=5), False),
        (scrape(started=1.0), scrape(started=2.0), True),
        (scrape(), scrape(started=2.0), False),
        (scrape(created={"0": 1.0}), scrape(created={"0": 1.0}), False),
        (scrape(created={"0": 1.0}), scrape(created={"0": 2.0}), True),
        (scrape(created={"0": 1.0}), scrape(created={"1": 2.0}), False),
        (scrape(queries=10), scrape(queries=11, hits=3), False),
        (scrape(queries=10), scrape(queries=9), True),
        (scrape(queries=10, hits=5), scrape(queries=10, hits=0), True),
    ],
)
def test_restarts(before, after, expected):
    assert restarted(before, after) is expected


def moves(count: float, seconds: float, size: float, tokens: float, engine: str = "0") -> dict[str, list[str]]:
    """Lines by family, as an engine with a connector of NIXL writes them."""
    labels = f'engine="{engine}",model_name="m"'
    families: dict[str, list[str]] = {}
    for name, total in (("nixl_xfer_time_seconds", seconds), ("nixl_bytes_transferred", size)):
        families[name] = [
            f'vllm:{name}_bucket{{engine="{engine}",le="+Inf",model_name="m"}} {count}',
            f"vllm:{name}_count{{{labels}}} {count}",
            f"vllm:{name}_sum{{{labels}}} {total}",
        ]
    families["prompt_tokens_cached_by_source_total"] = [
        f'vllm:prompt_tokens_cached_by_source_total{{{labels},source="{source}"}} {number}'
        for source, number in (("device", 9.0), ("p2p", tokens), ("disk", 8.0))
    ]
    return families


def written(*engines: dict[str, list[str]], prefix: bytes = b"") -> bytes:
    """A scrape of engines with these families: each name's title, then all engines' lines."""
    lines: list[str] = []
    for name in engines[0]:
        kind = "counter" if name.endswith("_total") else "histogram"
        lines += [f"# HELP vllm:{name} Of KV.", f"# TYPE vllm:{name} {kind}"]
        lines += [line for families in engines for line in families[name]]
        lines += [f"# HELP vllm:{name}_created Of KV.", f"# TYPE vllm:{name}_created gauge"]
    labels = [str(number).encode() for number in range(len(engines))]
    expired = b"".join(b'vllm:nixl_num_kv_expired_reqs_total{engine="%s"} 0\n' % label for label in labels)
    return prefix + "\n".join(lines).encode() + b"\n" + expired + ranks(*(label.decode() for label in labels))


def test_what_was_moved_is_told_apart_by_rank_and_adds_up():
    scrape = read(written(moves(2, 0.5, 3e9, 100), moves(1, 0.25, 1e9, 50, engine="1")))
    assert scrape is not None
    one, other = TransferStats(2, 3e9, 0.5, 100), TransferStats(1, 1e9, 0.25, 50)
    assert [engine.transfers for engine in scrape.engines.values()] == [one, other]
    together = scrape.rank(None)
    assert together is not None
    assert together.transfers == TransferStats(3, 4e9, 0.75, 150)


def test_what_was_moved_is_found_wherever_it_has_gone():
    reader = ScrapeReader()
    engines = [moves(2, 0.5, 3e9, 100), moves(1, 0.25, 1e9, 50, engine="1")]
    for lines in (0, 3000, 0, 200):
        text = written(*engines, prefix=b"# grown\n" * lines)
        assert reader.read(text) == read(text)
        assert [one.transfers.count for one in reader.read(text).engines.values()] == [2, 1]


def test_bytes_may_be_more_than_other_counts():
    scrape = read(written(moves(1e7, 4e5, 1e16, 1e10)))
    assert scrape is not None
    assert scrape.engines["0"].transfers.bytes == 1e16


def test_who_has_no_connector_has_moved_nothing():
    text = written(moves(2, 0.5, 3e9, 100)).replace(b"nixl_num_kv_expired_reqs_total", b"other")
    scrape = read(text)
    assert scrape is not None
    assert scrape.engines["0"].transfers == TransferStats()


def test_a_family_that_is_cut_off_is_read_as_far_as_it_is_whole():
    text = written(moves(2, 0.5, 3e9, 100))
    for end in range(len(text)):
        scrape = read(ranks("0") + b'vllm:nixl_num_kv_expired_reqs_total{engine="0"} 0\n' + text[:end])
        assert scrape is not None
        found = scrape.engines["0"].transfers
        assert found.count in (0, 2)
        assert found.seconds in (0, 0.5)
        assert found.bytes in (0, 3e9)
        assert found.tokens in (0, 100)
