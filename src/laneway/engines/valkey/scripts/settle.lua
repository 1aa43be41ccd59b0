--@ allow-oom

-- End leases, and publish messages with their acks.
--
-- ARGV[3]: number, fence and cost of each plain ack, flat (packed)
-- ARGV[4]: the other settlements: {number, fence, action, delay, reason, error, cost, begun,
--   random, position in the call, overload} of each (packed); see settling.lua
-- ARGV[5]: {position in the call, id, milliseconds until it expires} of each outcome, flat (packed)
-- ARGV[6]: "": nothing is published; else {version of the policies that the client has, the ids of
--   the own policies that it knows by topic, the topics of plain messages, whether a topic of the
--   messages has a backlog limit, or one of them a cost} (packed)
-- ARGV[7]: with ARGV[6]: {number of its row in ARGV[4], whether its body is too large, whether it
--   is a copy; of a message that may have copies: how many follow, whether it is stored; of a copy:
--   after how many microseconds its subscription is unused, false; else false, false; the position
--   of its topic in ARGV[6], -1: it is not plain; the id of a plain one that has one} of each
--   published message and copy, flat (packed)
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
for n = 1, #outcomes, 3 do
    has_outcome_at[outcomes[n]] = true
end
for _, each in ipairs(settlements) do
    each.has_outcome = has_outcome_at[each[10]]
    each.reports_end = each.has_outcome
end
publishing.mark(settlements)

local simple, unlike, answers, words = values_of(ARGV[3]), {}, {}, {}
local left, ended = acks.settle(simple, #settlements > 0)
if #left == 0 and #settlements > 0 then
    answers = settling.settle_all(settlements, ended)
    for n = 1, #settlements do
        words[settlements[n][10]] = answers[n]
    end
elseif #left > 0 then
    -- Plain acks that need more are settled between the other settlements, in the order of the
    -- call; the tenth value of a row is its position there.
    local is_other, positions, merged, numbers, row = {}, {}, {}, {}, 1
    for _, each in ipairs(settlements) do
        is_other[each[10]] = true
    end
    for place = 1, #simple / 3 + #settlements do
        if not is_other[place] then
            positions[#positions + 1] = place
        end
    end
    local function add_rows(before)
        while settlements[row] and settlements[row][10] < before do
            merged[#merged + 1], row = settlements[row], row + 1
        end
    end
    for _, n in ipairs(left) do
        local at, position = 3 * n - 2, positions[n]
        add_rows(position)
        local ack = { simple[at], simple[at + 1], 'ack', false, false, false, simple[at + 2], true,
            1, position, false }
        merged[#merged + 1], numbers[ack] = ack, n
    end
    add_rows(math.huge)
    row = 0
    for n, answer in ipairs(settling.settle_all(merged, ended)) do
        local number = numbers[merged[n]]
        words[merged[n][10]] = answer
        if not number then
            row = row + 1
            answers[row] = answer
        elseif answer ~= 'acked' then
            unlike[#unlike + 1], unlike[#unlike + 2] = number, answer
        end
    end
end
local placed = {}
for _, lane in ipairs(ended) do
    if not placed[lane] then
        placed[lane] = true
        lanes.place(lane)
    end
end
-- before the published messages: one that is dropped for them may have the same id
for n = 1, #outcomes, 3 do
    local word = words[outcomes[n]] or 'acked'
    if word == 'acked' or word == 'died' then
        results.write('o', outcomes[n + 1], ARGV[#ARGV - (#outcomes - n - 2) / 3], outcomes[n + 2])
    end
end
local refused = publishing.put(answers)
if refused then
    return refused
end
save(#left > 0 or #settlements > 0) -- plain acks create no event
return { unlike, answers, call_us(), shard.copying > 0 and shard.copying or nil }
