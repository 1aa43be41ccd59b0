--@ allow-oom

-- Remove a message in whatever state it is. If it is leased, the lease ends and its worker is
-- notified.
--
-- ARGV[3]: the message's number
--
-- Answers "cancelled"; "aborted" for a leased one; "dead" for a dead letter and "unknown", where
-- nothing changes.

local mid = tonumber(ARGV[3])
local record = messages.read(mid)
if not record then
    return 'unknown'
elseif record.death then
    return 'dead'
end
local lease = settling.read({ mid })[1]
local lane = lanes.find(record.lane)
if lease then
    settling.end_from_outside(mid, lease)
    results.notify('!', '!' .. results.name(record.topic, id_of(record)))
else
    messages.end_for_good(lane, record)
end
messages.discard(lane, record)
lanes.place(lane)
save(true)
return lease and 'aborted' or 'cancelled'
