-- The plain messages of a lane, in the order of their arrival: the first are in a list of numbers,
-- the last few in the lane's record (`latest`), from where they move to the list together. Most
-- lanes never need the list, and a command for each message would be the largest cost.

local plain = part(function(plain)
    -- lanes with more messages (`arrived`) than their records have room for
    local arrivals = {}
    -- numbers and records that are not written yet, flat, and how those end: the time of the call
    local records, stamp = {}, ''

    -- There are some at the beginning of a call after one that ended in an error.
    local function forget()
        for n = 1, #arrivals do
            arrivals[n].arrived = false
        end
        clear(arrivals)
        clear(records)
    end

    -- The numbers in a record from one position to another.
    local function latest_of(latest, first, last, found)
        for place = first, min(last, #latest / 7) do
            found[#found + 1] = unpack_from('>I7', latest, 7 * place - 6)
        end
        return found
    end

    -- Move the numbers of a full record to the lane's list, and those that arrived later.
    local function move_to_list(lane, arrived)
        local mids = latest_of(lane.latest, 1, INLINE, {})
        local before = #mids
        for n = 1, #arrived do
            mids[before + n] = arrived[n]
        end
        call_many('RPUSH', lanes.key_of('q', lane), mids, 1)
        lane.listed, lane.latest = lane.listed + #mids, ''
    end

    -- Append a message to the lane. `record`: without the time.
    function plain.append(lane, mid, record, size)
        local mids, place = lane.arrived, #records
        if place == 0 then
            at_next_begin(forget)
            stamp = sortable(shard.now)
        end
        records[place + 1], records[place + 2] = mid, record .. stamp
        lane.bytes, shard.bytes, shard.waiting = lane.bytes + size, shard.bytes + size,
            shard.waiting + 1
        lanes.touch(lane)
        if mids then
            mids[#mids + 1] = mid
        -- Lanes that get the same messages, as those of subscriptions, must not all be full at the
        -- same time.
        elseif #lane.latest < 7 * (INLINE - lane.number % 8) then
            lane.latest = lane.latest .. sortable(mid)
        else
            lane.arrived = { mid }
            arrivals[#arrivals + 1] = lane
        end
        lane.ready = lane.ready + 1
    end

    function plain.write()
        if records[1] then
            call_many('HSET', keys.m, records, 2)
            for n = 1, #arrivals do
                move_to_list(arrivals[n], arrivals[n].arrived)
            end
            forget()
        end
    end

    -- Return the first numbers, and leave them in the lane.
    function plain.peek(lane, most)
        local found = {}
        plain.write()
        if lane.listed > 0 and most > 0 then
            found = call('LRANGE', lanes.key_of('q', lane), 0, most - 1)
            for n = 1, #found do
                found[n] = tonumber(found[n])
            end
        end
        return latest_of(lane.latest, 1, most - #found, found)
    end

    -- Take the first numbers out of the lane, and append them to a list.
    function plain.take(lane, most, mids)
        local rest = most
        if lane.listed > 0 then
            local found, before = call('LPOP', lanes.key_of('q', lane), most) or {}, #mids
            for n = 1, #found do
                mids[before + n] = tonumber(found[n])
            end
            -- Fewer than wanted: the list is empty now, also in a store that lost some.
            lane.listed = #found < most and 0 or lane.listed - #found
            rest = most - #found
        end
        if rest > 0 and lane.latest ~= '' then
            latest_of(lane.latest, 1, rest, mids)
            lane.latest = sub(lane.latest, 7 * rest + 1)
        end
    end

    function plain.drop(lane, taken)
        local listed = min(taken, lane.listed)
        if listed > 0 then
            call('LTRIM', lanes.key_of('q', lane), listed, -1)
            lane.listed = lane.listed - listed
        end
        lane.latest = sub(lane.latest, 7 * (taken - listed) + 1)
    end

    function plain.unlist(lane, mid)
        local wanted = sortable(mid)
        for at = 1, #lane.latest, 7 do
            if sub(lane.latest, at, at + 6) == wanted then
                lane.latest = sub(lane.latest, 1, at - 1) .. sub(lane.latest, at + 7)
                return
            end
        end
        lane.listed = lane.listed - call('LREM', lanes.key_of('q', lane), 1, mid)
    end
end)
