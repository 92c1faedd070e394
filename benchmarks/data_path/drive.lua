-- What wrk asks: the body of the plan in KVGATE_PLAN, whose numbers are filled with as many bytes of text that is new
-- each time. Of a stream every answer is looked at; the last line that is printed is the whole run as JSON.

local plan = dofile(os.getenv("KVGATE_PLAN"))
local CHUNKS, SMALL, LARGE = 16384, 32, 256

local function all(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local small, large = all(plan.small), all(plan.large)
local random, sub, byte, format = math.random, string.sub, string.byte, string.format
local parts, length = {}, 0
for place, piece in ipairs(plan.pieces) do
  length = length + (type(piece) == "string" and #piece or piece)
end
local TAIL = '%06d"}'
length = length + 8
local head = "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nUser-Agent: wrk\r\nAccept: */*\r\n"
  .. "Content-Type: application/json\r\nContent-Length: " .. length .. "\r\n\r\n"

-- Threads share nothing, and no run may repeat another's text.
local seed = io.open("/dev/urandom", "rb")
local a, b, c, d = byte(seed:read(4), 1, 4)
seed:close()
math.randomseed(((a * 256 + b) * 256 + c) * 128 + d)

function request()
  local at, tokens = 1, plan.tokens
  parts[1] = head
  for _, piece in ipairs(plan.pieces) do
    if type(piece) == "string" then
      at = at + 1
      parts[at] = piece
    else
      for _ = 1, 2 do
        local chunk = random(0, CHUNKS - 1)
        at = at + 1
        parts[at] = sub(small, chunk * SMALL + 1, (chunk + 1) * SMALL)
        tokens = tokens + byte(plan.small_tokens, chunk + 1)
      end
      for _ = LARGE, piece, LARGE do
        local chunk = random(0, CHUNKS - 1)
        at = at + 1
        parts[at] = sub(large, chunk * LARGE + 1, (chunk + 1) * LARGE)
        tokens = tokens + byte(plan.large_tokens, chunk + 1)
      end
    end
  end
  parts[at + 1] = format(TAIL, tokens)
  return table.concat(parts, "", 1, at + 1)
end

broken = 0
if plan.stream then
  local EVENTS = 64
  function response(status, headers, body)
    local _, events = string.gsub(body, "data: {", "")
    if events ~= EVENTS or not string.find(sub(body, -32), "data: [DONE]", 1, true) then
      broken = broken + 1
    end
  end
end

local threads = {}
function setup(thread)
  table.insert(threads, thread)
end

function done(summary, latency, requests)
  local incomplete = 0
  for _, thread in ipairs(threads) do
    incomplete = incomplete + thread:get("broken")
  end
  local errors = summary.errors
  print(format(
    '{"requests": %d, "seconds": %f, "connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d, '
      .. '"incomplete": %d, "p50": %f, "p99": %f}',
    summary.requests, summary.duration / 1e6, errors.connect, errors.read, errors.write, errors.status,
    errors.timeout, incomplete, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3
  ))
end
