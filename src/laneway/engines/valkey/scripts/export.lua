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
        for _, mid in ipairs(plain.peek(lane, most)) do
            take(lane, mid)
        end
        for _, kind in ipairs({ 'z:', 'a:' }) do
            for _, member in ipairs(call('ZRANGE', key(kind .. text(lane.number)), 0,
                most - #taken - 1)) do
                if #taken < most then
                    take(lane, messages.number_in(member))
                end
            end
        end
        lanes.place(lane)
    end
end
save(true)
return taken
