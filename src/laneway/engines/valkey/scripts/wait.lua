--@ allow-oom

-- Look for something to lease. If there is nothing, register the caller to be notified. One of the
-- waiting workers promises to look when the next event is due; the others look a little later.
--
-- ARGV[3]: the pool
-- ARGV[4]: the only topics (packed); "": all
-- ARGV[5]: the caller's channel; CHANNEL/N/M: up to N messages may be leased to it, see wakeup.lua
-- ARGV[6]: seconds for which it is registered; "0" removes it
--
-- Answers {1 if there is something, microseconds until the next event or -1, 1 if the caller
-- promised to look}. After a removal: {1 if it was registered}.

local pool, topics, channel, seconds = ARGV[3], ARGV[4] ~= '' and values_of(ARGV[4]) or nil,
    ARGV[5], tonumber(ARGV[6])
local kind = topics and 'choosy' or 'waiters'
if seconds == 0 then
    return { wakeup.leave(kind, pool, channel) }
end
local wake = next_wake.time()
if serving.has_work(pool, topics) or (wake and wake <= shard.now) then
    return { 1, 0, 0 }
end
wakeup.wait(kind, pool, channel, seconds)
if not wake then
    return { 0, -1, 0 }
end
local promises = shard.alarm <= shard.now or wake < shard.alarm
if promises then
    shard.alarm = wake
    save_shard()
end
return { 0, wake - shard.now, promises and 1 or 0 }
