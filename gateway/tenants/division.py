"""How hosts divide limits and share budgets over a Valkey or Redis server: what is kept there, and who gets how much.

| name (``S``: ``sharing.name``) | what | lives |
|---|---|---|
| ``kvgate:S:limit:HASH:N`` | of a meter's limit N, by host: its part, what it wants, what it uses, until when | 10 s |
| ``kvgate:S:limit-hosts`` | the hosts, by the time of their last word | 10 s |
| ``kvgate:S:budget:NAME:UNIT:PERIOD`` | of an account's budget, by host: see ``SPEND`` | the period, and a week |
| channel ``kvgate:S:limit-wanted`` | HASH or NAME: who has more than an even share gives back what is not in use | |

A part is a piece of the limit, not of what is used: whoever has a hundredth of a rate may take a hundredth of a minute
at once, and is refilled by as much a minute. Parts together are never more than the limit, since each change is one
script on the server, and a host uses less before it says so. So a host with a part asks nobody, and all hosts together
let through no more than one would (see ``gcra.Bucket``).
"""

from __future__ import annotations

from typing import NamedTuple

LEASE = 5.0
"""Seconds after its host's last word for which a part is its own."""

FORGET = 5.0
"""Seconds without use after which a host gives its part back whole, and has none until it asks."""

AT_ONCE = 100
"""Limits or budgets of one script: it holds the server for a millisecond."""

BEAT = 1.5
"""Seconds between two words of a host about each part: one may be lost."""

SPENT_LIVES = 7 * 86400
"""Seconds for which a budget's sums are kept after the last word about them, beside the period's."""

BASE = 4
"""A host that has anything to do with a limit keeps a fourth of its even share, though it does not use it: a first
request then finds room."""

DIVIDE = """
local hosts, channel, host, lease = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', hosts, now + lease, host)
redis.call('ZREMRANGEBYSCORE', hosts, '-inf', now)
redis.call('PEXPIRE', hosts, 2 * lease)
local answers = {tostring(redis.call('ZCARD', hosts))}
for i = 2, #KEYS do
  local key, at = KEYS[i], 5 * (i - 2) + 4
  local whole, keep = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local want, used = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local all, parts = redis.call('HGETALL', key), {}
  local held, in_use = 0, 0
  for j = 1, #all, 2 do
    local part, wanted, uses, ends = string.match(all[j + 1], '^(%S+) (%S+) (%S+) (%S+)$')
    if not ends or tonumber(ends) < now then
      redis.call('HDEL', key, all[j])
    elseif all[j] ~= host then
      parts[#parts + 1] = {tonumber(part), tonumber(wanted), tonumber(uses)}
      held, in_use = held + tonumber(part), in_use + tonumber(uses)
    end
  end
  local fair, free = whole / (#parts + 1), math.max(0, whole - held)
  local hungry, spare = false, 0
  for _, other in ipairs(parts) do
    if other[2] > other[1] and other[1] < fair - 0.000001 then hungry = true end
    spare = spare + math.max(0, other[1] - math.max(other[3], fair))
  end
  local most = free
  if #parts > 0 then
    if hungry then
      most = math.max(keep, fair)
    else
      most = math.max(keep + (free - keep) / 2, fair, keep + 1)
    end
  end
  local part = math.min(math.max(keep, math.min(want, most)), free)
  if want > 0 or part > 0 then
    redis.call('HSET', key, host, string.format('%.6f %.6f %.6f %d', part, want, used, now + lease))
    redis.call('PEXPIRE', key, 2 * lease)
  else
    redis.call('HDEL', key, host)
  end
  if want > part and spare > 0 then redis.call('PUBLISH', channel, ARGV[at + 4]) end
  answers[#answers + 1] = string.format('%.6f %.6f %.6f %.6f', part, free - part + spare, in_use, hungry and fair or 0)
end
return answers
"""
"""Of each limit, which hosts there are besides this one, and what part it gets of what they leave. If another one has
less than an even share of those who want something, and wants more, this one gets no more than an even share; else up
to half of what is left, so that the next one finds something. What it keeps it has already, and is given in any case,
unless the others have it all: after the server has lost its data."""

