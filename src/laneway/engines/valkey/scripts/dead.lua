--@ allow-oom

-- Put dead letters back into their topics, or drop them: those with given numbers, or the oldest.
--
-- ARGV[3]: "redrive" or "drop"
-- ARGV[4]: the topic; "": any
-- ARGV[5]: the messages' numbers (packed); "": the oldest
-- ARGV[6]: the most that are processed
-- ARGV[7]: microseconds until the first is due
-- ARGV[8]: microseconds between the due times of two
--
-- Answers {how many were processed, the processor time of this call in microseconds}.

local topic, most = ARGV[4], tonumber(ARGV[6])
local first, spacing = shard.now + tonumber(ARGV[7]), tonumber(ARGV[8])

local mids = ARGV[5] ~= '' and values_of(ARGV[5])
    or call('ZRANGE', topic ~= '' and key('dead:' .. topic) or keys.dead, 0, most - 1)
local records, seen = {}, {}
for n = 1, #mids do
    local mid = tonumber(mids[n])
    local record = not seen[mid] and messages.read(mid)
    seen[mid] = true
    if record and record.death and (topic == '' or record.topic == topic) then
        records[#records + 1] = record
    end
end

local function put_back(record, since)
    local policy = policies.of(record.topic)
    messages.end_death(record)
    results.forget_end(record)
    record.seq, record.since = next_number(), since
    record.attempts, record.suspect, record.unhandled_from, record.unhandled_times = 0, false, 0, 0
    record.expires = policy.ttl and since + policy.ttl
    local spread = policy.partitions > 1 and (record.key and crc32(record.key) or record.mkey
        and crc32(body_of(record)))
    if policy.partitions > 1 and not spread and shard.shards > 1 then
        spread = (shard.index - crc32(record.topic)) % shard.shards -- a partition on this shard
    end
    local lane = lanes.make(lanes.name_for(policy, record.topic, spread, record.seq))
    -- Where another one of its key waits already, newcomers go on joining that one.
    messages.begin_waiting(lane, record, not (record.mkey and merging.waiting_one(record.topic,
        record.mkey)))
    return lane
end

local changed = {}
for n, record in ipairs(records) do
    if ARGV[3] == 'drop' then
        messages.forget_dead(record)
    else
        changed[n] = put_back(record, first + (n - 1) * spacing)
    end
end
lanes.place_all(changed)
save(true)
return { #records, call_us() }
