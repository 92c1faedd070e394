from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.settings import SloSettings
from gateway.api.slo import read_slo
from gateway.errors import ClientError
from gateway.framework.request import Slo

NONE = SloSettings()


def test_headers_are_milliseconds() -> None:
    assert read_slo({"x-slo-ttft-ms": "500", "x-slo-tpot-ms": " 12.5 "}, NONE) == Slo(ttft=0.5, tpot=0.0125)
    assert read_slo({"x-slo-ttft-ms": "500"}, NONE) == Slo(ttft=0.5)
    assert read_slo({}, NONE) is None


def test_the_model_s_stand_where_a_header_says_nothing() -> None:
    model = SloSettings(ttft_ms=2000, tpot_ms=50)
    assert read_slo({}, model) == Slo(ttft=2.0, tpot=0.05)
    assert read_slo({"x-slo-tpot-ms": "30"}, model) == Slo(ttft=2.0, tpot=0.03)


@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-tpot-ms"])
@pytest.mark.parametrize(
    "value",
    ["", "0", "-5", "nan", "inf", "1e3", "1_0", "0x10", "5s", "500 ms", "\u0665", "1" * 5000, "86400001", "0.0"],
)
def test_a_wrong_value_is_the_client_s_fault_and_names_the_header(name, value) -> None:
    with pytest.raises(ClientError, match=name) as caught:
        read_slo({name: value}, NONE)
    assert caught.value.status == 400
    assert caught.value.param == name


@given(st.text(max_size=30))
def test_any_text_is_a_number_in_range_or_an_error(text) -> None:
    try:
        slo = read_slo({"x-slo-ttft-ms": text}, NONE)
    except ClientError:
        return
    assert slo is not None
    assert slo.ttft is not None
    assert 0 < slo.ttft <= 86_400


@pytest.mark.parametrize("bad", [{"ttft_ms": 0.0}, {"tpot_ms": -1.0}, {"ttft_ms": float("nan")}, {"tpot_ms": 1e9}])
def test_the_settings_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SloSettings(**bad)
