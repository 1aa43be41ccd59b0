-- Accept messages.
--
-- ARGV[3]: the version of the policies that the client has
-- ARGV[4]: the ids of the own policies that the client knows, by topic (packed)
-- ARGV[5]: of a spool's batch: {spool, batch, keys of all messages} (packed); "": of none
-- ARGV[6]: "": no message may have copies, see copies.lua; else (packed) {messages, expires}:
--   messages: of each that may have copies, flat: its position, how many copies follow, whether it
--     is stored, the bytes of its body, whether a copy has a backlog limit or a cost
--   expires: by the position of a copy: after how many microseconds its subscription is unused
-- ARGV[7…]: the messages, as record_formats.py encodes them
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
local drafts, of_spool, copied = {}, ARGV[5] ~= '' and values_of(ARGV[5]), nil
if ARGV[6] ~= '' then
    local groups, expires = unpack(values_of(ARGV[6]))
    copied = { expires = expires }
    for n = 1, #groups, 5 do
        copied[groups[n]] = { groups[n + 1], groups[n + 2], groups[n + 3], groups[n + 4] }
    end
end
for n = 1, #ARGV - 6 do
    drafts[n] = putting.read(ARGV[6 + n])
end
local unknown = policies.unknown_to(values_of(ARGV[4]), drafts)
if unknown then
    return { 'own', unpack(unknown) }
end
local first_left, stays_encoded = left_copies.first(drafts, copied)
local refusal = putting.decode_all(drafts, stays_encoded and not of_spool and first_left - 1
    or #drafts)
if refusal then
    return refusal
end
if first_left then
    left_copies.choose(first_left, drafts, copied)
end
local answers
if of_spool then
    local spool, batch, names = unpack(of_spool)
    answers = forwarding.accept_batch(spool, batch, names, drafts, copied)
else
    answers = intake.accept_all(drafts, false, copied)
end
wakeup.lease_at_once(#drafts)
save(putting.has_events())
answers[#answers + 1] = call_us()
return answers
