--@ allow-oom

-- Notify of changes of the lanes ARGV[4] (names), for ARGV[3] microseconds, on the channels of
-- `=NAME`. Answers the names of those in which something waits or is leased.

local busy = {}
for _, name in ipairs(values_of(ARGV[4])) do
    local lane = lanes.find(name)
    if lane and lanes.waiting(lane) + lane.leased > 0 then
        lane.watched_until = shard.now + tonumber(ARGV[3])
        lanes.touch(lane)
        busy[#busy + 1] = name
    end
end
save(false)
return busy
