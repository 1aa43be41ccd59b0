--@ allow-oom
-- Store the progress of messages.
--
-- ARGV[3]: {topic, id, milliseconds until it expires, message's number, fence, condition} of each
--   (packed); number 0: without a lease; condition 0: none, 1: no progress is stored, 2: a
--   certain one is
-- ARGV[4…]: the progress of each, then what has to be stored now, of each with condition 2
--
-- Answers 1 for each that was stored, 0 where the lease is lost or the condition does not hold.

local notes, mids, answers = values_of(ARGV[3]), {}, {}
for n, each in ipairs(notes) do
    mids[n] = each[4]
end
local leases, last = settling.read(mids), 3 + #notes
for n, each in ipairs(notes) do
    local lease = leases[n]
    local may_store = each[4] == 0 or (lease and lease.fence == each[5] and not lease.gone)
    if each[6] > 0 then
        local before = false
        if each[6] == 2 then
            last = last + 1
            before = ARGV[last]
        end
        may_store = may_store and call('GET', key('n:' .. results.name(each[1], each[2])))
            == before
    end
    answers[n] = may_store and 1 or 0
    if may_store then
        results.write('n', each[1], each[2], ARGV[3 + n], each[3])
    end
end
return answers
