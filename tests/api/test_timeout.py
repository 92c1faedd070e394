"""How long a client waits, from its header."""

from __future__ import annotations

import pytest

from gateway.api.timeout import REQUEST_TIMEOUT, read_timeout
from gateway.errors import ClientError


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), (" 0.5 ", 0.5), ("86400", 86400.0)])
def test_it_is_in_seconds(text: str, seconds: float) -> None:
    assert read_timeout({REQUEST_TIMEOUT: text}) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e3", "1_0", "٣", "30s", "86401", "9" * 50])
def test_what_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(ClientError, match="number of seconds") as refused:
        read_timeout({REQUEST_TIMEOUT: text})
    assert refused.value.param == REQUEST_TIMEOUT
