-- Bring the counters of a shard to the next layout. Called before the shard is opened, because
-- every other function refuses an older layout.
--
-- ARGV[3]: the layout that the shard has
-- ARGV[4]: the layout then
-- ARGV[5]: {position, value} of each new counter, in the order of positions (packed)
--
-- Answers the layout that the shard had before.

local stored = call('GET', keys.shard)
if not stored then
    return redis.error_reply('NOSHARD there is no namespace here')
end
local values, size = { values_of(stored) }, select('#', values_of(stored))
local before = values[1]
if before == tonumber(ARGV[3]) then
    values[1] = tonumber(ARGV[4])
    for _, each in ipairs(values_of(ARGV[5])) do
        table.insert(values, each[1], each[2])
        size = size + 1
    end
    call('SET', keys.shard, packed(unpack(values, 1, size)))
end
return before
