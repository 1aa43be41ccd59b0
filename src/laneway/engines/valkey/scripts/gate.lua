-- Set the limits of the gate ARGV[3], as "code" or "operator" (ARGV[4]) says, or this shard's
-- "grant": ARGV[5], {rate or false, burst or false, concurrency or false}. A grant is not taken
-- back from leases that have it. Answers the concurrency that holds, -1: none.

local limits = values_of(ARGV[5])
local gate = gates.find(ARGV[3])
if ARGV[4] == 'grant' and gate and limits[3] then
    limits[3] = math.max(limits[3], gate.leased)
end
gates.set(ARGV[3], ARGV[4], limits)
save(true)
return limits[3] or -1
