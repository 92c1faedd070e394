from __future__ import annotations

import pytest

from filters.role import RoleFilter
from gateway.framework import Role
from tests.support.candidates import context, endpoint, names, request

FLEET = [endpoint(0, role=Role.PREFILL), endpoint(1, role=Role.DECODE), endpoint(2, role=Role.BOTH)]


def test_by_default_endpoints_that_only_prefill_go() -> None:
    assert names(RoleFilter(RoleFilter.Parameters(), context()).filter(request(), FLEET)) == ["e1", "e2"]


def test_allowed_roles_stay() -> None:
    parameters = RoleFilter.Parameters(allow=(Role.PREFILL,))
    assert names(RoleFilter(parameters, context()).filter(request(), FLEET)) == ["e0"]


def test_some_role_must_be_allowed() -> None:
    with pytest.raises(ValueError, match="allow must name at least one role"):
        RoleFilter.Parameters(allow=())
