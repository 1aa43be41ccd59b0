-- Read entries of the delivery log, the newest first.
--
-- ARGV[3]: the topic; "": all
-- ARGV[4]: only entries with smaller numbers
-- ARGV[5]: the most entries
--
-- Answers number, topic, time and data of each, flat.

local MOST_PASSED_OVER = 10000

local topic, before, limit = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local found = {}

-- Add an entry. Returns the name of the one before it in its topic.
local function add(name, stored)
    local previous, of, at, data = values_of(stored)
    found[#found + 1] = tonumber(name)
    found[#found + 1] = of
    found[#found + 1] = at
    found[#found + 1] = data
    return previous
end

if topic == '' then
    local names = call('ZRANGE', keys.log_order, text(before - 1), '-inf', 'BYSCORE', 'REV',
        'LIMIT', 0, limit)
    for _, name in ipairs(names) do
        add(name, call('HGET', keys.log, name))
    end
    return found
end

local name = call('HGET', keys.log_heads, topic)
local from = call('HGET', keys.log, text(before))
if from then -- the last entry of the previous page
    local previous, of = values_of(from)
    name = of == topic and previous or name
end
local passed_over = 0
while name and name ~= '' and #found < 4 * limit and passed_over < MOST_PASSED_OVER do
    local stored = call('HGET', keys.log, name)
    if not stored then
        break -- it was removed, and all before it
    elseif tonumber(name) < before then
        name = add(name, stored)
    else
        passed_over = passed_over + 1
        name = values_of(stored)
    end
end
return found
