--@ allow-oom

-- Extend leases, or record that their handlers are about to start.
--
-- ARGV[3]: {number, fence} of each lease (packed)
-- ARGV[4]: microseconds from now until which they last at least; "": record the start instead
--
-- Answers 1 for each lease that is held, 0 for one that is lost.

local by = tonumber(ARGV[4])
local answers = settling.change_held(values_of(ARGV[3]), function(lease)
    if by then
        lease.deadline = math.max(lease.deadline, shard.now + by)
    else
        lease.started = true
    end
end)
save_shard()
return answers
