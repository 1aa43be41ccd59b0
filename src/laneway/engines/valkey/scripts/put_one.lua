-- Accept one plain message without an id.
--
-- ARGV[3]: the version of the policies that the client has; it knows no own policy of the topic
-- ARGV[4]: the topic
-- ARGV[5]: the message, as record_formats.py encodes it
--
-- Answers its number, or as put.lua {"stale", version}, {"own", …} or {"refused", …}.

local version, topic = tonumber(ARGV[3]), ARGV[4]
local number, counters, lane_then = single.put(version, topic, ARGV[5])
if number then
    return number
end
local refusal = begin(KEYS, ARGV, counters)
if refusal then
    return refusal
elseif version ~= shard.version then
    return { 'stale', shard.version }
end
local unknown = policies.unknown_to({}, { topic }, {})
if unknown then
    return { 'own', unpack(unknown) }
end
if lane_then ~= nil then
    lanes.find(topic, lane_then)
end
local answers = intake.accept_batch({ topic }, { 1 }, { ARGV[5] }, {}, {})
if wakeup.lease_at_once(1, lanes.find(topic), answers[1], ARGV[5]) then
    direct.learn(topic)
end
save(false)
return answers[1]
