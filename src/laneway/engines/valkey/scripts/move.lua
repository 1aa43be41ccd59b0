--@ allow-oom

-- Make a delayed message ready now, or a waiting one a dead letter, as an operator asks.
--
-- ARGV[3]: the message's number
-- ARGV[4]: "ready" or "dead"
-- ARGV[5]: the reason of a death
--
-- Answers "moved"; else nothing changes: "waiting" (it is ready or parked, or waits for signals),
-- "leased", "dead", "unknown".

local mid = tonumber(ARGV[3])
local record = messages.read(mid)
if not record then
    return 'unknown'
elseif record.death then
    return 'dead'
elseif settling.read({ mid })[1] then
    return 'leased'
end
local is_ready = record.state ~= 1 or record.since == UNTIL_SIGNALLED
if ARGV[4] == 'ready' and is_ready then
    return 'waiting'
end
local lane = lanes.find(record.lane)
messages.end_for_good(lane, record)
if ARGV[4] == 'dead' then
    messages.add_history(record, ARGV[5])
    settling.die(lane, record, ARGV[5])
else
    record.since = math.min(record.since, shard.now)
    messages.begin_waiting(lane, record, not (record.mkey and merging.waiting_one(record.topic,
        record.mkey)))
end
lanes.place(lane)
save(true)
return 'moved'
