--@ allow-oom
-- Store progress under the ids of messages.
--
-- ARGV[3]: {id, milliseconds until it expires, message's number, fence} of each; number 0: without
--   a lease (packed)
-- ARGV[4…]: the progress of each
--
-- Answers 1 for each that was stored, 0 where the lease is lost.

local notes, mids, answers = values_of(ARGV[3]), {}, {}
for n, each in ipairs(notes) do
    mids[n] = each[3]
end
local leases = settling.read(mids)
for n, each in ipairs(notes) do
    local lease = leases[n]
    local is_held = each[3] == 0 or (lease and lease.fence == each[4] and not lease.gone)
    answers[n] = is_held and 1 or 0
    if is_held then
        results.write('n', each[1], ARGV[3 + n], each[2])
    end
end
return answers
