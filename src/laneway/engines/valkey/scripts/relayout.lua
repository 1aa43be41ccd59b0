-- The counters of a shard of an older layout, ARGV[3], become those of ARGV[4]: ARGV[5] has what is
-- new in them, {position, value} each, in their order. Answers the layout that the shard has had.
-- It is called before the shard is opened, whose layout no other function would take.

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
