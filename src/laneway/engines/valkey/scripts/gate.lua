--@ allow-oom
-- Set the limits of a gate, or a topic group's settings: those of the code, of the operator, or
-- this shard's grant. Or end the grant of a topic's gate, or forget what a gate owes.
--
-- ARGV[3]: the gate's name
-- ARGV[4]: "code", "operator", "grant", "no grant" or "reset"
-- ARGV[5]: {rate or false, burst or false, concurrency or false, weight or false, false, false,
--   largest cost or false} (packed). A grant as in gates.lua
-- ARGV[6]: of a grant: {by how much the limit that adapts changes here, the permits that it gets}
--   (packed)
--
-- Answers the slots that the shard holds then, granted or leased, and the permits that it has no
-- more.

local name, layer, gave_up = ARGV[3], ARGV[4], 0
if layer == 'no grant' then
    gates.end_grant(name)
    lanes.topic_left(string.sub(name, 2))
elseif layer == 'reset' then
    gates.reset(name)
elseif layer == 'grant' then
    local moves, more = unpack(values_of(ARGV[6]))
    gave_up = gates.grant(name, values_of(ARGV[5]), moves, more)
else
    gates.set(name, layer, values_of(ARGV[5]))
end
local gate = gates.find(name)
if gate and string.byte(name) == 29 then
    groups.set_up(string.sub(name, 2), gate.code, gate.operator)
end
save(true)
local held = gate and math.max(gate.concurrency or 0, gate.leased) or 0
return { held, string.format('%.17g', gave_up) }
