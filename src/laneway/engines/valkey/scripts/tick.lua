--@ allow-oom

-- Housekeeping, at most ARGV[3] of each kind. Answers {the next wake or -1, whether something is
-- left to do}.

local more = housekeeping.keep(tonumber(ARGV[3]))
gates.save()
messages.save()
local wake = wakes.next()
save(true)
return { wake or -1, more and 1 or 0 }
