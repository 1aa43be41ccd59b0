--@ allow-oom

-- Read the own policies of topics.
--
-- ARGV[3]: the topics (packed)
--
-- Answers {id, record} of each; false: none.

local found = {}
for n, id in ipairs(read_many(keys.own, values_of(ARGV[3]))) do
    found[n] = id and { id, call('HGET', keys.own_sets, id) }
end
return found
