-- Set the limits of a gate, or a topic group's settings: those of the code, of the operator, or
-- this shard's grant. A grant never goes below what is leased. Or end the grant of a topic's gate,
-- or forget what a gate owes.
--
-- ARGV[3]: the gate's name
-- ARGV[4]: "code", "operator", "grant", "no grant" or "reset"
-- ARGV[5]: {rate or false, burst or false, concurrency or false, weight or false, false, false,
--   largest cost or false} (packed). Of a grant: {rate, burst, concurrency, false, false, the limit
--   that was divided or false, by how much the shard's own changes}; the last two if it adapts.
--
-- Answers the concurrency that is in force then; -1: none.

if ARGV[4] == 'no grant' then
    gates.end_grant(ARGV[3])
    lanes.topic_left(string.sub(ARGV[3], 2))
    save(true)
    return -1
end
if ARGV[4] == 'reset' then
    gates.reset(ARGV[3])
    save(true)
    return -1
end
local limits = values_of(ARGV[5])
local moves = ARGV[4] == 'grant' and table.remove(limits)
local gate = gates.find(ARGV[3])
if ARGV[4] == 'grant' and gate and limits[3] then
    limits[3] = math.max(limits[3], gate.leased)
end
if ARGV[4] == 'grant' and string.byte(ARGV[3]) == 28 then
    gates.grant(ARGV[3], limits, moves)
else
    gates.set(ARGV[3], ARGV[4], limits)
end
gate = gates.find(ARGV[3])
if string.byte(ARGV[3]) == 29 then
    groups.set_up(string.sub(ARGV[3], 2), gate.code, gate.operator)
end
save(true)
return limits[3] or -1
