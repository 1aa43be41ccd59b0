-- One plain message that arrives by itself in a lane with ready messages; in one without, see
-- direct.lua. It changes counts of the lane and counters of the shard, so the call reads and writes
-- only these records: `begin` and `save` would cost three times as much as all the rest.
--
-- uses: fairness, groups, recent, tallies, lanes, plain, direct

local single = part(function(single)
    local AT = {}
    for n = 1, #COUNTERS do
        AT[COUNTERS[n]] = n
    end
    local LAYOUT_AT, NONCE_AT, SHARDS_AT, VERSION_AT, NOW_AT, SEQ_AT, WAITING_AT, BYTES_AT,
        PUBLISHED_AT, MARKED_AT, COPYING_AT, LIMIT_AT, BYTES_LIMIT_AT, TIER_QUEUES_AT = AT.layout,
        AT.nonce, AT.shards, AT.version, AT.now, AT.seq, AT.waiting, AT.bytes, AT.published,
        AT.marked, AT.copying, AT.max_backlog, AT.max_backlog_bytes, AT.tier_queues

    -- The counters that this function wrote last: often nobody else has called since; and packed
    -- ones: those before and between the ones that it changes, and behind them.
    local written, counters, before_now, before_waiting, before_published, tail
    local NUMBER, SIGNED = '>Bi8', 211 -- MessagePack's mark of a number of 8 bytes
    local NUMBERS = NUMBER .. 'Bi8'

    local function read_counters()
        local stored = run('GET', keys.shard)
        if stored and stored ~= written then
            counters, before_now = { values_of(stored) }, nil
        end
        written = nil -- `counters` may change from now on
        return stored and counters, stored
    end

    local function pack_rest()
        before_now = packed(unpack(counters, 1, NOW_AT - 1))
        before_waiting = packed(unpack(counters, SEQ_AT + 1, WAITING_AT - 1))
        before_published = packed(unpack(counters, BYTES_AT + 1, PUBLISHED_AT - 1))
        tail = packed(unpack(counters, PUBLISHED_AT + 1, #COUNTERS))
    end

    -- Whether a lane in which so many messages wait moves in the top lists. `at`: where the rest of
    -- its record begins.
    local function changes_class(stored, at, ready, waiting)
        local big, old = unpack_from(lanes.CLASSES, stored, at)
        if waiting < 32 then
            return big > 0
        end
        return fairness.size_class(waiting) ~= big or (old == 0 and ready >= 32)
    end

    -- Returns the message's number; nil: nothing was changed, and the call needs all the rest. Then
    -- also the records of the counters and of the lane, as far as they were read.
    function single.put(version, topic, message)
        local values, record_of_counters = read_counters()
        if not values or values[LAYOUT_AT] ~= LAYOUT or values[VERSION_AT] ~= version
            or values[MARKED_AT] ~= 0 or values[COPYING_AT] ~= 0
            or values[LIMIT_AT] or values[BYTES_LIMIT_AT] then
            return nil, record_of_counters
        end
        local stored = run('HGET', keys.lanes, topic)
        if not stored then
            return direct.put(version, topic, message, values, stored), record_of_counters, stored
        end
        local place, number, ready, delayed, parked, leased, listed, bytes, published, delivered,
            done, its_queue, wake, vt, seen, lately, before, sorted, latest, rest = unpack_from(
            lanes.HEAD, stored)
        if place == IDLE then
            return direct.put(version, topic, message, values, stored), record_of_counters, stored
        elseif ready == 0 or #latest >= plain.room_in(number)
            or changes_class(stored, rest, ready + 1, ready + 1 + delayed + parked) then
            return nil, record_of_counters, stored
        end
        if not before_now then
            pack_rest()
        end
        local now, mid = ARGV[1] ~= '' and tonumber(ARGV[1]), values[SEQ_AT] + 1
        if now then
            now = max(now, values[NOW_AT])
        else
            local time = run('TIME')
            now = max(time[1] * 1000000 + time[2], values[NOW_AT])
            mid = max(mid, least_number(now, values[SHARDS_AT]) + 1)
        end
        local size = #message - 3 - unpack_from('>I2', message, 2)
        local waiting, in_all, accepted = values[WAITING_AT] + 1, values[BYTES_AT] + size,
            values[PUBLISHED_AT] + 1
        values[NOW_AT], values[SEQ_AT], values[WAITING_AT], values[BYTES_AT], values[PUBLISHED_AT] =
            now, mid, waiting, in_all, accepted
        latest = latest .. sortable(mid)
        run('HSET', keys.m, mid, message .. sortable(now))
        run('HSET', keys.lanes, topic, pack(lanes.HEAD, place, number, ready + 1, delayed, parked,
            leased, listed, bytes + size, published + 1, delivered, done, its_queue, wake, vt, seen,
            lately, before, sorted, #latest, latest) .. sub(stored, rest))
        local tier_queue = values[TIER_QUEUES_AT][its_queue % IN_GROUP]
        tallies.count_one(topic, tier_queue[2], values[NONCE_AT], version, now)
        if (published + 1) % 32 == 0 then
            recent.arrived(topic, published + 1, 1)
            recent.save(now)
        end
        local record = before_now .. pack(NUMBERS, SIGNED, now, SIGNED, mid) .. before_waiting
            .. pack(NUMBERS, SIGNED, waiting, SIGNED, in_all) .. before_published
            .. pack(NUMBER, SIGNED, accepted) .. tail
        run('SET', keys.shard, record)
        written = record
        return mid
    end
end)
