--@ allow-oom

-- Change the state of a message, as an operator asks: make a delayed one ready now, or a waiting
-- one a dead letter; or remove it in whatever state it is. If that is leased, its lease ends and
-- its worker is notified.
--
-- ARGV[3]: the message's number
-- ARGV[4]: "ready", "dead" or "cancel"
-- ARGV[5]: the reason of a death
--
-- Answers "moved"; "cancelled", or "aborted" for a leased one. Else nothing changes: "waiting" (it
-- is ready or parked, or waits for signals), "leased", "dead", "unknown".

local mid, action = tonumber(ARGV[3]), ARGV[4]
local record = messages.read(mid)
if not record then
    return 'unknown'
elseif record.death then
    return 'dead'
end
local lease, lane = settling.read({ mid })[1], lanes.find(record.lane)
if lease and action ~= 'cancel' then
    return 'leased'
elseif action == 'ready' and (record.state ~= DELAYED or record.since == UNTIL_SIGNALLED) then
    return 'waiting'
elseif lease then
    call('HDEL', keys.l, text(mid))
    settling.end_of_lease(lane, lease, shard.now - lease.granted)
    results.notify('!', '!' .. results.name(record.topic, id_of(record)))
else
    messages.end_for_good(lane, record)
end
if action == 'cancel' then
    messages.discard(lane, record)
elseif action == 'dead' then
    messages.add_history(record, ARGV[5])
    settling.die(lane, record, ARGV[5])
else
    record.since = math.min(record.since, shard.now)
    messages.begin_waiting(lane, record, not (record.mkey and merging.waiting_one(record.topic,
        record.mkey)))
end
lanes.place(lane)
save(true)
return action ~= 'cancel' and 'moved' or lease and 'aborted' or 'cancelled'
