-- Messages: their records (hash `m`, by number), and where they wait.
--
-- States, the keys that have a message of that state, and the states that may follow:
--
--   READY    list q:N or the lane's `latest`, if plain; else z:N    → leased, DELAYED, DEAD, gone
--   DELAYED  a:N twice, by rank and by time; its lane in `timers`   → READY, PARKED, DEAD, gone
--   PARKED   a:N, and k:LINE of its serial key or p:SLOT                     → READY, DEAD, gone
--   leased   hash l; the record's state stays READY                 → any of these, gone (acked)
--   DEAD     dead, dead:TOPIC, dead_topics, and an event in `due`   → READY, DELAYED, gone
--
-- A record begins with "P" for plain messages, which are most of a backlog (priority 0, due at
-- once, nothing but a body, key and headers), with "p" for plain ones with an id of the user's own,
-- and with "M" for all others. A plain record has the message's content and ends with the time at
-- which it was published.
--
-- Members of z:N, a:N, k:LINE, o:N and t:TOPIC have the code of the message's rank, which is
-- -2 · priority, + 1 unless it is `at_front`: 2 bytes near 0, else 8. They end with its number.
--
-- `o:N` has the messages of a lane whose sequence numbers may be out of the lane's order, for the
-- cursors. Of topics in buckets, `t:TOPIC` has all messages that wait ("r", "d", "p") or are leased
-- ("l"), and `folded` the topics.

local READY, DELAYED, PARKED, DEAD = 0, 1, 2, 3
local NO, HOLD, YIELD = 0, 1, 2 -- serial
local RICH, PLAIN = 77, 80      -- the bytes with which records begin: "M", "P"
local EXPIRES, RETENTION_ENDS = '1', '2'
local FOREVER = -1              -- dedupe
-- minus the number: the position of messages `at_front`, the last one first
local FRONT = 2 ^ 53
local RANK_0, NEAR_FROM, NEAR_TO = 512, 256, 1023 -- ranks near 0: rank + 512 is between these
-- The first bytes of other codes, and what is added to ranks below 0 there. Numbers are exact up to
-- 2^53, which bounds priorities (`MAX_PRIORITY` in codec.py).
local FAR_LOW, FAR_HIGH, FAR_0 = 0, 4, 2 ^ 53

local REASONS = {
    full = 'dropped: the backlog was full',
    expired = 'expired: its ttl ended before it was delivered',
    refused = 'the handler refused it',
    unhandled = 'no handler: no worker had a handler for it within on_unhandled',
    started = 'lease ran out after its start was recorded',
    retries = 'retries used up',
    once = 'delivered at most once, and its worker reported no result',
}

local ids -- defined in ids.lua, which uses `messages`

