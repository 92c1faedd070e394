from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.config.share import of_worker
from gateway.flow.settings import FlowSettings
from tests.support.gateway import config_for

MIB = 1024 * 1024


def test_one_process_has_all():
    config = config_for("http://127.0.0.1:1")
    assert of_worker(config, 1) is config


@pytest.mark.parametrize("count", [2, 3, 4, 64])
def test_the_parts_of_all_workers_are_the_whole_and_little_more(count):
    config = config_for("http://127.0.0.1:1")
    limits = FlowSettings(max_in_flight=100, max_queue=10, queue_timeout=7.0)
    config = replace(
        config,
        listen=replace(config.listen, max_body=MIB, max_held=64 * MIB),
        models=(replace(config.models[0], limits=limits),),
    )
    part = of_worker(config, count)
    [model] = part.models
    assert 100 <= count * model.limits.max_in_flight < 100 + count
    assert 10 <= count * model.limits.max_queue < 10 + count
    assert model.limits.queue_timeout == 7.0
    assert count * part.listen.max_held >= 64 * MIB
    assert 3 * part.listen.max_held >= 4 * MIB, "a largest body has room"
    assert replace(part, listen=config.listen, models=config.models) == config


def test_a_limit_of_one_leaves_each_worker_one():
    config = config_for("http://127.0.0.1:1")
    config = replace(config, models=(replace(config.models[0], limits=FlowSettings(max_in_flight=1, max_queue=0)),))
    [model] = of_worker(config, 4).models
    assert (model.limits.max_in_flight, model.limits.max_queue) == (1, 0)
