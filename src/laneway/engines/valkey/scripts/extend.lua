--@ allow-oom

-- ARGV[3]: {number, fence} of leases; ARGV[4]: "" to record that they are about to be run, else for
-- how many microseconds from now they are to last at least. Answers 1 for each that is held, 0 for
-- one that is lost.

local by = tonumber(ARGV[4])
local answers = settling.keep(values_of(ARGV[3]), function(lease)
    if by then
        lease.deadline = math.max(lease.deadline, shard.now + by)
    else
        lease.started = true
    end
end)
save_shard()
return answers
