"""The contract: all that a plugin imports from us. Standard library only.

The gateway itself imports from the files of this folder what is not here: types that a plugin is given, and need not
name. ``tests/framework/test_names.py`` holds the list.
"""

from gateway.framework.clock import Clock
from gateway.framework.cost import LATELY, MOST_STALLED, Scalars, stall_seconds
from gateway.framework.fleet import Endpoint, Engine, Role
from gateway.framework.match import NO_MATCH
from gateway.framework.plugins import (
    Context,
    Filter,
    Handler,
    NoEndpoint,
    NoParameters,
    Picker,
    RunProfile,
    Scorer,
)
from gateway.framework.request import GENERATES, Kind, Outcome, Plan, Request, Tenant
from gateway.framework.waiting import Order, Waiting
from gateway.framework.weight import USUAL_DECODING_WEIGHT, decoding_weight

__all__ = [
    "GENERATES",
    "LATELY",
    "MOST_STALLED",
    "NO_MATCH",
    "USUAL_DECODING_WEIGHT",
    "Clock",
    "Context",
    "Endpoint",
    "Engine",
    "Filter",
    "Handler",
    "Kind",
    "NoEndpoint",
    "NoParameters",
    "Order",
    "Outcome",
    "Picker",
    "Plan",
    "Request",
    "Role",
    "RunProfile",
    "Scalars",
    "Scorer",
    "Tenant",
    "Waiting",
    "decoding_weight",
    "stall_seconds",
]
