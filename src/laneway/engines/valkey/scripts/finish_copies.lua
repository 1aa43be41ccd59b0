--@ allow-oom

-- Put copies that are left, see left_copies.lua: a chunk of them.
--
-- ARGV[1] is 0, because they come at the time of their message.
--
-- Answers how many chunks are left.

local topics, order, stored, own_ids, expires = left_copies.take()
local drafts = {}
if topics then
    for n = 1, #order do
        if order[n] < 0 then
            drafts[n] = left_copies.decode(n, stored, own_ids)
        end
    end
    intake.accept_batch(topics, order, stored, drafts, own_ids, false, { expires = expires,
        are_left = true })
end
save(next(drafts) ~= nil)
return shard.copying
