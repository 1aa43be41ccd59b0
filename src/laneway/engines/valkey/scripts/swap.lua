--@ allow-oom
-- Replace a record, if it is what the client has read (compare and swap).
--
-- ARGV[3]: "programs", "elections" or "records:KIND": the hash with the record
-- ARGV[4]: the record's name
-- ARGV[5]: the record that the client has read; "": none
-- ARGV[6]: the new record; "": none
-- ARGV[7]: "names:KIND": the index of the names of a kind with millions of records; "": none
--
-- Answers 1 if it was replaced, else 0.

local hash, index = keys[ARGV[3]], (ARGV[7] or '') ~= '' and keys[ARGV[7]]
if (call('HGET', hash, ARGV[4]) or '') ~= ARGV[5] then
    return 0
end
local record = ARGV[6] ~= '' and ARGV[6]
writes.set_field(hash, ARGV[4], record)
if index then
    writes.set_member(index, ARGV[4], record and 0)
end
writes.save()
return 1
