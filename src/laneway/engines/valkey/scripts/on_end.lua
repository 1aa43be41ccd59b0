--@ allow-oom
-- Publish an end notice with `follower` when a message ends, if its outcome is kept.
--
-- ARGV[3]: the message's number; "": it is not known
-- ARGV[4]: the name of its result
-- ARGV[5]: the follower, JSON
--
-- Answers {} if it will be published; {the outcome} if the message has ended already; "unknown" if
-- its outcome is not kept.

local outcome = call('GET', key('o:' .. ARGV[4]))
if outcome then
    return { outcome }
end
local record = ARGV[3] ~= '' and messages.read(tonumber(ARGV[3]))
if not record or record.death or not results.milliseconds_of(record) then
    return 'unknown'
end
call('RPUSH', key('f:' .. results.name(record.topic, id_of(record))), ARGV[5])
return {}
