"""The contract: all that a plugin imports from us. Standard library only."""

from gateway.framework.clock import Clock
from gateway.framework.cost import MOST_STALLED, CostModel, Scalars, stall_seconds
from gateway.framework.fleet import (
    Endpoint,
    Engine,
    EngineMetrics,
    Load,
    Model,
    Role,
)
from gateway.framework.match import NO_MATCH, Match, Matches, Source
from gateway.framework.plugins import (
    Context,
    Explains,
    Filter,
    Handler,
    NoEndpoint,
    NoParameters,
    Picker,
    Remembers,
    RunProfile,
    Scorer,
)
from gateway.framework.request import DECODE, GENERATES, PREFILL, Kind, Outcome, Plan, PlannedLeg, Request, Slo
from gateway.framework.weight import decoding_weight

__all__ = [
    "DECODE",
    "GENERATES",
    "MOST_STALLED",
    "NO_MATCH",
    "PREFILL",
    "Clock",
    "Context",
    "CostModel",
    "Endpoint",
    "Engine",
    "EngineMetrics",
    "Explains",
    "Filter",
    "Handler",
    "Kind",
    "Load",
    "Match",
    "Matches",
    "Model",
    "NoEndpoint",
    "NoParameters",
    "Outcome",
    "Picker",
    "Plan",
    "PlannedLeg",
    "Remembers",
    "Request",
    "Role",
    "RunProfile",
    "Scalars",
    "Scorer",
    "Slo",
    "Source",
    "decoding_weight",
    "stall_seconds",
]
