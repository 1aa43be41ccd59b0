-- Messages: their records (hash `m`, by number), and where they wait.
--
-- States, the keys that have a message of that state, and the states that may follow:
--
--   READY    list q:N or the lane's `latest`, if plain; else z:N    → leased, DELAYED, DEAD, gone
--   DELAYED  a:N, and an event in `due`                             → READY, PARKED, DEAD, gone
--   PARKED   a:N, and k:LINE of its serial key                      → READY, DEAD, gone
--   leased   hash l; the record's state stays READY                 → any of these, gone (acked)
--   DEAD     dead, dead:TOPIC, dead_topics, and an event in `due`   → READY, DELAYED, gone
--
-- A record begins with "P" for plain messages, which are most of a backlog (priority 0, due at
-- once, nothing but a body, key and headers), with "p" for plain ones whose id is sticky, and with
-- "R" for all others. A plain record ends with the time at which it was published.
--
-- `o:N` has the messages of a lane whose sequence numbers may be out of the lane's order, for the
-- cursors. Of topics in buckets, `t:TOPIC` has all messages that wait ("r", "d", "p") or are leased
-- ("l"), and `folded` the topics.
--
-- uses: fairness, rules, lanes, plain, results, ids

local READY, DELAYED, PARKED, DEAD = 0, 1, 2, 3
local NO, HOLD, YIELD = 0, 1, 2 -- serial
local LEASES_END, DUE, EXPIRES, RETENTION_ENDS = '1', '2', '3', '4'
local HISTORY = 20              -- troubles that a message's history has at most
local FOREVER = -1              -- dedupe
local STICKY = 24 * 3600 * SECOND
-- minus the number: the position of messages `at_front`, the last one first
local FRONT = 2 ^ 53

local REASONS = {
    full = 'dropped: the backlog was full',
    expired = 'expired: its ttl ended before it was delivered',
    refused = 'the handler refused it',
    unhandled = 'no handler: no worker had a handler for it within on_unhandled',
    started = 'lease ran out after its start was recorded',
    retries = 'retries used up',
}

local ids -- defined in ids.lua, which uses `messages`

