from __future__ import annotations

from dataclasses import fields, replace

import pytest

from gateway.fleet.load.hardware import GPUS, PROFILES, roofline, starting_costs
from gateway.fleet.load.shape import ModelShape, read_shape
from gateway.fleet.settings import CostSettings, StartingCosts
from simulator.virtual.machine import MACHINES
from tests.fleet.load.test_shape import LLAMA_8B, LLAMA_70B


def unknown() -> ModelShape | None:
    return None


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_the_replay_s_machine_of_that_name(name):
    profile, machine = PROFILES[name], MACHINES[name]
    for value in ("prefill_token", "prefill_quadratic", "step", "step_request", "kv_token"):
        assert getattr(profile, value) == getattr(machine, value)
    assert profile.step_tokens == machine.max_batched_tokens


@pytest.mark.parametrize(
    ("config", "tensor_parallel", "profile"), [(LLAMA_70B, 4, "70b-tp4"), (LLAMA_8B, 1, "8b-h100")]
)
def test_the_roofline_of_a_profile_s_model_is_the_profile(config, tensor_parallel, profile):
    shape = read_shape(config)
    assert shape is not None
    costs = roofline(shape, GPUS["h100"], tensor_parallel)
    for value in (field.name for field in fields(StartingCosts) if field.name != "fit"):
        assert getattr(costs, value) == pytest.approx(getattr(PROFILES[profile], value), rel=0.12)


def test_kv_heads_bound_how_far_kv_is_divided():
    shape = read_shape(LLAMA_8B | {"num_key_value_heads": 2})
    assert shape is not None
    two, eight = (roofline(shape, GPUS["a100"], number) for number in (2, 8))
    assert two.kv_token == eight.kv_token
    assert two.prefill_token == pytest.approx(4 * eight.prefill_token)


def test_nothing_said_is_70b_on_four_h100():
    assert (
        starting_costs((CostSettings(), CostSettings(), CostSettings()), unknown)
        == PROFILES["70b-tp4"]
        == StartingCosts()
    )


def test_the_nearest_says_each_value():
    endpoint, model = CostSettings(cpu_fetch=0.1), CostSettings(cpu_fetch=0.2, step_tokens=100, fit=False)
    fleet = CostSettings(profile="8b-h100", step_tokens=200, storage_fetch=3e-6, fit=True)
    assert starting_costs((endpoint, model, fleet), unknown) == replace(
        PROFILES["8b-h100"], cpu_fetch=0.1, step_tokens=100, storage_fetch=3e-6, fit=False
    )


def test_who_names_hardware_takes_no_values_of_other_hardware():
    fleet = CostSettings(storage_fetch=1e-3, cpu_fetch=1.0, fit=False)
    found = starting_costs((CostSettings(profile="8b-h100", cpu_fetch=5e-3), fleet), unknown)
    assert found == replace(PROFILES["8b-h100"], cpu_fetch=5e-3, fit=False)


def test_a_gpu_needs_the_shape():
    levels = (CostSettings(gpu="h200", tensor_parallel=2, step_tokens=500),)
    shape = read_shape(LLAMA_70B)
    assert shape is not None
    assert starting_costs(levels, lambda: shape) == replace(roofline(shape, GPUS["h200"], 2), step_tokens=500)
    assert starting_costs(levels, unknown) == StartingCosts(step_tokens=500)


def test_a_shape_is_read_only_where_it_is_asked_for():
    def never() -> ModelShape | None:
        raise AssertionError("nobody named a GPU")

    assert starting_costs((CostSettings(profile="8b-h100"), CostSettings(gpu="h100")), never) == PROFILES["8b-h100"]
