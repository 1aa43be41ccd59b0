--@ allow-oom

-- End leases, and publish messages with their acks.
--
-- ARGV[3]: the settlements in their order, flat (packed): of a plain ack its number, fence and
--   cost; any other one is a list, see settling.lua: {number, fence, action, delay, reason, error,
--   cost, begun, random, overload}
-- ARGV[4]: {position of the settlement, topic, id, milliseconds until it expires, whether the id
--   was generated} of each outcome, flat (packed)
-- ARGV[5]: "": nothing is published; else (packed) {version of the policies that the client has,
--   ids of the own policies that it knows by topic, whether a topic of the messages has a backlog
--   limit, or one of them a cost}
-- ARGV[6]: with ARGV[5]: of each published message and copy, flat (packed):
--   position of its settlement, whether its body is too large, whether it is a copy;
--   two values: of a message that may have copies: how many follow, whether it is stored; of a
--     copy: after how many microseconds its subscription is unused, false; else false, false
-- ARGV[7…]: the published messages, as in put.lua; the outcomes are the last arguments
--
-- Answers {{position of a settlement that was not "acked", its answer, … flat}, the processor time
-- of this call in microseconds, how many chunks of copies are left if there are any}. {"stale",
-- version} and {"own", …} as put.lua; {"too large", position}, {"impossible", …} and {"costs too
-- much", …} as put.lua and {"refused", id, topic, …}: a published message was not accepted. Then
-- nothing was changed.

local flat, at, has_rows = values_of(ARGV[3]), 1, false
local mids, fences, settlements, plain_acks = {}, {}, {}, {}
while flat[at] do
    local place, each = #mids + 1, flat[at]
    if type(each) == 'table' then
        mids[place], fences[place], settlements[place], at = each[1], each[2], each, at + 1
        has_rows = true
    else
        local cost = flat[at + 2]
        mids[place], fences[place], at = each, flat[at + 1], at + 3
        -- those of equal costs are one
        plain_acks[cost] = plain_acks[cost] or { 0, 0, 'ack', false, false, false, cost, true, 1,
            false }
        settlements[place] = plain_acks[cost]
    end
end
local impossible = publishing.read(mids, settlements, ARGV[5], ARGV[6])
if impossible then
    return impossible
end
local outcomes = values_of(ARGV[4])
for n = 1, #outcomes, 5 do
    local each = settlements[outcomes[n]]
    each.has_outcome, each.reports_end = true, true
end
local words, ended = settling.settle_all(mids, fences, settlements)
local unlike = {}
for place = 1, #words do
    if words[place] ~= 'acked' then
        unlike[#unlike + 1], unlike[#unlike + 2] = place, words[place]
    end
end
-- in a fixed order, because the first ones may use up what gates have to spare
table.sort(ended, function(one, other)
    return one.number < other.number
end)
lanes.place_all(ended)
-- before the published messages: one that is dropped for them may have the same id
for n = 1, #outcomes, 5 do
    local word = words[outcomes[n]]
    if word == 'acked' or word == 'died' then
        results.write('o', outcomes[n + 1], outcomes[n + 2],
            ARGV[#ARGV - (#outcomes - n - 4) / 5], outcomes[n + 3], outcomes[n + 4])
    end
end
local refused = publishing.put(words)
if refused then
    return refused
end
save(has_rows) -- plain acks create no event
return { unlike, call_us(), shard.copying > 0 and shard.copying or nil }
