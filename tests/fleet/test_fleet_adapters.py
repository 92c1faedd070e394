from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.fleet.fleet import Adapters
from gateway.framework import Endpoint
from gateway.framework.fleet import ServedModel
from tests.support.candidates import endpoint

BASE = ServedModel("base")
SQL = ServedModel("sql", root="/adapters/sql", parent="base")
POEMS = ServedModel("poems", parent="base")


def serving(slot: int, *models: ServedModel) -> Endpoint:
    made = endpoint(slot)
    made.engine.served = {model.id: model for model in models}
    return made


def test_every_engines_are_found_and_their_base_models_are_none() -> None:
    adapters = Adapters([serving(0, BASE, SQL), serving(1), serving(2, BASE, POEMS)])
    assert dict(adapters) == {"sql": SQL, "poems": POEMS}
    assert len(adapters) == 2
    assert "poems" in adapters
    assert "base" not in adapters
    with pytest.raises(KeyError):
        adapters["nowhere"]


def test_of_several_that_have_one_the_first_tells() -> None:
    other = replace(SQL, root="/elsewhere")
    adapters = Adapters([serving(0, BASE), serving(1, other), serving(2, SQL)])
    assert adapters["sql"] == other
    assert list(adapters.items()) == [("sql", other)]


def test_what_is_one_engines_adapter_and_anothers_model_is_an_adapter() -> None:
    assert Adapters([serving(0, ServedModel("sql")), serving(1, SQL)])["sql"] == SQL


def test_what_an_engine_loads_later_is_found() -> None:
    late = serving(0, BASE)
    adapters = Adapters([late])
    assert "sql" not in adapters
    late.engine.served = {"base": BASE, "sql": SQL}
    assert "sql" in adapters


def test_without_endpoints_there_are_none() -> None:
    assert not Adapters(())
