--@ allow-oom

-- Delete the rest of a topic after a purge: its leases and, with the last page, its lanes and known
-- ids.
--
-- ARGV[3]: the topic
-- ARGV[4]: the numbers of messages that are leased in its lanes (packed)
-- ARGV[5]: "1": this is the last page
--
-- Answers how many leases were ended.

local topic = ARGV[3]
local policy = policies.of(topic)
local mids, given_up = values_of(ARGV[4]), 0

for n, lease in ipairs(settling.read(mids)) do
    local mid = mids[n]
    local lane = lease and not lease.gone and lanes.find(lease.lane)
    local record = lane and messages.read(mid)
    -- Of a bucket only what is the topic's: of one that is at most once nobody knows.
    local is_meant = lane and (record and record.topic == topic or not record
        and lanes.topic(lane) == topic)
    if is_meant and messages.is_end_notice(record) then
        settling.give_back(lane, lease, record) -- others wait for what it reports
    elseif is_meant then
        given_up = given_up + 1
        settling.end_of_lease(lane, lease, shard.now - lease.granted)
        if record then
            messages.discard(lane, record)
        else
            messages.finished_message_ended(mid, 'cancelled')
            messages.free_key(lane, lease.line, mid)
        end
        lease.gone = true -- a mark, so that its settlement is answered so
        call('HSET', keys.l, text(mid), settling.encode(lease))
    end
end
if ARGV[5] == '1' then
    for _, lane in ipairs(lanes.of_topic(topic, policy)) do
        if not lane.is_bucket and lanes.waiting(lane) == 0 and lane.leased == 0 then
            lanes.forget(lane)
        else -- a bucket, or notices that messages of the topic have ended wait in it
            lanes.place(lane)
        end
    end
    call('UNLINK', key('i:' .. topic))
end
save()
return given_up
