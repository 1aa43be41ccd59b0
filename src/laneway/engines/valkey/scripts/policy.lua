--@ allow-oom
-- Change the policies that every client knows: those of patterns, and of topics with partitions or
-- under buckets.
--
-- ARGV[3]: the version of the policies that the client has
-- ARGV[4]: the version then
-- ARGV[5]: the pattern or topic whose lanes are placed again; "*": all
-- ARGV[6]: fields of the hash `policies` and their values, flat; "" deletes (packed)
-- ARGV[7]: the patterns and topics whose policies follow (packed)
-- ARGV[8]: how many names of all policies are exact topics
-- ARGV[9]: "1": the change may give topics other lanes, which is refused for topics that are not
--   empty; "try": only answer whether it is refused
-- ARGV[10…]: the policies, as parts/policies.lua decodes them; "" deletes
--
-- Answers {"changed"}; {"stale", version} if the shard has another version; {"in use", topic,
-- waiting, leased}.

local version, pattern = tonumber(ARGV[3]), ARGV[5]
if version ~= shard.version then
    return { 'stale', shard.version }
end

local LAST = '\244\143\191\191'
local is_topic = pattern ~= '*' and string.sub(pattern, -2) ~= '.*'
local prefix = string.sub(pattern, 1, -2)

local changes = {}
for n, name in ipairs(values_of(ARGV[7])) do
    changes[n] = { name, ARGV[9 + n] ~= '' and ARGV[9 + n] }
end
local function shape(topic)
    local policy = policies.of(topic)
    return policy.partitions, policy.buckets, policy.bucket_name
end

-- The first of these topics that would get other lanes; nil: none.
local function first_changed(topics)
    local exact = shard.exact
    for _, each in ipairs(topics) do
        each.partitions, each.buckets, each.bucket_name = shape(each[1])
    end
    policies.override(changes, tonumber(ARGV[8]))
    for _, each in ipairs(topics) do
        local partitions, buckets, bucket_name = shape(each[1])
        if each.partitions ~= partitions or each.buckets ~= buckets or each.bucket_name ~=
            bucket_name then
            return each
        end
    end
    policies.override({}, exact)
end

-- Those of the lanes' topics of which something waits or is leased: {topic, waiting, leased}.
local function in_use(names)
    local found = {}
    for _, lane in ipairs(lanes.existing(names)) do
        if not lane.is_bucket and (lanes.waiting(lane) > 0 or lane.leased > 0) then
            found[#found + 1] = { lanes.topic(lane), lanes.waiting(lane), lane.leased }
        end
    end
    return found
end

-- The same of topics in buckets.
local function in_use_folded(topics)
    local found = {}
    for _, topic in ipairs(topics) do
        local own = key('t:' .. topic)
        local leased = call('ZLEXCOUNT', own, '[l', '(m')
        local waiting = call('ZCARD', own) - leased
        if waiting > 0 or leased > 0 then
            found[#found + 1] = { topic, waiting, leased }
        end
    end
    return found
end

-- The first topic under the pattern that is in use and would get other lanes. Page by page: where
-- many topics are in use, one of the first is found at once.
local function refusal()
    local before = is_topic and pattern .. PARTITION .. LAST or prefix .. LAST
    local names = is_topic and { pattern } or {}
    local after, is_last = is_topic and pattern .. '\0' or prefix, false
    repeat
        local page = lanes.names_between(after, before, POLICY_PAGE)
        for _, name in ipairs(page) do
            names[#names + 1] = name
        end
        local found = first_changed(in_use(names))
        if found then
            return found
        end
        names, after, is_last = {}, page[#page], #page < POLICY_PAGE
    until is_last
    return first_changed(in_use_folded(is_topic and { pattern } or call('ZRANGE', keys.folded, '['
        .. prefix, '(' .. prefix .. LAST, 'BYLEX')))
end

if ARGV[9] ~= '0' then
    local found = refusal()
    if found then
        return { 'in use', found[1], found[2], found[3] }
    end
end
if ARGV[9] == 'try' then
    return { 'changed' }
end

local written = values_of(ARGV[6])
for n = 1, #written, 2 do
    writes.set_field(keys.policies, written[n], written[n + 1] ~= '' and written[n + 1])
end
for _, each in ipairs(changes) do
    writes.set_field(keys.resolved, each[1], each[2])
end
writes.save()
shard.version, shard.exact = tonumber(ARGV[4]), tonumber(ARGV[8])
policies.override(changes, shard.exact)
lanes.policies_changed()

if is_topic then
    lanes.place_all(lanes.of_topic(pattern, policies.of(pattern)))
else
    if call('HSET', keys.sweeps, pattern, '') == 1 then
        shard.sweeping = shard.sweeping + 1
    end
    housekeeping.sweep(math.ceil(POLICY_PAGE / shard.shards))
end
save(true)
return { 'changed' }
