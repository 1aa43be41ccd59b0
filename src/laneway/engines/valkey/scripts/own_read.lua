--@ allow-oom

-- What the topics ARGV[3] set of their own: {id, record} of each, or false.

local found = {}
for n, id in ipairs(read_many(keys.own, values_of(ARGV[3]))) do
    found[n] = id and { id, call('HGET', keys.own_sets, id) }
end
return found
