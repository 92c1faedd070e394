"""Has an engine announce again what it holds of a prompt, where the index cannot know it (``kv_cache.reannounce``)."""

from __future__ import annotations

from gateway.api.body import Body, JsonBody
from gateway.api.field_filter import ask_report
from gateway.framework import GENERATES, Endpoint
from gateway.framework.request import DECODE
from gateway.proxy.serving.attempt import Attempt


class Reannounce:
    """A ``BeforeSend``."""

    async def before_send(self, attempt: Attempt, endpoint: Endpoint, body: Body, leg: str) -> Body:
        """Asks in the leg's ``vllm_xargs``, unless its client does so itself."""
        call, index = attempt.call, attempt.call.runtime.index
        # One prompt, which the engine looks up once: what each report is of must be known.
        wanted = (
            not attempt.reports
            and isinstance(body, JsonBody)
            and leg == DECODE
            and len(attempt.plan.legs) == 1
            and call.route.kind in GENERATES
            and call.prompt.single
            and call.sequences == 1
            and index.may_reannounce(endpoint.slot)
        )
        if not wanted:
            return body
        assert isinstance(body, JsonBody)
        extras = ask_report(body.fields)
        if extras is None or not index.claim_reannounce(endpoint.slot, call.keys):
            return body
        attempt.reports = True
        asking = body.copy()
        asking.set("vllm_xargs", extras)
        return asking
