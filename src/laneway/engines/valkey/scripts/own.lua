--@ allow-oom
-- Replace the own policies of exact topics whose home is this shard. It touches only the entries
-- and lanes of these topics, and notifies no client.
--
-- ARGV[3]: the version of the policies that the client has
-- ARGV[4]: {topic, id of its own policy before, id then} of each; "": none (packed)
-- ARGV[5]: the ids of the policies that follow (packed)
-- ARGV[6…]: their records, see record_formats.py
--
-- Answers the positions of the topics that another client has changed meanwhile; {"stale", version}
-- if the shard has another version.

if tonumber(ARGV[3]) ~= shard.version then
    return { 'stale', shard.version }
end
local stored = {}
for n, id in ipairs(values_of(ARGV[5])) do
    stored[n] = { id, ARGV[5 + n] }
end
local changes = values_of(ARGV[4])
local others, topics = policies.set_own(changes, stored)
lanes.load(topics)
lanes.policies_changed()
for n, topic in ipairs(topics) do
    -- what sets nothing new places nothing, as on every engine
    local lane = changes[n][2] ~= changes[n][3] and lanes.find(topic)
    if lane then
        lanes.place(lane)
    end
end
save(true)
return others
