--@ allow-oom

-- Let lanes of a topic back off, as an operator asks, or end their back-off.
--
-- ARGV[3]: for how many microseconds; 0: it ends
-- ARGV[4]: the lanes' names (packed)
--
-- Answers how many lanes there are.

local step, count = tonumber(ARGV[3]), 0
for _, name in ipairs(values_of(ARGV[4])) do
    local lane = lanes.find(name)
    if lane then
        count = count + 1
        lane.back_off_step, lane.back_off_until = step, step > 0 and shard.now + step or 0
        lane.back_off_fence = shard.fence
        lanes.touch(lane)
        lanes.place(lane)
    end
end
save(true)
return count
