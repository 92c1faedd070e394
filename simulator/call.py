"""One HTTP request while it is answered: what was asked, by which name, and where the answer goes."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from aiohttp import web

from simulator.errors import invalid, no_such_model
from simulator.faults import Fault, FaultKind
from simulator.generation import Generation, Spent
from simulator.prompts import Ask
from simulator.service import Service
from simulator.sink import Sink
from simulator.transfer.parameters import Leg, Transfer

LOADS = {FaultKind.KV_HANG: "hang", FaultKind.KV_FAIL: "fail"}
"""Faults of a decode leg's load."""


class Call:
    """``raw``: the body as it came."""

    def __init__(
        self, service: Service, request: web.BaseRequest, raw: bytes, sink: Sink, fault: Fault | None = None
    ) -> None:
        self.service = service
        self.settings = service.settings
        self.request = request
        self.raw = raw
        self.sink = sink
        self.fault = fault
        self.created = int(time.time())
        self.generation: Generation | None = None
        self.leg: Transfer | None = None

    @cached_property
    def body(self) -> dict[str, Any]:
        """The JSON object. Raises ApiError with vLLM's words if it is none."""
        try:
            # The standard library's: orjson refuses what vLLM's accepts (NaN, lone surrogates).
            body = json.loads(self.raw)
        except UnicodeDecodeError as error:
            raise invalid("json_invalid", "body", "There was an error parsing the body", {}) from error
        except json.JSONDecodeError as error:
            place = f"body.{error.pos}"
            raise invalid("json_invalid", place, "JSON decode error", {}, {"error": error.msg}) from error
        except RecursionError as error:
            raise invalid("json_invalid", "body", "JSON is nested too deeply", {}) from error
        if not isinstance(body, dict):
            kind = "model_attributes_type"
            raise invalid(kind, "body", "Input should be a valid dictionary or object to extract fields from", body)
        return body

    @cached_property
    def base_id(self) -> str:
        """The request's id: the client's header, else the body's field, else a made one."""
        header = self.request.headers.get("X-Request-Id")
        field = self.body.get("request_id") if "request_id" in self.__dict__.get("body", {}) else None
        return header or (field if isinstance(field, str) and field else uuid.uuid4().hex[:16])

    @property
    def rank(self) -> int | None:
        value = self.request.headers.get("X-data-parallel-rank", "")
        return int(value) if value.lstrip("-").isdecimal() else None

    def model(self, name: Any) -> tuple[str, str | None]:
        """The name to answer with, and the adapter it stands for. Raises ApiError 404 for a model that is not here."""
        if name is None or name == "":
            return self.settings.served_name, None
        if not isinstance(name, str):
            raise invalid("string_type", "body.model", "Input should be a valid string", self.body)
        if name in self.settings.adapters:
            return name, name
        if name not in self.settings.names:
            raise no_such_model(name, (self.settings.served_name, *self.settings.aliases))
        return name, None

    def transfer(self) -> Transfer | None:
        """The leg that the body asks of the KV connector. Raises EngineDead for what kills."""
        self.leg = self.service.connector(self.rank).read(self.body)
        if self.leg is not None and self.fault is not None and self.fault.kind in LOADS:
            self.leg = self.leg.break_by(LOADS[self.fault.kind])
        return self.leg

    def handover(self, generation: Generation) -> dict[str, Any] | None:
        """``kv_transfer_params`` of a whole answer; None: it is no prefill leg that came to an end."""
        params = generation.handover
        return params if params is None or self.fault is None else self.fault.spoil(params)

    def generate(self, asks: Sequence[Ask], name: str | None = None) -> Generation:
        """Start the answer, as requests of this name. The server closes it when the call is over, come what may."""
        now = asyncio.get_running_loop().time()
        self.generation = self.service.generate(asks, name or self.base_id, self.rank, now)
        return self.generation

    def reject(self) -> None:
        """Let the prefill engine free the blocks of a decode leg that had no answer. Raises EngineDead."""
        if self.leg is not None and self.leg.leg is Leg.DECODE:
            self.service.connector(self.rank).reject(self.leg)

    def usage(self, spent: Spent, *, whole: bool, chat: bool) -> dict[str, Any]:
        """OpenAI's ``usage``. ``whole``: with the fields that are null, as unstreamed answers have them. ``chat``: it
        tells what was newly cached, which ``/v1/completions`` does not."""
        usage: dict[str, Any] = {
            "prompt_tokens": spent.prompt,
            "total_tokens": spent.prompt + spent.output,
            "completion_tokens": spent.output,
        }
        details: dict[str, Any] | None = None
        if self.settings.report_cached_tokens:
            details = {"cached_tokens": spent.cached}
            if chat or whole:
                details["created_cache_tokens"] = spent.created if chat else None
            if whole:
                details["multimodal_tokens"] = None
        if whole or details is not None:
            usage["prompt_tokens_details"] = details
        if whole:
            usage["completion_tokens_details"] = None
        return usage

    def running_usage(self, prompt: int, output: int) -> dict[str, Any]:
        """The ``usage`` that every chunk has where ``continuous_usage_stats`` asks for it; empty elsewhere."""
        options = self.body.get("stream_options")
        if not (self.wants_usage and isinstance(options, dict) and options.get("continuous_usage_stats") is True):
            return {}
        return {"usage": {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}}

    @property
    def wants_stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def wants_usage(self) -> bool:
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True
