--@ allow-oom

-- Do housekeeping.
--
-- ARGV[3]: how much of each kind at most
--
-- Answers {the next wake time or -1, 1 if something is left to do}.

local more = housekeeping.run(tonumber(ARGV[3]))
recent.forget(shard.now)
gates.save()
messages.save()
local wake = next_wake.time()
save(true)
return { wake or -1, more and 1 or 0 }
