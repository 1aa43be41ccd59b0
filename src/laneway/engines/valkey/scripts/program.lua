-- Replace what is stored of a program, if it is what the client has read.
--
-- ARGV[3]: the program's name
-- ARGV[4]: the value that the client has read; "": none
-- ARGV[5]: the new value; "": none
--
-- Answers 1 if it was replaced, else 0.

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
