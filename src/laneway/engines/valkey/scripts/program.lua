-- What is kept of the program ARGV[3] becomes ARGV[5], if it is ARGV[4] ("": nothing). Answers
-- whether it was.

local stored = call('HGET', keys.programs, ARGV[3]) or ''
if stored ~= ARGV[4] then
    return 0
end
if ARGV[5] == '' then
    call('HDEL', keys.programs, ARGV[3])
else
    call('HSET', keys.programs, ARGV[3], ARGV[5])
end
return 1
