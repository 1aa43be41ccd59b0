--@ allow-oom

-- Is there something to lease in the pool ARGV[3] (of the topics ARGV[4], or "")? If not, the
-- caller is rung on the channel ARGV[5] within ARGV[6] seconds, unless it leaves ("0"). One of
-- those who wait promises to look when something is due; the others look a little later. Answers {1
-- if so, microseconds until something is due or -1, whether it is the caller who promised}.

local pool, topics, channel, seconds = ARGV[3], ARGV[4] ~= '' and values_of(ARGV[4]) or nil,
    ARGV[5], tonumber(ARGV[6])
local kind = topics and 'choosy' or 'waiters'
if seconds == 0 then
    wakeup.leave(kind, pool, channel)
    return { 0, -1, 0 }
end
local wake = wakes.next()
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
    tier_queues.save()
    save_shard()
end
return { 0, wake - shard.now, promises and 1 or 0 }
