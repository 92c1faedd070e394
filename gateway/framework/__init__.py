"""The contract: all that a plugin imports from us. Standard library only."""

from gateway.framework.clock import Clock, ManualClock, SystemClock
from gateway.framework.cost import CostModel, FirstToken, Scalars, Sums
from gateway.framework.fleet import (
    Endpoint,
    Engine,
    EngineMetrics,
    Load,
    Model,
    Moved,
    Role,
    ServedModel,
)
from gateway.framework.log_limit import LogLimit, left_out
from gateway.framework.match import NO_MATCH, Match, Matches, Source
from gateway.framework.observer import NULL_OBSERVER, Observer, Settled
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
from gateway.framework.prompt import (
    BYTES_PER_TOKEN,
    ChatInput,
    Medium,
    OpaqueInput,
    Prompt,
    PromptInput,
    TextInput,
    TokenInput,
    estimate,
)
from gateway.framework.request import GENERATES, Kind, Outcome, Plan, Request, Scored, Slo
from gateway.framework.tasks import TaskSet
from gateway.framework.weight import decoding_weight

__all__ = [
    "BYTES_PER_TOKEN",
    "GENERATES",
    "NO_MATCH",
    "NULL_OBSERVER",
    "ChatInput",
    "Clock",
    "Context",
    "CostModel",
    "Endpoint",
    "Engine",
    "EngineMetrics",
    "Explains",
    "Filter",
    "FirstToken",
    "Handler",
    "Kind",
    "Load",
    "LogLimit",
    "ManualClock",
    "Match",
    "Matches",
    "Medium",
    "Model",
    "Moved",
    "NoEndpoint",
    "NoParameters",
    "Observer",
    "OpaqueInput",
    "Outcome",
    "Picker",
    "Plan",
    "Prompt",
    "PromptInput",
    "Remembers",
    "Request",
    "Role",
    "RunProfile",
    "Scalars",
    "Scored",
    "Scorer",
    "ServedModel",
    "Settled",
    "Slo",
    "Source",
    "Sums",
    "SystemClock",
    "TaskSet",
    "TextInput",
    "TokenInput",
    "decoding_weight",
    "estimate",
    "left_out",
]
