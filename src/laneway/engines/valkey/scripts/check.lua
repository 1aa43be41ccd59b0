--@ allow-oom

-- Check one page of the shard for the doctor, and repair it.
--
-- ARGV[3]: what is checked: "lanes", "messages" or "leases"
-- ARGV[4]: the cursor of the page; 0 for the first
-- ARGV[5]: "1": repair what is wrong
--
-- Answers {the next cursor, lanes and keys whose counts are wrong, index entries without a message,
-- messages without an index entry, leases that no event would end; then what the lanes hold:
-- waiting, bytes, leased; messages that wait for a handler}.

local what, cursor, repairs = ARGV[3], ARGV[4], ARGV[5] == '1'
local wrong_counts, orphans, lost, endless, waiting, bytes, leased, unhandled = 0, 0, 0, 0, 0, 0, 0,
    0
local LOOKED_AT = 1000 -- entries of one lane
local FEW_LEASES = 5000

local function page(command, name)
    local found = call(command, name, cursor, 'COUNT', 50)
    cursor = found[1]
    return found[2]
end

-- How many leases each lane has, and each slot of a key; nil where there are too many to count in
-- one call.
local function count_leases()
    if call('HLEN', keys.l) > FEW_LEASES then
        return nil
    end
    local counts, by_slot = {}, {}
    for _, stored in ipairs(call('HVALS', keys.l)) do
        local lease = settling.decode(stored)
        if not lease.gone then
            counts[lease.lane] = (counts[lease.lane] or 0) + 1
            if lease.slot then
                by_slot[lease.slot] = by_slot[lease.slot] or { lane = lease.lane, count = 0 }
                by_slot[lease.slot].count = by_slot[lease.slot].count + 1
            end
        end
    end
    return counts, by_slot
end

-- Look at an entry of an index, which `drop(...)` removes if its message is gone.
local function check_entry(mid, drop, ...)
    if call('HEXISTS', keys.m, text(mid)) == 0 then
        orphans = orphans + 1
        if repairs then
            drop(...)
        end
    end
end

local function check_lane(lane, leases)
    local in_order, aside = lanes.key_of('z', lane), lanes.key_of('a', lane)
    for _, name in ipairs({ in_order, aside }) do
        for _, member in ipairs(call('ZRANGE', name, 0, LOOKED_AT - 1)) do
            check_entry(messages.number_in(member), call, 'ZREM', name, member)
        end
    end
    for _, mid in ipairs(plain.peek(lane, LOOKED_AT)) do
        check_entry(mid, plain.unlist, lane, mid)
    end
    local listed, sorted = call('LLEN', lanes.key_of('q', lane)), call('ZCARD', in_order)
    local is = {
        listed = listed, sorted = sorted, ready = #lane.latest / 7 + listed + sorted, delayed =
            call('ZLEXCOUNT', aside, '[d', '(e'),
        parked = call('ZLEXCOUNT', aside, '[p', '(q'), leased = leases and (leases[lane.name] or 0)
            or lane.leased,
    }
    local is_wrong = false
    for field, count in pairs(is) do
        is_wrong = is_wrong or lane[field] ~= count
    end
    if is_wrong then
        wrong_counts = wrong_counts + 1
        if repairs then
            for field, count in pairs(is) do
                lane[field] = count
            end
        end
    end
    if repairs then
        lanes.place(lane)
    end
    waiting, bytes, leased = waiting + lanes.waiting(lane), bytes + lane.bytes, leased + lane.leased
end

local function is_indexed(record)
    if record.state == DEAD then
        return call('ZSCORE', keys.dead, text(record.mid)) ~= false
    end
    local lane = lanes.find(record.lane)
    if call('HEXISTS', keys.l, text(record.mid)) == 1 then
        return true
    elseif not lane then
        return false
    elseif record.plain then
        for at = 1, #lane.latest, 7 do
            if unpack_from('>I7', lane.latest, at) == record.mid then
                return true
            end
        end
        return lane.listed > 0 and call('LPOS', key('q:' .. text(lane.number)), text(record.mid),
            'MAXLEN', LOOKED_AT) ~= false or lane.listed > LOOKED_AT
    end
    return messages.is_indexed(lane, record)
end

if what == 'lanes' then
    local leases, by_slot = count_leases()
    if cursor == '0' and leases and call('HLEN', keys.key_states) <= FEW_LEASES then
        wrong_counts = wrong_counts + key_limits.check(by_slot, repairs)
    end
    local found = page('HSCAN', keys.lanes)
    for n = 1, #found, 2 do
        check_lane(lanes.find(found[n]), leases)
    end
elseif what == 'messages' then
    local found = page('HSCAN', keys.m)
    for n = 1, #found, 2 do
        local record = messages.take(tonumber(found[n]), found[n + 1])
        if record.state ~= DEAD and record.unhandled_from > 0 then
            unhandled = unhandled + 1
        end
        if not is_indexed(record) then
            lost = lost + 1
            if repairs and record.state == DEAD then
                messages.bury({}, record, 'found by the doctor without its reason')
                messages.count_letters_again(record.topic)
            elseif repairs then
                local policy = policies.of(record.topic)
                local lane = lanes.find(record.lane) or lanes.make(lanes.name_for(policy,
                    record.topic, false, record.seq))
                messages.begin_waiting(lane, record)
                lanes.place(lane)
            end
        end
    end
else
    local expected = {}
    for _, member in ipairs(call('ZRANGE', keys.ends, 0, FEW_LEASES - 1)) do
        for position = 8, #member, 12 do
            local mid, fence = unpack_from('>I6I6', member, position)
            expected[text(mid) .. ' ' .. text(fence)] = true
        end
    end
    local found = page('HSCAN', keys.l)
    for n = 1, #found, 2 do
        local lease = settling.decode(found[n + 1])
        if not expected[found[n] .. ' ' .. text(lease.fence)] and call('ZCARD', keys.ends) <=
            FEW_LEASES then
            endless = endless + 1
            if repairs then
                settling.expect(shard.now, { tonumber(found[n]), lease.fence })
            end
        end
    end
end
if repairs then
    save()
end
return { cursor, wrong_counts, orphans, lost, endless, waiting, bytes, leased, unhandled }
