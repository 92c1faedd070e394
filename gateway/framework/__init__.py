"""The contract: all that a plugin imports from us. Standard library only."""

from gateway.framework.clock import Clock, SystemClock
from gateway.framework.fleet import (
    CostModel,
    Endpoint,
    Engine,
    EngineMetrics,
    Load,
    Model,
    Role,
    ServedModel,
)
from gateway.framework.match import NO_MATCH, Match, Matches, Source
from gateway.framework.observer import NULL_OBSERVER, Observer, Settled
from gateway.framework.plugins import (
    Context,
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
from gateway.framework.request import GENERATES, Kind, Outcome, Plan, Request, Scored
from gateway.framework.tasks import TaskSet

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
    "Filter",
    "Handler",
    "Kind",
    "Load",
    "Match",
    "Matches",
    "Medium",
    "Model",
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
    "Scored",
    "Scorer",
    "ServedModel",
    "Settled",
    "Source",
    "SystemClock",
    "TaskSet",
    "TextInput",
    "TokenInput",
    "estimate",
]
