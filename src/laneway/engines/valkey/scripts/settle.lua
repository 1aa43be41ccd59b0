--@ allow-oom

-- End leases, and publish messages with their acks.
--
-- ARGV[3]: number, fence and cost of each plain ack, flat (packed)
-- ARGV[4]: the other settlements (packed), see settling.lua; of each: {number, fence, action,
--   delay, reason, error, cost, begun, random, position in the call, overload}
-- ARGV[5]: {position in the call, id, milliseconds until it expires} of each outcome, flat (packed)
-- ARGV[6]: "": nothing is published; else (packed) {version of the policies that the client has,
--   ids of the own policies that it knows by topic, topics of plain messages, whether a topic of
--   the messages has a backlog limit, or one of them a cost}
-- ARGV[7]: with ARGV[6]: of each published message and copy, flat (packed):
--   number of its row in ARGV[4], whether its body is too large, whether it is a copy;
--   two values: of a message that may have copies: how many follow, whether it is stored; of a
--     copy: after how many microseconds its subscription is unused, false; else false, false;
--   position of its topic in ARGV[6], -1: it is not plain; id of a plain one that has one
-- ARGV[8…]: the published messages; the outcomes are the last arguments
--
-- Answers {{number of a plain ack that was not "acked", its answer, … flat}, {the answer of each
-- row of ARGV[4]}, the processor time of this call in microseconds, how many chunks of copies are
-- left if there are any}. {"stale", version} and {"own", …} as put.lua; {"too large", position},
-- {"impossible", …} and {"costs too much", …} as put.lua and {"refused", id, topic, …}: a published
-- message was not accepted. Then nothing was changed.

local settlements = values_of(ARGV[4])
local impossible = publishing.read(settlements, ARGV[6], ARGV[7])
if impossible then
    return impossible
end

local outcomes, has_outcome_at = values_of(ARGV[5]), {}
for n = 1, #outcomes, 5 do
    has_outcome_at[outcomes[n]] = true
end
for _, each in ipairs(settlements) do
    each.has_outcome = has_outcome_at[each[10]]
    each.reports_end = each.has_outcome
end
publishing.mark(settlements)

-- The rows have their positions in the call; the plain acks are at the others, in their order.
local acks = values_of(ARGV[3])
local mids, fences, all, row_at, ack_at, plain_ack = {}, {}, {}, {}, {}, {}
for n, each in ipairs(settlements) do
    row_at[each[10]] = n
end
local ack = 1
for place = 1, #acks / 3 + #settlements do
    local row = settlements[row_at[place]]
    if row then
        mids[place], fences[place], all[place] = row[1], row[2], row
    else
        local cost = acks[ack + 2]
        mids[place], fences[place] = acks[ack], acks[ack + 1]
        -- those of equal costs are one
        local found = plain_ack[cost] or { 0, 0, 'ack', false, false, false, cost, true, 1, 0,
            false }
        all[place], plain_ack[cost], ack_at[place], ack = found, found, (ack + 2) / 3, ack + 3
    end
end
local words, ended = settling.settle_all(mids, fences, all)
local answers, unlike = {}, {}
for place = 1, #words do
    local word = words[place]
    if row_at[place] then
        answers[row_at[place]] = word
    elseif word ~= 'acked' then
        unlike[#unlike + 1], unlike[#unlike + 2] = ack_at[place], word
    end
end
-- in a fixed order, because the first ones may use up what gates have to spare
table.sort(ended, function(one, other)
    return one.number < other.number
end)
for n = 1, #ended do
    lanes.place(ended[n])
end
-- before the published messages: one that is dropped for them may have the same id
for n = 1, #outcomes, 5 do
    local word = words[outcomes[n]]
    if word == 'acked' or word == 'died' then
        results.write('o', outcomes[n + 1], outcomes[n + 2],
            ARGV[#ARGV - (#outcomes - n - 4) / 5], outcomes[n + 3], outcomes[n + 4])
    end
end
local refused = publishing.put(answers)
if refused then
    return refused
end
save(#settlements > 0) -- plain acks create no event
return { unlike, answers, call_us(), shard.copying > 0 and shard.copying or nil }
