-- Append entries to the delivery log, and remove some of the oldest that are beyond its bounds.
--
-- ARGV[3]: how long entries are kept, in microseconds
-- ARGV[4]: the most bytes of all entries
-- ARGV[5]: the time of the first number; "": now
-- ARGV[6…]: topic, time (microseconds) and data of each, flat
--
-- An entry's number is the time in microseconds, and larger than the one before. Each entry has the
-- number of the one before it in its topic, so an index by topic needs one field of a topic.

local TRIMMED = 500 -- entries that one call removes

local order, heads, entries = keys.log_order, keys.log_heads, keys.log
local newest = call('ZRANGE', order, -1, -1)[1]
local number = max(tonumber(ARGV[5]) or shard.now, (tonumber(newest) or 0) + 1)
local bytes = tonumber(call('HGET', heads, '') or 0)

for n = 6, #ARGV, 3 do
    local topic, data = ARGV[n], ARGV[n + 2]
    local name = text(number)
    call('HSET', entries, name, packed(call('HGET', heads, topic) or '', topic, ARGV[n + 1], data))
    call('ZADD', order, number, name)
    call('HSET', heads, topic, name)
    bytes = bytes + #topic + #data
    number = number + 1
end

local least, most = shard.now - tonumber(ARGV[3]), tonumber(ARGV[4])
for _, name in ipairs(call('ZRANGE', order, 0, TRIMMED - 1)) do
    if bytes <= most and tonumber(name) >= least then
        break
    end
    local _, topic, _, data = values_of(call('HGET', entries, name))
    bytes = bytes - #topic - #data
    call('HDEL', entries, name)
    call('ZREM', order, name)
    if call('HGET', heads, topic) == name then
        call('HDEL', heads, topic)
    end
end
call('HSET', heads, '', text(bytes))
return 1
