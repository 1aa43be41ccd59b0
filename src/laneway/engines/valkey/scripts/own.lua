-- Change policies of exact topics that live on this shard. ARGV[3]: the version of the policies
-- that the client knows; ARGV[4]: {topic, the id of its set so far, the id that it gets} of each;
-- ARGV[5]: the ids of all sets, and their records behind. Answers the positions of those that
-- somebody else has changed meanwhile, or {"stale", version}. Nothing but these topics' entries and
-- lanes is touched, and nobody is told.

if tonumber(ARGV[3]) ~= shard.version then
    return { 'stale', shard.version }
end
local stored = {}
for n, id in ipairs(values_of(ARGV[5])) do
    stored[n] = { id, ARGV[5 + n] }
end
local changes = values_of(ARGV[4])
local others, topics = rules.set_own(changes, stored)
lanes.load(topics)
lanes.rules_changed()
for n, topic in ipairs(topics) do
    -- what sets nothing new places nothing, as on every engine
    local lane = changes[n][2] ~= changes[n][3] and lanes.find(topic)
    if lane then
        lanes.place(lane)
    end
end
save(true)
return others
