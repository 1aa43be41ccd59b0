--@ allow-oom

-- Let lanes of a topic back off, as an operator asks, or end their back-off.
--
-- ARGV[3]: for how many microseconds; 0: it ends
-- ARGV[4]: the lanes' names (packed)
--
-- Answers how many lanes there are.

local step, found = tonumber(ARGV[3]), lanes.existing(values_of(ARGV[4]))
for _, lane in ipairs(found) do
    lane.back_off_step, lane.back_off_until = step, step > 0 and shard.now + step or 0
    lane.back_off_fence = shard.fence
end
lanes.place_all(found)
save(true)
return #found
