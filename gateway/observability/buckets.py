"""Histogram buckets, each with its reason. They are in seconds unless the name says otherwise.

A bucket costs one line per label set in every scrape, and a quantile is only as exact as its bucket. So steps are about
a factor of two where answers usually fall, and wider at both ends.
"""

from __future__ import annotations

# A cached prompt on a small model starts in 10 ms; a 100,000-token prompt behind a queue takes minutes. Objectives are
# set between 100 ms and 5 s, so the steps are finest there.
TTFT = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)

# 2.5 ms is a small model with speculation, 20 to 40 ms a 70B model on four GPUs, 100 ms slower than most people read.
TIME_PER_OUTPUT_TOKEN = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 1.0)

# From an embedding to an hour of reasoning: the default total timeout is the last step.
DURATION = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 900.0, 3600.0)

# A request that does not queue falls below 1 ms; the default queue timeout is 30 s.
QUEUE_WAIT = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)

# Match, schedule and reserve: tens of microseconds for a short prompt and a few engines. It runs on the event loop, and
# every stream waits for it: above 1 ms is worth a look, above 10 ms an alert.
DECISION = (0.00005, 0.0001, 0.0002, 0.0004, 0.0007, 0.001, 0.002, 0.004, 0.01, 0.03, 0.1)

# From the request read to its first byte sent, without the queue. Below 1 ms for short prompts; encoding 100,000 new
# tokens takes about 0.3 s.
OVERHEAD = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.5)

# A prefill worth a leg of its own has some hundreds of new tokens: 40 ms on a 70B model on four GPUs; 100,000 tokens
# take ten seconds, and behind a queue as long as the default prefill timeout, which is the last step.
PREFILL_LEG = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 120.0)

# From a decode leg's sending to its first output: 3 GB of KV (10,000 tokens of a 70B model) take 60 ms between GPUs
# with RDMA, three seconds over 10 Gbit TCP, and the first hand-over of a pair some seconds more for NIXL's handshake.
# The default handover timeout is the last step; only unstreamed answers, which are measured whole, are beyond it.
HANDOVER = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 4.0, 7.0, 12.0, 20.0, 40.0, 60.0)
