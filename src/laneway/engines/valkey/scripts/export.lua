--@ allow-oom

-- Move messages out of a lane into the hash `moving`, where they stay until their arrival in
-- another store is confirmed.
--
-- ARGV[3]: the lane's name; "": dead letters
-- ARGV[4]: the most that are exported
--
-- Answers their numbers.

local most, taken = tonumber(ARGV[4]), {}

-- `holds_key` (nil for dead letters): whether the others with its serial key wait for it; their ids
-- have a mark in front, which no id of a message has.
local function keep(lane, record, holds_key)
    local id = (holds_key and '\1' or '') .. id_of(record)
    ids.finish(record, false)
    call('HSET', keys.moving, record.mid, messages.encode(record))
    call('HSET', keys.moving_ids, record.mid, id)
    taken[#taken + 1] = record.mid
    messages.take_out(lane, record)
end

local function take(lane, mid)
    local record = messages.read(mid)
    if record then
        local holds_key = record.serial ~= NO and messages.holds_key(record)
        messages.end_for_good(lane, record)
        keep(lane, record, holds_key)
        messages.free_key(lane, messages.line(record), mid)
        lane.removed, shard.removed = lane.removed + 1, shard.removed + 1
    end
end

-- Ready messages in the order in which the other store is to number them: by rank and place, but of
-- those at the front the last place first, because the latest number goes to the front there.
local function next_ready(lane)
    local PLAIN_RANK = 1
    local sorted, from, found = key('z:' .. text(lane.number)), '-', {}
    local listed = plain.peek(lane, most)
    while #found < most do
        local first = call('ZRANGE', sorted, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
        local rank, group = first and messages.rank_in(first, 1) or PLAIN_RANK, {}
        if not (first or listed) then
            break
        end
        rank = listed and math.min(rank, PLAIN_RANK) or rank
        local to, left = messages.rank_code(rank + 1), most - #found
        local members = rank % 2 == 1
            and call('ZRANGE', sorted, from, '(' .. to, 'BYLEX', 'LIMIT', 0, left)
            or call('ZRANGE', sorted, '(' .. to, from, 'BYLEX', 'REV', 'LIMIT', 0, left)
        for _, member in ipairs(members) do
            group[#group + 1] = messages.read(messages.number_in(member))
        end
        if rank == PLAIN_RANK then
            for _, mid in ipairs(listed or {}) do
                group[#group + 1] = messages.read(mid)
            end
            table.sort(group, messages.goes_before)
            listed = nil
        end
        for n = 1, math.min(#group, left) do
            found[#found + 1] = group[n].mid
        end
        from = '[' .. to
    end
    return found
end

if ARGV[3] == '' then
    for _, mid in ipairs(call('ZRANGE', keys.dead, 0, most - 1)) do
        local record = messages.read(tonumber(mid))
        if record then
            local death = record.death
            messages.end_death(record)
            record.death = death
            keep({}, record)
        end
    end
else
    local lane = lanes.find(ARGV[3])
    if lane then
        for _, mid in ipairs(next_ready(lane)) do
            take(lane, mid)
        end
        for _, member in ipairs(#taken < most and call('ZRANGE', key('a:' .. text(lane.number)), 0,
            most - #taken - 1) or {}) do
            take(lane, messages.number_in(member))
        end
        lanes.place(lane)
    end
end
save(true)
return taken
