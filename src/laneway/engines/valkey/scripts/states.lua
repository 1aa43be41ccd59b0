--@ allow-oom

-- The states of messages by their ids.
--
-- ARGV[3]: the topic
-- ARGV[4]: the ids (packed)
-- ARGV[5]: for each the message's number, if it is a generated id of this shard, else 0 (packed)
--
-- Answers a letter for each id: "w" waiting, "l" leased, "d" dead, "f" finished, "u" unknown.

local topic, numbers = ARGV[3], values_of(ARGV[5])
local letters = {}
local mids, positions = {}, {} -- of the messages that have not ended
local generated, theirs = {}, {}

local function add(position, mid)
    mids[#mids + 1], positions[#positions + 1] = mid, position
end

for n, known in ipairs(read_many(key('i:' .. topic), values_of(ARGV[4]))) do
    letters[n] = 'u'
    local ends = known and tonumber(string.match(known, '^f(%d+)'))
    if ends then
        letters[n] = (ends == 0 or ends > shard.now) and 'f' or 'u'
    elseif known then
        add(n, known)
    end
    if numbers[n] > 0 and (ends or not known) then
        generated[#generated + 1], theirs[#theirs + 1] = numbers[n], n
    end
end
for n, stored in ipairs(read_many(keys.m, generated)) do
    if stored and messages.take(generated[n], stored).topic == topic then
        add(theirs[n], generated[n])
    end
end

local leases = settling.read(mids)
for n, number in ipairs(read_many(key('dead:' .. topic), mids, call, 'ZMSCORE')) do
    local lease = leases[n]
    letters[positions[n]] = number and 'd'
        or lease and not lease.gone and not lease.empty and 'l' or 'w'
end
return table.concat(letters)
