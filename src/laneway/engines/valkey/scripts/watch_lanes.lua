--@ allow-oom

-- Notify watchers of every change of some lanes, on the channels of `=NAME`.
--
-- ARGV[3]: for how many microseconds
-- ARGV[4]: the lanes' names (packed)
--
-- Answers the names of those in which something waits or is leased.

local busy = {}
for _, lane in ipairs(lanes.existing(values_of(ARGV[4]))) do
    if lanes.waiting(lane) + lane.leased > 0 then
        lane.watched_until = shard.now + tonumber(ARGV[3])
        lanes.touch(lane)
        busy[#busy + 1] = lane.name
    end
end
save(false)
return busy