local messages = part(function(messages)
    local LARGE = 65536 -- bytes: copying these takes as long as the rest of what a message needs
    local HISTORY = 20 -- troubles that a message's history has at most
    local known = {}   -- by number: the decoded record; false: none
    local changed = {} -- the decoded ones that are written at the end of the call
    -- by topic: how many more dead letters it has; false: they are counted again
    local letters = {}
    local taken = 0       -- of the tables below

    local function reset()
        known, changed, letters, taken = {}, {}, {}, 0
    end

    -- A record is a head of fixed width, the fields that few messages have, and the content. The
    -- second part has, by name, those fields that are not as usual; the lane, if it is not named as
    -- the topic; and a rank that is not near 0.
    local HEAD = '>BBI2I8I8I8I8I4'
    local HEAD_BYTES = 40
    local HEAD_AND_RARE = HEAD .. 'c0'
    local USUAL = { attempts = 0, deliveries = 0, suspect = false, joined = 0, parts = 0,
        parts_bytes = 0, unhandled_from = 0, unhandled_times = 0, mirrored = false, death = false,
        history = false }

    local function is_near(rank)
        local code = rank + RANK_0
        return code >= NEAR_FROM and code <= NEAR_TO
    end

    local RECORD = {
        __index = USUAL,
        __newindex = function(record, field, value)
            record.is_rare = true
            rawset(record, field, value)
        end,
    }

    -- Tables of messages are used again in later calls, because creating them is slow; those with
    -- rare fields are not.
    local POOL = 1100
    local pool = {}

    -- `stored`, `content_at` and `content_to`: where the content is, unless `content` has it.
    local function new_table()
        if taken == 0 then
            at_next_begin(reset)
        end
        taken = taken + 1
        local record = pool[taken]
        if not record or record.is_rare then
            record = setmetatable({ mid = 0, state = READY, rank = 0, seq = 0, since = 0,
                published = 0, expires = false, serial = NO, topic = '', lane = '', key = false,
                id = false, mkey = false, headers = false, sticky = false, plain = false,
                size = 0, content = false, stored = '', content_at = 0, content_to = -1,
                is_rare = false }, RECORD)
            pool[taken] = taken <= POOL and record or nil
        end
        return record
    end

    -- A message that is not stored yet. `from`: a draft, or what else has its content and names.
    function messages.new(mid, from, since, published, expires, serial)
        local record = new_table()
        record.mid, record.state, record.rank, record.seq, record.since, record.published,
            record.expires, record.serial, record.topic, record.lane, record.key, record.id,
            record.mkey, record.headers, record.sticky, record.plain, record.size, record.content
            = mid, READY, from.rank, mid, since, published,
            expires, serial, from.topic, from.topic, from.key, from.id,
            from.mkey, from.headers, from.sticky or false, false, from.size, from.content
        known[mid] = record
        return record
    end

    -- The cost in headers (false or nil: none), as `headers.cost` in Python reads it.
    function messages.cost_in(headers)
        local written = headers and headers['laneway-cost']
        local cost = written and string.match(written, '^%d+$') and #written < 20
            and tonumber(written) or 1
        return cost >= 1 and cost <= MOST_COST and cost or 1
    end

    -- Decode the head. Returns where the content begins, and where the rare fields do.
    local function decode_head(record, mid, stored)
        if byte(stored) ~= RICH then
            local published = unpack_from('>I7', stored, #stored - 6)
            record.state, record.serial, record.rank, record.seq, record.since, record.published,
                record.expires, record.plain, record.content_to = READY, NO, 1, mid, published,
                published, false, true, -8
            return 2, 2
        end
        local _, flags, rank, seq, since, published, expires, rare = unpack_from(HEAD, stored)
        record.state, record.serial, record.rank, record.seq, record.since, record.published,
            record.expires, record.plain, record.content_to = flags % 4, floor(flags / 4), rank
            - RANK_0, seq, since, published, expires > 0 and expires, false, -1
        return 1 + HEAD_BYTES + rare, 1 + HEAD_BYTES
    end

    function messages.decode(mid, stored)
        local record = new_table()
        local at, rare_at = decode_head(record, mid, stored)
        -- behind the mark of their list, because a table costs more than all of them
        local _, topic, key_of, id, headers, sticky, mkey = unpack_limit(stored, 6, at + 2)
        record.mid, record.topic, record.key, record.id, record.headers, record.sticky,
            record.mkey, record.stored, record.content_at, record.content = mid, topic, key_of
            or false, id or false, headers or false, sticky, mkey or false, stored, at, false
        record.lane = record.state ~= DEAD and topic
        record.size = #stored + record.content_to - at - unpack_from('>I2', stored, at)
        known[mid] = record
        if at > rare_at then
            for field, value in pairs(values_of(sub(stored, rare_at, at - 1))) do
                record[field] = value
            end
        end
        return record
    end

    local function rare_of(record)
        local has_lane = record.lane and record.lane ~= record.topic
        if not (record.is_rare or has_lane) and is_near(record.rank) then
            return ''
        end
        local rare = unusual_in(record, USUAL)
        rare.lane, rare.rank = has_lane and record.lane or nil, not is_near(record.rank)
            and record.rank or nil
        return next(rare) ~= nil and packed(rare) or ''
    end

    function messages.encode(record)
        local rare, rank = rare_of(record), record.rank
        rank = is_near(rank) and rank + RANK_0 or 0 -- 0: it follows the rare fields
        -- `pack` copies each byte alone, and contents may be large
        return pack(HEAD_AND_RARE, RICH, record.state + 4 * record.serial, rank, record.seq,
            record.since, record.published, record.expires or 0, #rare, rare)
            .. whole_content(record)
    end

    -- Take the body and headers of a draft or a message with the same topic and merge key.
    function messages.set_content(record, from, sticky)
        local is_same = from.key == record.key and from.id == record.id and from.sticky == sticky
        record.content = is_same and whole_content(from) or content_of(record.topic, record.key,
            record.id, from.headers, sticky, record.mkey, body_of(from))
        record.headers, record.size, record.sticky = from.headers, from.size, sticky
    end

    function messages.make_sticky(record)
        if not record.sticky then
            messages.set_content(record, record, true)
        end
    end

    function messages.read(mid)
        local record = known[mid]
        if record == nil then
            at_next_begin(reset)
            local stored = call('HGET', keys.m, mid)
            record = stored and messages.decode(mid, stored)
            known[mid] = record
        end
        return record
    end

    function messages.load(mids)
        at_next_begin(reset)
        local wanted = unknown_in(known, mids)
        for n, stored in ipairs(read_many(keys.m, wanted)) do
            if stored then
                messages.decode(wanted[n], stored)
            end
        end
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
        if next(known) == nil and next(letters) == nil then
            return
        end
        local written, topics = {}, {}
        for record in pairs(changed) do
            if known[record.mid] == record then
                written[#written + 1] = record.mid
                written[#written + 1] = messages.encode(record)
            end
        end
        call_many('HSET', keys.m, written, 2)
        for topic in pairs(letters) do
            topics[#topics + 1] = topic
        end
        -- change the numbers of topics' dead letters by what this call has counted
        for n, score in ipairs(read_many(keys['top:dead'], topics, call, 'ZMSCORE')) do
            local more = letters[topics[n]]
            local number = more and (tonumber(score) or 0) + more
                or call('ZCARD', key('dead:' .. topics[n]))
            writes.set_member(keys['top:dead'], topics[n], number > 0 and number)
        end
        known, changed, letters = {}, {}, {}
        for n = 1, min(taken, POOL) do -- bodies may be large
            pool[n].stored, pool[n].content = '', false
        end
    end

    function messages.size(record)
        return record.size + record.parts_bytes
    end

    -- As how many messages a body of this size counts where a call handles a limited number.
    function messages.weight(size)
        return 1 + floor(size / LARGE)
    end

    function messages.line(record)
        return record.serial ~= NO and record.topic .. '\0' .. record.key or false
    end

    -- The code of a rank: codes are in the order of ranks.
    function messages.rank_code(rank)
        if is_near(rank) then
            return pack('>I2', rank + RANK_0)
        end
        if rank < 0 then
            return pack('>BI7', FAR_LOW, rank + FAR_0)
        end
        return pack('>BI7', FAR_HIGH, rank)
    end

    -- The rank whose code begins at a position of a member, and what follows the code.
    function messages.rank_in(member, at)
        local first = byte(member, at)
        if first ~= FAR_LOW and first ~= FAR_HIGH then
            return unpack_from('>I2', member, at) - RANK_0, at + 2
        end
        local far = unpack_from('>I7', member, at + 1)
        return first == FAR_LOW and far - FAR_0 or far, at + 8
    end

    -- The number of the message that a member ends with.
    function messages.number_in(member)
        return (unpack_from('>I7', member, #member - 6))
    end

    -- The member of a message in an order by rank.
    local function member_of(rank, position, seq, mid)
        if is_near(rank) then
            return pack('>I2I7I7I7', rank + RANK_0, position, seq, mid)
        end
        return messages.rank_code(rank) .. pack('>I7I7I7', position, seq, mid)
    end

    -- The position among messages of equal rank: by since; `at_front`, the last one first.
    function messages.position(record)
        return record.rank % 2 == 1 and record.since or FRONT - record.seq
    end

    local function place_of(record)
        return member_of(record.rank, messages.position(record), record.seq, record.mid)
    end
    messages.place_of = place_of

    local function place_aside(record, state)
        return state .. member_of(record.rank, record.since, record.seq, record.mid)
    end

    -- The second member of a delayed message there: in the order of due times.
    local function place_by_time(record)
        return pack('>c1I7I7', 'D', record.since, record.mid)
    end

    function messages.goes_before(one, other)
        if one.rank ~= other.rank then
            return one.rank < other.rank
        end
        local here, there = messages.position(one), messages.position(other)
        if here ~= there then
            return here < there
        end
        return one.seq < other.seq
    end

    -- Update `t:TOPIC` of a topic in a bucket. `state`: the letter; false: the message is removed.
    function messages.mirror(lane, record, state)
        if not (lane.is_bucket or record.mirrored) then
            return
        end
        local topics_own = key('t:' .. record.topic)
        if record.mirrored then
            writes.set_member(topics_own, record.mirrored, false)
        end
        record.mirrored = state and (state == 'r' and 'r' .. place_of(record) or place_aside(record,
            state))
        if record.mirrored then
            writes.set_member(topics_own, record.mirrored, 0)
            writes.set_member(keys.folded, record.topic, 0)
        elseif call('EXISTS', topics_own) == 0 then
            writes.set_member(keys.folded, record.topic, false)
            call('HDEL', keys.folded_bytes, record.topic)
        end
        changed[record] = true
    end

    local function resize(lane, record, by)
        lane.bytes, shard.bytes = lane.bytes + by, shard.bytes + by
        -- Less 0 is -0 in Lua, which Redis 7.0 does not read as an integer.
        if lane.is_bucket and by ~= 0 then
            call('HINCRBY', keys.folded_bytes, record.topic, by)
        end
    end
    messages.resize = resize

    local UNDELIVERED, DELIVERED = 117, 115 -- "u", "s"

    -- Update `o:N`. Messages in sequence are not in it: the lane's order is enough for them.
    local function index_out_of_sequence(lane, score, record)
        local mid, rank, seq, deliveries = record.mid, record.rank, record.seq, record.deliveries
        if rank % 2 == 0 or seq ~= mid or record.since ~= record.published or deliveries > 0 then
            writes.set_member(lanes.key_of('o', lane), messages.rank_code(rank) .. pack('>BI7I7',
                deliveries == 0 and UNDELIVERED or DELIVERED, seq, mid), score)
        end
    end

    local function into_order(lane, record)
        record.state = READY
        lane.ready, lane.sorted = lane.ready + 1, lane.sorted + 1
        writes.set_member(lanes.key_of('z', lane), place_of(record), 0)
        messages.mirror(lane, record, 'r')
        changed[record] = true
    end

    local function out_of_order(lane, record)
        lane.ready = lane.ready - 1
        if record.plain then
            plain.unlist(lane, record.mid)
        else
            lane.sorted = lane.sorted - 1
            writes.set_member(lanes.key_of('z', lane), place_of(record), false)
        end
    end

    -- `parking`: the key of the sorted set that it waits in.
    local function park(lane, record, parking)
        record.state = PARKED
        lane.parked = lane.parked + 1
        writes.set_member(parking, place_of(record), 0)
        writes.set_member(lanes.key_of('a', lane), place_aside(record, 'p'), 0)
        messages.mirror(lane, record, 'p')
        changed[record] = true
    end

    local function unpark(lane, record, parking)
        lane.parked = lane.parked - 1
        writes.set_member(parking, place_of(record), false)
        writes.set_member(lanes.key_of('a', lane), place_aside(record, 'p'), false)
    end
    messages.end_parking = unpark

    -- The key of the messages that are parked behind the message with a serial key.
    local function behind(record)
        return key('k:' .. messages.line(record))
    end

    -- Park a ready message because of the limits of its key.
    function messages.park_ready(lane, record, parking)
        out_of_order(lane, record)
        record.plain, record.lane = false, lane.name
        park(lane, record, parking)
    end

    -- The opposite.
    function messages.unpark_ready(lane, record, parking)
        unpark(lane, record, parking)
        into_order(lane, record)
    end

    -- Waiting

    local function begin_delay(lane, record)
        local timer, aside = lanes.member(lane), lanes.key_of('a', lane)
        local first = lane.delayed > 0 and writes.score(keys.timers, timer)
        if not first or record.since < first then
            writes.set_member(keys.timers, timer, record.since)
        end
        lane.delayed = lane.delayed + 1
        writes.set_member(aside, place_aside(record, 'd'), 0)
        writes.set_member(aside, place_by_time(record), 0)
    end

    -- Let the message wait: delayed, if its `since` is in the future, else it arrives. New messages
    -- of its merge key join it, unless `collects` is false.
    function messages.begin_waiting(lane, record, collects)
        record.plain, record.lane = false, lane.name
        lanes.expect_costs(lane, record.headers)
        resize(lane, record, messages.size(record))
        shard.waiting = shard.waiting + 1
        if record.expires then
            writes.set_member(keys.due, EXPIRES .. sortable(record.mid), record.expires)
        end
        if record.mkey and collects ~= false then
            writes.set_field(keys.merge, record.topic .. '\0' .. record.mkey, record.mid)
        end
        index_out_of_sequence(lane, 0, record)
        if record.since > shard.now then
            record.state = DELAYED
            begin_delay(lane, record)
            messages.mirror(lane, record, 'd')
        else
            messages.arrive(lane, record)
        end
        changed[record] = true
        lanes.touch(lane)
    end

    -- The message no longer waits. It was taken out of its lane's order already.
    function messages.leave(lane, record)
        local mid, mkey = record.mid, record.mkey
        resize(lane, record, -messages.size(record))
        shard.waiting = shard.waiting - 1
        if record.expires then
            writes.set_member(keys.due, EXPIRES .. sortable(mid), false)
        end
        if mkey then
            local where = record.topic .. '\0' .. mkey
            if tonumber(writes.field(keys.merge, where)) == mid then
                writes.set_field(keys.merge, where, false)
            end
        end
        if not record.plain then
            index_out_of_sequence(lane, false, record)
        end
        lanes.touch(lane)
    end

    -- Whether a waiting message would return to its place if it left it: it is neither due, nor
    -- parked because of the limits of its key.
    function messages.stays(record)
        return record.state == READY or (record.state == PARKED and record.serial ~= NO)
            or (record.state == DELAYED and record.since > shard.now)
    end

    -- A message that keeps its place has another content now, and this ttl. `size`: that before.
    function messages.stay(lane, record, size, expires)
        lanes.expect_costs(lane, record.headers)
        resize(lane, record, messages.size(record) - size)
        if expires ~= record.expires then
            writes.set_member(keys.due, EXPIRES .. sortable(record.mid), expires)
            record.expires = expires
        end
    end

    -- Remove a waiting message from all indexes. The caller frees its serial key.
    function messages.end_waiting(lane, record)
        messages.leave(lane, record)
        if record.state == DELAYED then
            messages.end_delay(lane, record)
        elseif record.state == PARKED then
            if record.serial ~= NO then
                unpark(lane, record, behind(record))
            else
                key_limits.unpark(lane, record)
            end
        else
            out_of_order(lane, record)
        end
    end

    -- As `end_waiting`, of a message that will not wait again: the next one of its key may come.
    function messages.end_for_good(lane, record)
        messages.end_waiting(lane, record)
        key_limits.leave(lane, record)
    end

    -- The timer stays while others are delayed: housekeeping moves it to the first of them.
    function messages.end_delay(lane, record)
        lane.delayed = lane.delayed - 1
        if lane.delayed == 0 then
            writes.set_member(keys.timers, lanes.member(lane), false)
        end
        writes.set_member(lanes.key_of('a', lane), place_aside(record, 'd'), false)
        writes.set_member(lanes.key_of('a', lane), place_by_time(record), false)
    end

    -- Move the timer of a lane to its first delayed message; if that is due, behind the timers of
    -- lanes that have waited longer.
    function messages.move_timer(lane)
        local first = call('ZRANGE', lanes.key_of('a', lane), '[D', '(E', 'BYLEX', 'LIMIT', 0, 1)[1]
        writes.set_member(keys.timers, lanes.member(lane),
            first and max(unpack_from('>I7', first, 2), shard.now))
    end

    -- Whether the message is in the index of its state.
    function messages.is_indexed(lane, record)
        if record.state == READY then
            return call('ZSCORE', lanes.key_of('z', lane), place_of(record)) ~= false
        end
        local aside = lanes.key_of('a', lane)
        if record.state == PARKED then
            return call('ZSCORE', aside, place_aside(record, 'p')) ~= false
        end
        local timer = writes.score(keys.timers, lanes.member(lane))
        return timer and timer <= max(record.since, shard.now)
            and call('ZSCORE', aside, place_aside(record, 'd')) ~= false
            and call('ZSCORE', aside, place_by_time(record)) ~= false
    end

    -- The message with a serial key, and whether it is leased; nil: none has it.
    local function holder(line)
        local stored = writes.field(keys.keys, line)
        if stored then
            return values_of(stored)
        end
    end
    messages.holder = holder

    -- Read what `messages.arrive` looks at: the holders of these keys, and the messages that have a
    -- free one.
    function messages.load_holders(lines)
        local heads, stored = {}, writes.load_fields(keys.keys, lines)
        for n = 1, #lines do
            local each = stored[lines[n]]
            if each then
                local head, is_held = values_of(each)
                if not is_held then
                    heads[#heads + 1] = head
                end
            end
        end
        messages.load(heads)
    end

    function messages.holds_key(record)
        local mid, is_held = holder(messages.line(record))
        return mid == record.mid and is_held
    end

    -- {number, whether it is leased}, as MessagePack writes them: to pack values costs more.
    local HOLDER, NUMBER_MARK, TRUE, FALSE = '>BI8B', 207, 195, 194

    function messages.set_holder(line, mid, is_held)
        writes.set_field(keys.keys, line, pack(HOLDER, NUMBER_MARK, mid, is_held and TRUE or FALSE))
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
                if is_held or (other and not messages.goes_before(record, other)) then
                    park(lane, record, behind(record))
                    return
                end
                if other then -- it is overtaken, because the key was free
                    messages.park_ready(lane, other, behind(other))
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
        local first = lane.parked > 0 and call('ZRANGE', key('k:' .. line), 0, 0)[1]
        local record = first and messages.read(messages.number_in(first))
        if not record then
            writes.set_field(keys.keys, line, false)
            return
        end
        messages.unpark_ready(lane, record, behind(record))
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
        writes.set_field(keys.m, record.mid, false)
        if record.mirrored then
            messages.mirror(lane, record, false)
        end
        known[record.mid], changed[record] = false, nil
    end

    -- A message that is deleted at its delivery, at most once: until its lease ends, keep what
    -- `finished_message_ended` reports, if its headers ask for an end.
    function messages.keep_finished(record)
        if results.milliseconds_of(record) or record.headers and record.headers['laneway-flow'] then
            call('SET', key('e:' .. text(record.mid)), messages.encode(record))
        end
    end

    -- The lease of a message that was delivered at most once has ended; `status` nil: its handler
    -- has reported that.
    function messages.finished_message_ended(mid, status, reason)
        local stored = call('GET', key('e:' .. text(mid)))
        if stored then
            call('DEL', key('e:' .. text(mid)))
            if status then
                results.write_end(messages.decode(mid, stored), status, reason)
            end
            known[mid] = false
        end
    end

    -- Whether a message (nil: none) reports the end of another one.
    function messages.is_end_notice(record)
        local headers = record and record.headers
        return headers and headers['laneway-task'] == 'laneway.ended'
    end

    -- An operator has removed a message that neither waits nor is leased any more.
    function messages.discard(lane, record)
        results.write_end(record, 'cancelled')
        ids.finish(record, false)
        messages.remove(lane, record)
        messages.free_key(lane, messages.line(record), record.mid)
        lane.removed, shard.removed = lane.removed + 1, shard.removed + 1
    end

    local function count_letters(topic, more)
        if letters[topic] ~= false then
            letters[topic] = (letters[topic] or 0) + more
        end
    end

    -- For the doctor.
    function messages.count_letters_again(topic)
        at_next_begin(reset)
        letters[topic] = false
    end

    -- A message that neither waits nor is leased becomes a dead letter.
    function messages.bury(lane, record, reason, failure)
        shard.deaths, shard.dead = shard.deaths + 1, shard.dead + 1
        local ends = shard.now + policies.of(record.topic).dead_ttl
        record.plain = false
        -- a dead letter belongs to its topic, because lanes are deleted
        record.state, record.lane = DEAD, false
        record.death = { shard.deaths, shard.now, ends, reason, failure or false }
        messages.mirror(lane, record, false)
        count_letters(record.topic, 1)
        writes.set_member(keys.dead, record.mid, shard.deaths)
        writes.set_member(key('dead:' .. record.topic), record.mid, shard.deaths)
        writes.set_member(keys.dead_topics, record.topic, 0)
        writes.set_member(keys.due, RETENTION_ENDS .. sortable(record.mid), ends)
        changed[record] = true
        results.write_end(record, reason == REASONS.expired and 'expired' or 'dead', reason)
    end

    -- The message is no longer a dead letter.
    function messages.end_death(record)
        local of_topic = key('dead:' .. record.topic)
        count_letters(record.topic, -1)
        writes.set_member(keys.due, RETENTION_ENDS .. sortable(record.mid), false)
        writes.set_member(keys.dead, record.mid, false)
        writes.set_member(of_topic, record.mid, false)
        if call('EXISTS', of_topic) == 0 then
            writes.set_member(keys.dead_topics, record.topic, false)
        end
        record.death = false
        shard.dead = shard.dead - 1
    end

    -- The ttl of a message that no longer waits is over.
    function messages.expire(lane, record)
        lane.expired, shard.expired = lane.expired + 1, shard.expired + 1
        if policies.of(record.topic).drop_expired then
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
        record.history = record.history or {}
        record.history[#record.history + 1] = { shard.now, what, failure or false }
        if #record.history > HISTORY then
            table.remove(record.history, 1)
        end
        changed[record] = true
    end
end)
