--@ allow-oom

-- Put copies that are left, see left_copies.lua: a chunk of them.
--
-- ARGV[1] is 0, because they come at the time of their message.
--
-- Answers how many chunks are left.

local drafts, expires = left_copies.take()
if drafts then
    intake.accept_all(drafts, false, { expires = expires, are_left = true })
end
save(putting.has_events())
return shard.copying
