-- Accept messages.
--
-- ARGV[3]: the version of the policies that the client has
-- ARGV[4]: the lanes of the plain messages (packed)
-- ARGV[5]: for each message the position of its lane in ARGV[4]; -1: it is not plain (packed)
-- ARGV[6]: the ids of the own policies that the client knows, by topic (packed)
-- ARGV[7]: for each message its id if it is plain and has one, else false (packed); "": none has
-- ARGV[8]: of a spool's batch: {spool, batch, keys of all messages} (packed); "": of none
-- ARGV[9]: "": no message may have copies, see copies.lua; else (packed) {messages, expires}:
--   messages: of each that may have copies, flat: its position, how many copies follow, whether it
--     is stored, the bytes of its body, whether a copy has a backlog limit or a cost
--   expires: by the position of a copy: after how many microseconds its subscription is unused
-- ARGV[10…]: the messages, as record_formats.py encodes them
--
-- Answers for each message its number, or {outcome, details} ("left": it is a copy that
-- `finish_copies` puts), and at last the processor time of this call in microseconds. {"stale",
-- version}: the shard has another version of the policies.
-- {"own", …}: the client has to know other own policies, see parts/policies.lua. {"impossible",
-- position, delay}: a delay outlasts its ttl. {"costs too much", position, the largest cost, the
-- gate that allows no more or ""}. Then nothing was changed.

if tonumber(ARGV[3]) ~= shard.version then
    return { 'stale', shard.version }
end
local plain_topics, order, stored, drafts = values_of(ARGV[4]), values_of(ARGV[5]), {}, {}
local known, own_ids = values_of(ARGV[6]), ARGV[7] ~= '' and values_of(ARGV[7]) or {}
local of_spool, copied = ARGV[8] ~= '' and values_of(ARGV[8])
if ARGV[9] ~= '' then
    local groups, expires = unpack(values_of(ARGV[9]))
    copied = { expires = expires }
    for n = 1, #groups, 5 do
        copied[groups[n]] = { groups[n + 1], groups[n + 2], groups[n + 3], groups[n + 4] }
    end
end
local first_left = left_copies.first(order, copied)
local decodes_all = not first_left or of_spool or left_copies.are_checked(copied)
local topics_left = {}
for n = 1, #order do
    stored[n] = ARGV[9 + n]
    if order[n] < 0 then
        if decodes_all or n < first_left then
            drafts[n] = putting.decode(stored[n])
        else
            topics_left[#topics_left + 1] = putting.topic_of(stored[n])
        end
    end
end
local unknown = policies.unknown_to(known, plain_topics, drafts, topics_left)
if unknown then
    return { 'own', unpack(unknown) }
end
local refusal = putting.first_refusal(order, drafts, stored)
if refusal then
    return refusal
end
if first_left then
    left_copies.choose(first_left, copied, plain_topics, order, stored, drafts, own_ids)
end
local answers
if of_spool then
    local spool, batch, names = unpack(of_spool)
    answers = forwarding.accept_batch(spool, batch, names, plain_topics, order, stored, drafts,
        own_ids, copied)
else
    answers = intake.accept_batch(plain_topics, order, stored, drafts, own_ids, false, copied)
end
wakeup.lease_at_once(#order)
save(next(drafts) ~= nil)
answers[#answers + 1] = call_us()
return answers
