#!lua flags=allow-oom
--@ shard fairness rules gates crc lanes plain messages ids merging settling wakes housekeeping bells

-- Housekeeping, at most ARGV[3] of each kind. Answers {the next wake or -1, whether something is left to do}.

local more = housekeeping.keep(tonumber(ARGV[3]))
if is_used(gates) then
    gates.save()
end
if is_used(messages) then
    messages.save()
end
local wake = wakes.next()
save(true)
return { wake or -1, more and 1 or 0 }
