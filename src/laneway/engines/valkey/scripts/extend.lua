--@ allow-oom

-- Extend leases, or record that their handlers are about to start.
--
-- ARGV[3]: {number, fence} of each lease (packed)
-- ARGV[4]: microseconds from now until which they last at least; "": record the start instead
--
-- Answers 1 for each lease that is held, 0 for one that is lost.

local by, asked = tonumber(ARGV[4]), values_of(ARGV[3])
local mids, answers, written = {}, {}, {}
for n, each in ipairs(asked) do
    mids[n] = each[1]
end
for n, lease in ipairs(settling.read(mids)) do
    local is_held = lease and lease.fence == asked[n][2] and not lease.gone
    answers[n] = is_held and 1 or 0
    if is_held and by then
        lease.deadline = math.max(lease.deadline, shard.now + by)
    elseif is_held then
        lease.started = true
    end
    if is_held then
        written[#written + 1] = mids[n]
        written[#written + 1] = settling.encode(lease)
    end
end
call_many('HSET', keys.l, written, 2)
save_shard()
return answers
