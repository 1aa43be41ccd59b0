-- Have something told when the message with the number ARGV[3] ("": nobody knows it) and the id
-- ARGV[4] ends: ARGV[5]. Answers its outcome where it has ended, "unknown" where nothing of it is
-- kept.

local outcome = call('GET', key('o:' .. ARGV[4]))
if outcome then
    return { outcome }
end
local record = ARGV[3] ~= '' and messages.read(tonumber(ARGV[3]))
if not record or record.death or not results.is_kept(record) then
    return 'unknown'
end
results.follow(ids.of(record), record.topic, ARGV[5])
return {}
