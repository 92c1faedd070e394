from __future__ import annotations

import pytest

from gateway.errors import ClientError
from gateway.framework import Plan
from gateway.scheduling.header_profile import HeaderProfile
from tests.support.candidates import context, endpoint, request

A, B = endpoint(0), endpoint(1)


def ran(headers, **parameters) -> str:
    """The profile that it runs."""
    asked = []

    def run(name, endpoints):
        asked.append((name, endpoints))
        return [B, A]

    handler = HeaderProfile(HeaderProfile.Parameters(profiles=("decode", "prefill"), **parameters), context())
    assert handler.profiles == ("decode", "prefill")
    assert handler.plan(request(headers=headers), (A, B), run) == Plan.of(B, reason="single")
    [(name, endpoints)] = asked
    assert endpoints == (A, B)
    return name


def test_the_header_names_the_profile() -> None:
    assert ran({"epp-profile": " prefill "}) == "prefill"
    assert ran({"x-phase": "prefill"}, header="X-Phase") == "prefill"


@pytest.mark.parametrize("headers", [{}, {"epp-profile": ""}, {"epp-profile": " "}])
def test_without_it_there_is_a_default(headers) -> None:
    assert ran(headers) == "decode"
    assert ran(headers, default="prefill") == "prefill"


def test_a_profile_that_is_none_is_the_client_s_error() -> None:
    with pytest.raises(ClientError, match=r"epp-profile must be one of: decode, prefill"):
        ran({"epp-profile": "encode"})


@pytest.mark.parametrize("bad", [{"profiles": ()}, {"default": "encode"}, {"header": ""}])
def test_parameters_fit_each_other(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        HeaderProfile.Parameters(**({"profiles": ("decode",)} | bad))
