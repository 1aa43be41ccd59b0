-- Remember ids as finished, unless they are known.
--
-- ARGV[3]: {topic, id, until or 0} of each (packed)
--
-- Answers 1.

for _, each in ipairs(values_of(ARGV[3])) do
    local topic, id, ends = unpack(each)
    if call('HSETNX', key('i:' .. topic), id, 'f' .. text(ends)) == 1 and ends > 0 then
        call('ZADD', keys.ids_until, ends, topic .. '\0' .. id)
    end
end
return 1
