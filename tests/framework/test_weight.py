from __future__ import annotations

import pytest

from gateway.framework import Kind, decoding_weight
from gateway.framework.request import Slo
from tests.support.candidates import request


def test_without_both_objectives_it_is_the_usual_one() -> None:
    for slo in (None, Slo(), Slo(ttft=1.0), Slo(tpot=0.05)):
        assert decoding_weight(request(slo=slo)) == 0.5
    assert decoding_weight(request(kind=Kind.EMBEDDING, slo=Slo(ttft=2.0, tpot=0.01))) == 0.5


def test_tighter_between_tokens_weighs_more_and_a_tighter_first_token_less() -> None:
    usual = decoding_weight(request(slo=Slo(ttft=2.0, tpot=0.05), expected_output=320.0))
    assert usual == pytest.approx(0.5)
    assert decoding_weight(request(slo=Slo(ttft=2.0, tpot=0.025), expected_output=320.0)) == pytest.approx(1.0)
    assert decoding_weight(request(slo=Slo(ttft=1.0, tpot=0.05), expected_output=320.0)) == pytest.approx(0.25)
    # Of a short answer each second between tokens uses up more of what may pass.
    assert decoding_weight(request(slo=Slo(ttft=2.0, tpot=0.05), expected_output=160.0)) == pytest.approx(1.0)


def test_it_is_bounded() -> None:
    assert decoding_weight(request(slo=Slo(ttft=100.0, tpot=0.001), expected_output=0.0)) == 2.0
    assert decoding_weight(request(slo=Slo(ttft=0.01, tpot=10.0))) == 0.1
