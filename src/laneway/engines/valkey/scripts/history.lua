-- Write records of the history, if one of them is what the client has read (compare and swap).
--
-- ARGV[3]: the name of that record
-- ARGV[4]: the record that the client has read; "": none
-- ARGV[5…]: name and record of each, flat
--
-- Answers 1 if they were written, else 0.

if (call('HGET', keys.history, ARGV[3]) or '') ~= ARGV[4] then
    return 0
end
local written = {}
for n = 5, #ARGV do
    written[n - 4] = ARGV[n]
end
call_many('HSET', keys.history, written, 2)
return 1
