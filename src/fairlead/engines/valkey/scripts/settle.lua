#!lua flags=allow-oom
--@ shard undo fairness rules gates crc lanes plain messages ids merging backlog putting intake settling wakes housekeeping bells

-- End leases. ARGV[3]: the settlements, see settling.lua; ARGV[4]: "", or the version of the policies that the client knows, where messages are
-- published with acks; then ARGV[5]: {position of its settlement, whether its body is too large} of each, and the messages.
-- Answers one word for each settlement.

local settlements = values_of(ARGV[3])
local follow = {}
if ARGV[4] ~= '' then
    if tonumber(ARGV[4]) ~= shard.version then
        return { 'stale', shard.version }
    end
    local mids, counted = {}, {}
    for n, each in ipairs(settlements) do
        mids[n] = each[1]
    end
    local leases = settling.read(mids)
    for n, each in ipairs(values_of(ARGV[5])) do
        local position, is_too_large = each[1], each[2]
        local settlement, lease = settlements[position], leases[position]
        counted[position] = (counted[position] or 0) + 1
        if lease and lease.fence == settlement[2] and not lease.gone and (settlement[3] or 'ack') == 'ack' then
            if is_too_large then
                return { 'too large', n - 1 }
            end
            local draft = putting.decode(ARGV[5 + n])
            local parent = lease.empty and made_id(settlement[1]) or ids.of(messages.read(settlement[1]))
            draft.id, draft.sticky, draft.position = draft.id or parent .. ':' .. text(counted[position] - 1), true, position
            local impossible, by = putting.impossible({ draft })
            if impossible then
                return { 'impossible', n - 1, by }
            end
            follow[#follow + 1] = draft
        end
    end
    undo.begin()
end

local answers = settling.settle_all(settlements)
local accepted = {}
for _, draft in ipairs(follow) do
    if answers[draft.position] == 'acked' then
        accepted[#accepted + 1] = draft
    end
end
for n, answer in ipairs(intake.accept_all(accepted)) do
    if type(answer) == 'table' and answer[1] == 'refused' then
        undo.run()
        return { 'refused', accepted[n].id, accepted[n].topic, answer[2], answer[3], answer[4] }
    end
end
save(true)
return answers
