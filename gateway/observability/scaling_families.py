"""The series that autoscalers read: our own, and those of llm-d's endpoint picker under its names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gateway.core.scaling_view import ScalingView
from gateway.observability.instruments import Gauge, Labels

NONE: tuple[ScalingView, ...] = ()

QUEUE_LABELS = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")

LLM_D, OLD = "llm_d_epp", "inference_extension"
"""The beginnings of llm-d's names, since its version 0.10 and before."""


class ScalingFamilies:
    """``views``: gives each model as it is, when metrics are shown. Every series of which a number is known is there
    from the start, at 0: an autoscaler takes one that is absent for 0, or for an error."""

    def __init__(self, gauge: Callable[..., Gauge], named: Callable[..., Gauge]) -> None:
        """``gauge``, ``named``: make a gauge of ours, and one whose name is given whole, and show it."""
        self.views: Callable[[], Iterable[ScalingView]] = lambda: NONE
        gauge(
            *("waiting_requests", "Requests that wait at the gateway, for whatever.", "model"),
            read=lambda: {(view.model,): view.waiting for view in self.views()},
            over="sum",
        )
        gauge(
            *(
                "predicted_ttft_seconds",
                "Predicted time to first token of a median prompt that comes now.",
                "model",
            ),
            read=lambda: {(view.model,): view.ttft for view in self.views() if view.ttft is not None},
            over="lead",
        )
        for figure, name, meaning in (
            ("usable", "usable_endpoints", "Endpoints that may be used."),
            ("queued", "queued_prefill_seconds", "Seconds of prompts that wait at the gateway or in engines."),
            ("kv", "kv_pressure_ratio", "KV tokens of requests by the KV memory of the usable endpoints."),
            ("busy", "busy_engines", "Engines that would be busy with what is asked, on average."),
            ("wanted", "wanted_engines", "Engines that are needed for the model's objectives, by the cost model."),
        ):
            over = "max" if figure == "wanted" else "lead"  # a request of any worker's wants an engine
            gauge(name, meaning, "model", "role", read=self._by_role(figure), over=over)
        for start in (LLM_D, OLD):
            named(
                *(f"{start}_flow_control_queue_size", "As llm-d's: requests that wait at the gateway.", *QUEUE_LABELS),
                read=lambda: {("", "0", view.model, view.model, view.model): view.waiting for view in self.views()},
                over="sum",
            )
            named(
                *(f"{start}_flow_control_pool_saturation", "As llm-d's: how full endpoints are.", "inference_pool"),
                read=lambda: {(view.model,): view.saturation for view in self.views()},
                over="lead",
            )
        named(
            *(f"{LLM_D}_request_running", "As llm-d's: requests that are placed.", "model_name", "target_model_name"),
            read=lambda: {(view.model, view.model): view.running for view in self.views()},
            over="sum",
        )

    def _by_role(self, figure: str) -> Callable[[], Mapping[Labels, float]]:
        def read() -> Mapping[Labels, float]:
            return {labels: value for view in self.views() for labels, value in view.by_role(figure).items()}

        return read