local messages = part(function(messages)
    local known, changed

    at_begin(function()
        known, changed = {}, {}
    end)

    local FIELDS = {
        'topic', 'lane', 'state', 'rank', 'seq', 'since', 'published', 'expires', 'serial', 'key',
            'id', 'mkey', 'headers', 'attempts',
        'deliveries', 'suspect', 'joined', 'parts', 'parts_bytes', 'sticky', 'unhandled_from',
            'unhandled_times', 'mirrored', 'death', 'history',
    }
    local PLAIN_TOPIC, PLAIN_KEY, PLAIN_ID, PLAIN_HEADERS, PLAIN_STICKY = 1, 2, 3, 4, 5

    function messages.new(fields)
        fields.state, fields.attempts, fields.deliveries, fields.suspect = READY, 0, 0, false
        fields.joined, fields.parts, fields.parts_bytes = 0, 0, 0
        fields.unhandled_from, fields.unhandled_times, fields.mirrored, fields.death,
            fields.history = 0, 0, false, false, {}
        known[fields.mid] = fields
        return fields
    end

    local function decode_plain(mid, stored)
        local size, published = unpack_from('>I2', stored, 2), unpack_from('>I7', stored,
            #stored - 6)
        local meta = values_of(string.sub(stored, 4, 3 + size))
        return messages.new({
            mid = mid, plain = true, topic = meta[PLAIN_TOPIC], lane = meta[PLAIN_TOPIC], rank = 1,
                seq = mid, since = published,
            published = published, expires = false, serial = NO, key = meta[PLAIN_KEY] or false,
                id = meta[PLAIN_ID] or false, mkey = false,
            headers = meta[PLAIN_HEADERS] or false, sticky = meta[PLAIN_STICKY] or false, body =
                string.sub(stored, 4 + size, -8),
        })
    end

    function messages.decode(mid, stored)
        if string.byte(stored) ~= 82 then -- "R"
            return decode_plain(mid, stored)
        end
        local size = unpack_from('>I4', stored, 2)
        local values = values_of(string.sub(stored, 6, 5 + size))
        local record = { mid = mid, body = string.sub(stored, 6 + size) }
        for n = 1, #FIELDS do
            record[FIELDS[n]] = values[n]
        end
        known[mid] = record
        return record
    end

    -- The topic of a stored record, which costs less than all of it.
    function messages.topic_of(stored)
        if string.byte(stored) ~= 82 then -- "R"
            local size = unpack_from('>I2', stored, 2)
            return values_of(string.sub(stored, 4, 3 + size))[PLAIN_TOPIC]
        end
        local size = unpack_from('>I4', stored, 2)
        return values_of(string.sub(stored, 6, 5 + size))[1]
    end

    function messages.encode(record)
        local values = {}
        for n = 1, #FIELDS do
            values[n] = record[FIELDS[n]]
        end
        local meta = packed(values)
        return 'R' .. pack('>I4', #meta) .. meta .. record.body
    end

    function messages.read(mid)
        local record = known[mid]
        if record == nil then
            local stored = call('HGET', keys.m, mid)
            record = stored and messages.decode(mid, stored)
            known[mid] = record
        end
        return record
    end

    -- The message of a record that was read already.
    function messages.take(mid, stored)
        return known[mid] or messages.decode(mid, stored)
    end

    -- The record is written at the end of the call.
    function messages.touch(record)
        changed[record] = true
    end

    function messages.save()
        local written = {}
        for record in pairs(changed) do
            if known[record.mid] == record then
                written[#written + 1] = record.mid
                written[#written + 1] = messages.encode(record)
            end
        end
        call_many('HSET', keys.m, written, 2)
        changed, known = {}, {}
    end

    function messages.size(record)
        return #record.body + record.parts_bytes
    end

    function messages.line(record)
        return record.serial ~= NO and record.topic .. '\0' .. record.key or false
    end

    -- The position among messages of equal rank: by since; `at_front`, the last one first.
    function messages.position(record)
        return record.rank % 2 == 1 and record.since or FRONT - record.seq
    end

    local function place_of(record)
        return pack('>I2I7I7I7', record.rank + 512, messages.position(record), record.seq,
            record.mid)
    end

    local function place_aside(record, state)
        return state .. pack('>I2I7I7I7', record.rank + 512, record.since, record.seq, record.mid)
    end

    local function goes_before(one, other)
        if one.rank ~= other.rank then
            return one.rank < other.rank
        end
        local here, there = messages.position(one), messages.position(other)
        if here ~= there then
            return here < there
        end
        return one.seq < other.seq
    end

    local function of_lane(kind, lane)
        return key(kind .. ':' .. text(lane.number))
    end

    -- Update `t:TOPIC` of a topic in a bucket. `state`: the letter; false: the message is removed.
    function messages.mirror(lane, record, state)
        if not (lane.is_bucket or record.mirrored) then
            return
        end
        local topics_own = key('t:' .. record.topic)
        if record.mirrored then
            call('ZREM', topics_own, record.mirrored)
        end
        record.mirrored = state and (state == 'r' and 'r' .. place_of(record) or place_aside(record,
            state))
        if record.mirrored then
            call('ZADD', topics_own, 0, record.mirrored)
            call('ZADD', keys.folded, 0, record.topic)
        elseif call('EXISTS', topics_own) == 0 then
            call('ZREM', keys.folded, record.topic)
            call('HDEL', keys.folded_bytes, record.topic)
        end
        changed[record] = true
    end

    local function resize(lane, record, by)
        lane.bytes, shard.bytes = lane.bytes + by, shard.bytes + by
        if lane.is_bucket then
            call('HINCRBY', keys.folded_bytes, record.topic, by)
        end
    end
    messages.resize = resize

    -- Update `o:N`. Messages in sequence are not in it: the lane's order is enough for them.
    local function index_out_of_sequence(command, lane, record)
        if record.rank % 2 == 0 or record.seq ~= record.mid or record.since ~= record.published
            or record.deliveries > 0 then
            local member = pack('>I2', record.rank + 512) .. (record.deliveries == 0 and 'u' or 's')
                .. pack('>I7I7', record.seq, record.mid)
            if command == 'ZADD' then
                call('ZADD', of_lane('o', lane), 0, member)
            else
                call('ZREM', of_lane('o', lane), member)
            end
        end
    end

    local function into_order(lane, record)
        record.state = READY
        lane.ready, lane.sorted = lane.ready + 1, lane.sorted + 1
        call('ZADD', of_lane('z', lane), 0, place_of(record))
        messages.mirror(lane, record, 'r')
        changed[record] = true
    end

    local function out_of_order(lane, record)
        lane.ready = lane.ready - 1
        if record.plain then
            plain.unlist(lane, record.mid)
        else
            lane.sorted = lane.sorted - 1
            call('ZREM', of_lane('z', lane), place_of(record))
        end
    end

    local function park(lane, record)
        record.state = PARKED
        lane.parked = lane.parked + 1
        call('ZADD', key('k:' .. messages.line(record)), 0, place_of(record))
        call('ZADD', of_lane('a', lane), 0, place_aside(record, 'p'))
        messages.mirror(lane, record, 'p')
        changed[record] = true
    end

    local function unpark(lane, record)
        lane.parked = lane.parked - 1
        call('ZREM', key('k:' .. messages.line(record)), place_of(record))
        call('ZREM', of_lane('a', lane), place_aside(record, 'p'))
    end

    -- Waiting

    -- Let the message wait: delayed, if its `since` is in the future, else it arrives. New messages
    -- of its merge key join it, unless `collects` is false.
    function messages.begin_waiting(lane, record, collects)
        record.plain = nil
        record.lane = lane.name
        resize(lane, record, messages.size(record))
        shard.waiting = shard.waiting + 1
        if record.expires then
            call('ZADD', keys.due, record.expires, EXPIRES .. sortable(record.mid))
        end
        if record.mkey and collects ~= false then
            call('HSET', keys.merge, record.topic .. '\0' .. record.mkey, record.mid)
        end
        index_out_of_sequence('ZADD', lane, record)
        if record.since > shard.now then
            record.state = DELAYED
            lane.delayed = lane.delayed + 1
            call('ZADD', keys.due, record.since, DUE .. sortable(record.mid))
            call('ZADD', of_lane('a', lane), 0, place_aside(record, 'd'))
            messages.mirror(lane, record, 'd')
        else
            messages.arrive(lane, record)
        end
        changed[record] = true
        lanes.touch(lane)
    end

    -- The message no longer waits. It was taken out of its lane's order already.
    function messages.leave(lane, record)
        resize(lane, record, -messages.size(record))
        shard.waiting = shard.waiting - 1
        if record.expires then
            call('ZREM', keys.due, EXPIRES .. sortable(record.mid))
        end
        if record.mkey then
            local where = record.topic .. '\0' .. record.mkey
            if tonumber(call('HGET', keys.merge, where)) == record.mid then
                call('HDEL', keys.merge, where)
            end
        end
        if not record.plain then
            index_out_of_sequence('ZREM', lane, record)
        end
        lanes.touch(lane)
    end

    -- Remove a waiting message from all indexes. The caller frees its serial key.
    function messages.end_waiting(lane, record)
        messages.leave(lane, record)
        if record.state == DELAYED then
            messages.end_delay(lane, record)
        elseif record.state == PARKED then
            unpark(lane, record)
        else
            out_of_order(lane, record)
        end
    end

    function messages.end_delay(lane, record)
        lane.delayed = lane.delayed - 1
        call('ZREM', keys.due, DUE .. sortable(record.mid))
        call('ZREM', of_lane('a', lane), place_aside(record, 'd'))
    end

    -- Whether the message is in the index of its state.
    function messages.is_indexed(lane, record)
        if record.state == READY then
            return call('ZSCORE', of_lane('z', lane), place_of(record)) ~= false
        end
        return call('ZSCORE', of_lane('a', lane), place_aside(record, record.state == DELAYED
            and 'd' or 'p')) ~= false
    end

    local function holder(line)
        local stored = call('HGET', keys.keys, line)
        if stored then
            return values_of(stored)
        end
    end

    function messages.holds_key(record)
        local mid, is_held = holder(messages.line(record))
        return mid == record.mid and is_held
    end

    function messages.set_holder(line, mid, is_held)
        call('HSET', keys.keys, line, packed(mid, is_held))
    end

    -- The message becomes ready, or is parked behind the message that has its serial key.
    function messages.arrive(lane, record)
        local line = messages.line(record)
        if line then
            local head, is_held = holder(line)
            if not head then
                messages.set_holder(line, record.mid, false)
            elseif head ~= record.mid then
                local other = messages.read(head)
                if is_held or (other and not goes_before(record, other)) then
                    park(lane, record)
                    return
                end
                if other then -- it is overtaken, because the key was free
                    out_of_order(lane, other)
                    park(lane, other)
                end
                messages.set_holder(line, record.mid, false)
            end
        end
        into_order(lane, record)
    end

    -- The message no longer has the serial key: the first parked one becomes ready. `line` may be
    -- false.
    function messages.free_key(lane, line, mid)
        if not line or holder(line) ~= mid then
            return
        end
        local first = call('ZRANGE', key('k:' .. line), 0, 0)[1]
        local record = first and messages.read(unpack_from('>I7', first, 17))
        if not record then
            call('HDEL', keys.keys, line)
            return
        end
        unpark(lane, record)
        into_order(lane, record)
        messages.set_holder(line, record.mid, false)
        lanes.touch(lane)
    end

    -- The end

    function messages.remove(lane, record)
        messages.take_out(lane, record)
        if record.parts > 0 then
            call('DEL', key('b:' .. text(record.mid)), key('w:' .. text(record.mid)))
        end
        if record.joined > 0 then
            call('DEL', key('j:' .. text(record.mid)))
        end
    end

    -- Delete the record, but not the lists that belong to it.
    function messages.take_out(lane, record)
        call('HDEL', keys.m, record.mid)
        if record.mirrored then
            messages.mirror(lane, record, false)
        end
        known[record.mid], changed[record] = false, nil
    end

    -- A message that neither waits nor is leased becomes a dead letter.
    function messages.bury(lane, record, reason, failure)
        shard.deaths, shard.dead = shard.deaths + 1, shard.dead + 1
        local ends = shard.now + rules.of(record.topic).dead_ttl
        record.plain = nil
        -- a dead letter belongs to its topic, because lanes are deleted
        record.state, record.lane = DEAD, false
        record.death = { shard.deaths, shard.now, ends, reason, failure or false }
        messages.mirror(lane, record, false)
        call('ZADD', keys.dead, shard.deaths, record.mid)
        call('ZADD', key('dead:' .. record.topic), shard.deaths, record.mid)
        call('ZADD', keys.dead_topics, 0, record.topic)
        call('ZADD', keys.due, ends, RETENTION_ENDS .. sortable(record.mid))
        changed[record] = true
        results.write_end(record, reason == REASONS.expired and 'expired' or 'dead', reason)
    end

    -- The message is no longer a dead letter.
    function messages.end_death(record)
        local of_topic = key('dead:' .. record.topic)
        call('ZREM', keys.due, RETENTION_ENDS .. sortable(record.mid))
        call('ZREM', keys.dead, record.mid)
        call('ZREM', of_topic, record.mid)
        if call('EXISTS', of_topic) == 0 then
            call('ZREM', keys.dead_topics, record.topic)
        end
        record.death = false
        shard.dead = shard.dead - 1
    end

    -- The ttl of a message that no longer waits is over.
    function messages.expire(lane, record)
        lane.expired, shard.expired = lane.expired + 1, shard.expired + 1
        if rules.of(record.topic).drop_expired then
            results.write_end(record, 'expired', REASONS.expired)
            ids.finish(record, false)
            messages.remove(lane, record)
        else
            messages.bury(lane, record, REASONS.expired)
        end
        messages.free_key(lane, messages.line(record), record.mid)
    end

    function messages.forget_dead(record)
        messages.end_death(record)
        ids.finish(record, false)
        messages.remove({}, record)
    end

    function messages.add_history(record, what, failure)
        record.history[#record.history + 1] = { shard.now, what, failure or false }
        if #record.history > HISTORY then
            table.remove(record.history, 1)
        end
        changed[record] = true
    end
end)
