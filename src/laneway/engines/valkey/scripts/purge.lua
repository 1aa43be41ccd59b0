--@ allow-oom

-- Remove messages of a topic that wait, up to a sequence number.
--
-- ARGV[3]: the topic
-- ARGV[4]: the last sequence number; "": the last one of now
-- ARGV[5]: the most messages that this call looks at
--
-- Answers {how many were removed, the last sequence number, 1 if there may be more}.

local topic, last, most = ARGV[3], tonumber(ARGV[4]) or shard.seq, tonumber(ARGV[5])
local removed, looked = 0, 0

local function remove(lane, mid)
    looked = looked + 1
    local record = messages.read(mid)
    if record and record.seq <= last then
        messages.end_for_good(lane, record)
        messages.discard(lane, record)
        removed = removed + 1
    end
end

-- Parked ones first: else each removed head would only bring the next one forward.
local function remove_listed(lane, name, states)
    for _, state in ipairs(states) do
        if looked < most then
            for _, member in ipairs(call('ZRANGE', name, '[' .. state, '('
                .. string.char(string.byte(state) + 1), 'BYLEX', 'LIMIT', 0, most - looked)) do
                remove(lane, messages.number_in(member))
            end
        end
    end
end

for _, lane in ipairs(lanes.of_topic(topic, policies.of(topic))) do
    if lane.is_bucket then
        remove_listed(lane, key('t:' .. topic), { 'p', 'd', 'r' })
    else
        remove_listed(lane, key('a:' .. text(lane.number)), { 'p', 'd' })
        if looked < most then
            for _, member in ipairs(call('ZRANGE', key('z:' .. text(lane.number)), 0,
                most - looked - 1)) do
                remove(lane, messages.number_in(member))
            end
        end
        if looked < most then
            for _, mid in ipairs(plain.peek(lane, most - looked)) do
                remove(lane, mid)
            end
        end
    end
    lanes.place(lane)
end
save()
return { removed, last, looked >= most and removed > 0 and 1 or 0 }
