--@ allow-oom

-- Look for something to lease. If there is nothing, register the caller to be notified. One of the
-- waiting workers promises to look when the next event is due; the others look a little later.
--
-- ARGV[3]: "waiters"; "choosy": only topics are served that are named; "arrivals": the caller is
--   busy, and is registered without a look
-- ARGV[4]: the pool
-- ARGV[5]: the only topics (packed); "": all
-- ARGV[6]: the caller's channel; CHANNEL/N/M: up to N messages may be leased to it, see wakeup.lua
-- ARGV[7]: seconds for which it is registered; "0" removes it
-- ARGV[8]: "1": it promised to look before, and perhaps has not looked yet
--
-- Answers {1 if there is something, microseconds until the next event or -1, 1 if the caller
-- promised to look}. After a removal: {1 if it was registered}.

local kind, pool, topics = ARGV[3], ARGV[4], ARGV[5] ~= '' and values_of(ARGV[5]) or nil
local channel, seconds = ARGV[6], tonumber(ARGV[7])
if seconds == 0 then
    return { call('ZREM', key(kind .. ':' .. pool), channel) }
end
local looks = kind ~= 'arrivals'
local wake = looks and next_wake.time()
if looks and serving.has_work(pool, topics) or (wake and wake <= shard.now) then
    return { 1, 0, 0 }
end
wakeup.wait(kind, pool, channel, seconds)
if not wake then
    return { 0, -1, 0 }
end
local promises = ARGV[8] == '1' or shard.alarm <= shard.now or wake < shard.alarm
if promises then
    shard.alarm = wake
    save_shard()
end
return { 0, wake - shard.now, promises and 1 or 0 }