SPEND = """
local channel, host, lease, hosts = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answers = {}
for i, key in ipairs(KEYS) do
  local at = 7 * (i - 1) + 5
  local amount, own, flight = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local keep, want = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local others, held, spare, all = 0, 0, 0, redis.call('HGETALL', key)
  for j = 1, #all, 2 do
    if all[j] ~= host then
      local spent, may, uses, ends = string.match(all[j + 1], '^(%-?%d+) (%-?%d+) (%-?%d+) (%-?%d+)$')
      others = others + tonumber(spent or 0)
      if ends and tonumber(ends) > now then
        held = held + math.max(tonumber(may), tonumber(uses))
        spare = spare + math.max(0, tonumber(may) - tonumber(uses))
      end
    end
  end
  local free = math.max(0, math.floor(amount - others - own - held))
  local most = hosts == 1 and free or math.max(keep, math.ceil(keep + (free - keep) / 2))
  local may = math.min(math.max(keep, math.min(want, most)), free)
  if own > 0 or may > 0 or flight > 0 then
    redis.call('HSET', key, host, string.format('%.0f %.0f %.0f %.0f', own, may, flight, now + lease))
    redis.call('EXPIRE', key, tonumber(ARGV[at + 5]))
  else
    redis.call('HDEL', key, host)
  end
  if want > may and spare > 0 then redis.call('PUBLISH', channel, ARGV[at + 6]) end
  answers[i] = string.format('%.0f %.0f %.0f', others, may, free - may + spare)
end
return answers
"""
"""Each host says of each budget what it has spent since it was started, in whole units, and what its requests in flight
are expected to spend. It hears what all others have spent, also those that are no more, and how much more it may spend.
What all may spend and what all have spent are together never more than the amount. Who wants more gets half of what is
free, or all if it knows of no other host. What is said twice or lost changes nothing. Kept are what it has
spent, may spend, and has in flight, and until when it may. A value of another form counts for nothing: one that some
other version or hand has written must not keep all budgets of a call from being shared."""


class Told(NamedTuple):
    """What the server answers of a limit. ``part``: ours. ``room``: what we might get beside it. ``elsewhere``: what
    others use. ``fair``: the part to which we have to come down; 0: we need not."""

    part: float
    room: float
    elsewhere: float
    fair: float


class Plan(NamedTuple):
    """``keep``: the part that is used from now on, until the server has answered. ``want``: what would be good."""

    keep: float
    want: float


def plan(whole: float, part: float, used: float, wanted: float, fair: float, replicas: int) -> Plan:
    """What a host keeps of a limit, and asks for. ``wanted``: by requests that had, or soon have, no room."""
    want = min(whole, max(wanted, 2 * used, whole / (BASE * replicas), 1.0))
    if fair and part > fair:
        keep = min(part, max(used, fair))
        return Plan(keep, keep)
    if part > 2 * want:
        return Plan(max(used, want), want)
    return Plan(part, max(want, part))


def told(answer: bytes) -> Told:
    """Raises ValueError."""
    part, room, elsewhere, fair = map(float, answer.split())
    return Told(part, room, elsewhere, fair)


class Spending(NamedTuple):
    """What the server answers of a budget. ``others``: have spent so much. ``may``: this host may spend so much more.
    ``left``: what nobody has taken, or others do not use."""

    others: float
    may: float
    left: float


def spending(answer: bytes) -> Spending:
    """Raises ValueError."""
    others, may, left = map(float, answer.split())
    return Spending(others, may, left)


def kept_of_budget(may: float, in_flight: float, left: float, replicas: int) -> float:
    """Of what a host may still spend, the part that it keeps when it says again what it has spent: half of an even
    share of what nobody uses, beside what is in flight, so that each finds something; alone, all."""
    if replicas <= 1:
        return may
    return min(may, in_flight + (max(0.0, may - in_flight) + left) / (2 * replicas))
