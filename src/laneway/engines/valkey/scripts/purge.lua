--@ allow-oom

-- Remove messages of a topic that wait, up to a sequence number, but no end notices: others wait
-- for what these report.
--
-- ARGV[3]: the topic
-- ARGV[4]: the last sequence number; "": the last one of now
-- ARGV[5]: the most messages that this call looks at
--
-- Answers {how many were removed, the last sequence number, 1 if there may be more, the processor
-- time of this call in microseconds}.

local topic, last, most = ARGV[3], tonumber(ARGV[4]) or shard.seq, tonumber(ARGV[5])
local removed, looked = 0, 0

-- Returns whether the message stays.
local function remove(lane, mid)
    local record = messages.read(mid)
    if messages.is_end_notice(record) then
        return true
    end
    looked = looked + 1
    if record and record.seq <= last then
        messages.end_for_good(lane, record)
        messages.discard(lane, record)
        removed = removed + 1
        return false
    end
    return true
end

local function remove_listed(lane, name, first, last)
    local left_alone = 0
    while looked < most do
        local members = call('ZRANGE', name, first, last, 'BYLEX', 'LIMIT', left_alone,
            most - looked)
        for _, member in ipairs(members) do
            left_alone = left_alone + (remove(lane, messages.number_in(member)) and 1 or 0)
        end
        if not members[1] then
            return
        end
    end
end

-- Parked ones first: else each removed head would only bring the next one forward.
for _, lane in ipairs(lanes.of_topic(topic, policies.of(topic))) do
    local aside = lane.is_bucket and key('t:' .. topic) or lanes.key_of('a', lane)
    remove_listed(lane, aside, '[p', '(q')
    remove_listed(lane, aside, '[d', '(e')
    if lane.is_bucket then
        remove_listed(lane, aside, '[r', '(s')
    else
        remove_listed(lane, lanes.key_of('z', lane), '-', '+')
        for _, mid in ipairs(plain.peek(lane, max(most - looked, 0))) do
            remove(lane, mid)
        end
    end
    lanes.place(lane)
end
save()
return { removed, last, looked >= most and removed > 0 and 1 or 0, call_us() }
