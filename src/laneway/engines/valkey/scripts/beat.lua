--@ allow-oom

-- Store a worker's heartbeat, which replaces the one before, and forget workers whose time is over.
-- Changes nothing that the queue reads, and wakes nobody.
--
-- ARGV[3]: the worker's id
-- ARGV[4]: microseconds from now after which it counts as dead
-- ARGV[5]: microseconds from now after which it is forgotten; all are, if no other one sends any
-- ARGV[6]: what it says about itself (JSON)
--
-- Answers the shard's time.

local FORGOTTEN_AT_ONCE = 100

local now, id = shard.now, ARGV[3]
local before = call('HGET', keys.workers, id)
local started = before and unpack_from('>I7', before) or now
local gone = call('ZRANGE', keys.workers_until, '-inf', now, 'BYSCORE', 'LIMIT', 0,
    FORGOTTEN_AT_ONCE)
if #gone > 0 then
    call('HDEL', keys.workers, unpack(gone))
    call('ZREM', keys.workers_until, unpack(gone))
end
call('HSET', keys.workers, id, pack('>I7I7I7', started, now, now + tonumber(ARGV[4])) .. ARGV[6])
call('ZADD', keys.workers_until, now + tonumber(ARGV[5]), id)
local seconds = math.ceil(tonumber(ARGV[5]) / SECOND) + 1
for _, name in ipairs({ keys.workers, keys.workers_until }) do
    call('EXPIRE', name, seconds, 'NX')
    call('EXPIRE', name, seconds, 'GT')
end
return now
