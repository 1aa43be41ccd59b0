#!lua flags=allow-oom
--@ shard fairness rules gates crc lanes messages ids merging settling housekeeping bells

-- Housekeeping, at most ARGV[3] of each kind. Answers {the next wake or -1, whether something is left to do}.

local more = housekeeping.keep(tonumber(ARGV[3]))
gates.save()
messages.save()
local wake = housekeeping.next_wake()
save(true)
return { wake or -1, more and 1 or 0 }
