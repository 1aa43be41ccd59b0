-- Messages: their records (hash `m`, by number), and where they wait.
--
-- States, the keys that have a message of that state, and the states that may follow:
--
--   READY    list q:N or the lane's `latest`, if plain; else z:N    → leased, DELAYED, DEAD, gone
--   DELAYED  a:N, and an event in `due`                             → READY, PARKED, DEAD, gone
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
-- -2 · priority, + 1 unless it is `at_front`: 2 bytes near 0, else 6. They end with its number.
--
-- `o:N` has the messages of a lane whose sequence numbers may be out of the lane's order, for the
-- cursors. Of topics in buckets, `t:TOPIC` has all messages that wait ("r", "d", "p") or are leased
-- ("l"), and `folded` the topics.
--
-- uses: fairness, rules, writes, lanes, plain, results, key_limits, ids

local READY, DELAYED, PARKED, DEAD = 0, 1, 2, 3
local NO, HOLD, YIELD = 0, 1, 2 -- serial
local RICH, PLAIN = 77, 80      -- the bytes with which records begin: "M", "P"
local LEASES_END, DUE, EXPIRES, RETENTION_ENDS = '1', '2', '3', '4'
local FOREVER = -1              -- dedupe
local STICKY = 24 * 3600 * SECOND
-- minus the number: the position of messages `at_front`, the last one first
local FRONT = 2 ^ 53
local RANK_0, NEAR_FROM, NEAR_TO = 512, 256, 1023 -- ranks near 0: rank + 512 is between these
local FAR_LOW, FAR_HIGH, FAR_0 = 0, 4, 2 ^ 34     -- the first bytes of other codes; added to ranks

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
    local HISTORY = 20 -- troubles that a message's history has at most
    local known   -- by number: the decoded record; false: none
    local unread  -- by number: the stored record of a message that was read, but not decoded
    local copied  -- the numbers of unread records that are written at the end of the call
    local changed -- the decoded ones
    local letters -- by topic: how many more dead letters it has; false: they are counted again
    local gone_lists -- keys of lists that are deleted at the end of the call
    local new_records, new_events -- of messages that `insert_brief` lets wait: flat
    local new_count, new_bytes -- how many these are, as the shard has not counted yet
    local stamp -- the time of this call in 7 bytes; false: not needed yet
    local last_rest -- see `rest_of_letter`
    local new_letters, letters_ends -- of `bury_undecoded`: flat

    at_begin(function()
        known, unread, copied, changed, letters, gone_lists = {}, {}, {}, {}, {}, {}
        new_records, new_events, new_count, new_bytes, stamp = {}, {}, 0, 0, false
        last_rest, new_letters, letters_ends = {}, {}, {}
    end)

    -- A record is a head of fixed width, the fields that few messages have, and the content. Each
    -- of the latter fields has a usual value; a record has none of them if all are usual.
    local HEAD = '>BBI2I8I8I8I8I4'
    local HEAD_BYTES = 40
    local HEAD_AND_SIZE = HEAD .. 'I2' -- the content follows the head, if no field is rare
    local RANK_AT, SINCE_AT, EXPIRES_AT, NO_RARE_AT = 3, 13, 29, 37 -- of a rich record
    local NO_RARE = '\0\0\0\0'
    local NEVER = '\0\0\0\0\0\0\0\0' -- the end of no ttl
    local RARE = { 'other_lane', 'attempts', 'deliveries', 'suspect', 'joined', 'parts',
        'parts_bytes', 'unhandled_from', 'unhandled_times', 'mirrored', 'death', 'history' }
    local RARE_MARK = '\156' -- MessagePack's mark of a list of so many
    local FAR_MARK = '\157'  -- that of one more: a rank that is not near 0 follows
    local USUAL = {
        other_lane = false, attempts = 0, deliveries = 0, suspect = false, joined = 0, parts = 0,
            parts_bytes = 0, unhandled_from = 0, unhandled_times = 0,
        mirrored = false, death = false, history = false, sticky = false, plain = false, is_rare =
            false,
    }

    local function is_near(rank)
        return rank >= NEAR_FROM - RANK_0 and rank <= NEAR_TO - RANK_0
    end

    -- Since when a message of this record was ready.
    function messages.since_of(stored)
        return byte(stored) == RICH and unpack_from('>I8', stored, SINCE_AT)
            or unpack_from('>I7', stored, #stored - 6)
    end
    local RECORD = {
        __index = USUAL,
        __newindex = function(record, field, value)
            rawset(record, field, value)
            if not record.is_rare then
                rawset(record, 'is_rare', true)
            end
        end,
    }
    local TOPIC, KEY, ID, HEADERS, IS_STICKY, MKEY = 1, 2, 3, 4, 5, 6 -- of the content

    -- `fields`: those of the head and the content. `sticky`: true for few.
    function messages.new(fields, sticky)
        if sticky then
            fields.sticky = true
        end
        setmetatable(fields, RECORD)
        known[fields.mid] = fields
        return fields
    end

    -- Most messages have the headers of the one before, and to decode these costs more than all
    -- else of a content: they are kept, as they are stored and as a table, which nobody changes.
    local unpack_limit
    local headers_then, table_then = false, false
    local learns -- whether this call has kept none yet

    at_begin(function()
        unpack_limit, learns = cmsgpack.unpack_limit, true
    end)

    -- Keep the headers of a content whose fields begin at a position.
    local function keep_headers(stored, at)
        local before = unpack_limit(stored, 3, at - 1)
        local behind, headers = unpack_limit(stored, 1, before)
        headers_then, table_then, learns = sub(stored, before + 1, behind), headers, false
    end

    -- The fields of a content that begin at a position, behind the list's mark, because a table
    -- costs more than all of them: topic, key, id, headers, whether the id is sticky, and merge key
    -- (nil or false: none).
    function messages.fields_at(stored, at)
        local behind, topic, key_of, id, headers, sticky, mkey
        if not headers_then then
            behind, topic, key_of, id, headers, sticky, mkey = unpack_limit(stored, 6, at - 1)
        else
            behind, topic, key_of, id = unpack_limit(stored, 3, at - 1)
            local last = behind + #headers_then
            if sub(stored, behind + 1, last) == headers_then then
                behind, sticky, mkey = unpack_limit(stored, 2, last)
                return topic, key_of, id, table_then, sticky, mkey
            end
            behind, headers, sticky, mkey = unpack_limit(stored, 3, behind)
        end
        if headers and learns then
            keep_headers(stored, at)
        end
        return topic, key_of, id, headers, sticky, mkey
    end
    local fields_at = messages.fields_at

    -- Where the body of a content begins that begins at a position, and its fields.
    local function content_at(stored, at)
        return at + 2 + unpack_from('>I2', stored, at), fields_at(stored, at + 3)
    end

    local function decode_plain(mid, stored)
        local published = unpack_from('>I7', stored, #stored - 6)
        local body_at, topic, key_of, id, headers, sticky = content_at(stored, 2)
        local record = messages.new({
            mid = mid, state = READY, rank = 1, seq = mid, since = published, published = published,
                expires = false, serial = NO, topic = topic,
            lane = topic, key = key_of or false, id = id or false, mkey = false,
                headers = headers or false, content = sub(stored, 2, -8),
            size = #stored - 6 - body_at,
        }, sticky)
        rawset(record, 'plain', true)
        return record
    end

    -- The cost in headers (false or nil: none), as `headers.cost` in Python reads it.
    function messages.cost_in(headers)
        local written = headers and headers['laneway-cost']
        local cost = written and string.match(written, '^%d+$') and #written < 20
            and tonumber(written) or 1
        return cost >= 1 and cost <= MOST_COST and cost or 1
    end

    -- The cost of a stored record.
    function messages.cost_of(stored)
        local at = 2
        if byte(stored) == RICH then
            at = 1 + HEAD_BYTES + unpack_from('>I4', stored, HEAD_BYTES - 3)
        end
        local _, _, _, _, headers = content_at(stored, at)
        return messages.cost_in(headers)
    end

    -- Whether a stored message is serial, its topic, its key (nil or false: none) and its rank.
    function messages.key_in(stored)
        local at, serial, rank = 2, false, 1
        if byte(stored) == RICH then
            local _, flags, code, _, _, _, _, rare = unpack_from(HEAD, stored)
            serial, rank, at = flags > DEAD, code - RANK_0, 1 + HEAD_BYTES + rare
            if code == 0 then
                rank = values_of(sub(stored, 1 + HEAD_BYTES, at - 1))[#RARE + 1]
            end
        end
        local _, topic, key_of = content_at(stored, at)
        return serial, topic, key_of, rank
    end

    -- The topic of a stored record, which costs less than all of it.
    function messages.topic_of(stored)
        local at = 2
        if byte(stored) == RICH then
            at = 1 + HEAD_BYTES + unpack_from('>I4', stored, HEAD_BYTES - 3)
        end
        local _, topic = content_at(stored, at)
        return topic
    end

    function messages.decode(mid, stored)
        if byte(stored) ~= RICH then
            return decode_plain(mid, stored)
        end
        local _, state, rank, seq, since, published, expires, rare = unpack_from(HEAD, stored)
        local at = 1 + HEAD_BYTES + rare
        local body_at, topic, key_of, id, headers, sticky, mkey = content_at(stored, at)
        local record = messages.new({
            mid = mid, state = state % 4, rank = rank - RANK_0, seq = seq, since = since,
                published = published, expires = expires > 0 and expires,
            serial = floor(state / 4), topic = topic, lane = state % 4 ~= DEAD and topic, key =
                key_of or false, id = id or false,
            mkey = mkey or false, headers = headers or false, content =
                sub(stored, at), size = #stored - body_at + 1,
        }, sticky)
        if rare > 0 then
            local values = values_of(sub(stored, 1 + HEAD_BYTES, at - 1))
            for n = 1, #RARE do
                if values[n] ~= USUAL[RARE[n]] then
                    record[RARE[n]] = values[n]
                end
            end
            record.rank = values[#RARE + 1] or record.rank
            record.lane = record.other_lane or record.lane
        end
        return record
    end

    -- Deliveries (false: there is more) and joined ids by stored rare fields: there are few
    local MOST_BRIEF = 256
    local deliveries_in, joined_in, brief_count = {}, {}, 0

    local function brief_of_rare(values)
        local other_lane, _, deliveries, suspect, joined, parts, _, _, _, mirrored, death =
            values_of(values)
        if other_lane or suspect or parts > 0 or mirrored or death then
            deliveries = false
        end
        if brief_count >= MOST_BRIEF then
            deliveries_in, joined_in, brief_count = {}, {}, 0
        end
        deliveries_in[values], joined_in[values], brief_count = deliveries, joined, brief_count + 1
        return deliveries, joined
    end

    -- What an arrival, a delivery and an ack need of a record that is not plain, if it has nothing
    -- that is rarely used: 4 · serial + state, rank, seq, since, published, expires (0: never),
    -- deliveries, the body's size, topic, key, id, merge key, number of joined ids. Nil: it has
    -- more. Decoding all of it, with a table, takes three times as long.
    function messages.brief(stored)
        if byte(stored) ~= RICH then
            return nil
        end
        local _, flags, rank, seq, since, published, expires, rare = unpack_from(HEAD, stored)
        if rank == 0 then -- it is far from 0
            return nil
        end
        local deliveries, joined = 0, 0
        if rare > 0 then
            local values = sub(stored, 2 + HEAD_BYTES, HEAD_BYTES + rare)
            deliveries, joined = deliveries_in[values], joined_in[values]
            if deliveries == nil then
                deliveries, joined = brief_of_rare(values)
            end
            if not deliveries then
                return nil
            end
        end
        local at = 1 + HEAD_BYTES + rare
        local body_at = at + 2 + unpack_from('>I2', stored, at)
        local topic, key_of, id, _, sticky, mkey = fields_at(stored, at + 3)
        if not sticky then
            return flags, rank - RANK_0, seq, since, published, expires, deliveries,
                #stored - body_at + 1, topic, key_of or false, id or false, mkey or false, joined
        end
    end

    -- Topic, line (false: none), id (false: generated) and number of joined ids of a message that
    -- was loaded; nil: it is decoded already, or has to be.
    function messages.names(mid)
        local stored = unread[mid]
        if not stored then
            return nil
        elseif byte(stored) ~= RICH then
            local _, topic, _, id, _, sticky = content_at(stored, 2)
            return not sticky and topic or nil, false, id or false, 0
        elseif sub(stored, NO_RARE_AT, HEAD_BYTES) == NO_RARE then
            local _, topic, key_of, id, _, sticky = content_at(stored, 1 + HEAD_BYTES)
            if sticky then
                return nil
            end
            return topic, byte(stored, 2) > DEAD and topic .. '\0' .. key_of, id or false, 0
        end
        local flags, _, _, _, _, _, _, _, topic, key_of, id, _, joined = messages.brief(stored)
        return topic, flags and flags > DEAD and topic .. '\0' .. key_of, id, joined
    end

    -- The serial key of a message that was loaded (false: none).
    function messages.line_of(mid)
        local stored = unread[mid]
        if stored and (byte(stored) ~= RICH or byte(stored, 2) <= DEAD) then
            return false
        end
        local _, line = messages.names(mid)
        local record = line == nil and messages.read(mid)
        return record and messages.line(record) or line or false
    end

    local function rare_of(record)
        local lane = record.lane
        if lane ~= record.topic or record.other_lane then
            record.other_lane = lane ~= record.topic and lane
        end
        local far = not is_near(record.rank)
        if not record.is_rare and not far then
            return ''
        end
        return (far and FAR_MARK or RARE_MARK) .. packed(record.other_lane, record.attempts,
            record.deliveries, record.suspect, record.joined, record.parts, record.parts_bytes,
            record.unhandled_from, record.unhandled_times, record.mirrored, record.death,
            record.history) .. (far and packed(record.rank) or '')
    end

    -- The rank in the head of a record; 0: it follows the rare fields.
    local function head_rank(rank)
        return is_near(rank) and rank + RANK_0 or 0
    end

    function messages.encode(record)
        local rare = rare_of(record)
        return pack(HEAD, RICH, record.state + 4 * record.serial, head_rank(record.rank),
            record.seq, record.since, record.published, record.expires or 0, #rare)
            .. rare .. record.content
    end

    -- Change the body and headers of a message, or make its id sticky.
    function messages.set_content(record, body, headers, sticky)
        record.headers, record.size = headers, #body
        rawset(record, 'sticky', sticky)
        record.content = content_of(record.topic, record.key, record.id, headers, sticky,
            record.mkey, body)
    end

    function messages.make_sticky(record)
        if not record.sticky then
            messages.set_content(record, body_of(record), record.headers, true)
        end
    end

    -- The call reads a message that it may have inserted itself: no record is left to the end any
    -- longer.
    local function hold_new()
        for n = 1, #new_records, 2 do
            local mid = new_records[n]
            unread[mid], copied[mid] = new_records[n + 1], true
        end
        new_records = {}
    end

    -- The stored record of a message that was read, but not decoded; else nil.
    local function stored_of(mid)
        if new_records[1] and not unread[mid] then
            hold_new()
        end
        return unread[mid]
    end

    function messages.read(mid)
        local record = known[mid]
        if record == nil then
            if new_records[1] then
                hold_new()
            end
            local stored = unread[mid] or call('HGET', keys.m, mid)
            record = stored and messages.decode(mid, stored)
            known[mid], unread[mid] = record, nil
            if copied[mid] then
                copied[mid], changed[record] = nil, true
            end
        end
        return record
    end

    -- Read several at once.
    function messages.load(mids)
        local wanted = {}
        if new_records[1] then
            hold_new()
        end
        for n = 1, #mids do
            local mid = mids[n]
            if known[mid] == nil and not unread[mid] then
                wanted[#wanted + 1], known[mid] = mid, false
            end
        end
        for n, stored in ipairs(read_many(keys.m, wanted)) do
            if stored then
                known[wanted[n]], unread[wanted[n]] = nil, stored
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

    -- The caller deletes the record of a message that is loaded, but not decoded.
    function messages.forget(mid)
        known[mid], unread[mid], copied[mid] = false, nil, nil
    end

    function messages.save()
        local written = {}
        for mid in pairs(copied) do
            written[#written + 1] = mid
            written[#written + 1] = unread[mid]
        end
        for record in pairs(changed) do
            if known[record.mid] == record then
                written[#written + 1] = record.mid
                written[#written + 1] = messages.encode(record)
            end
        end
        call_many('HSET', keys.m, written, 2)
        messages.save_letters()
        if gone_lists[1] then
            run_many('DEL', gone_lists[1], gone_lists, 1) -- the first one twice
        end
        known, unread, copied, changed, gone_lists = {}, {}, {}, {}, {}
    end

    function messages.size(record)
        return record.size + record.parts_bytes
    end

    function messages.line(record)
        return record.serial ~= NO and record.topic .. '\0' .. record.key or false
    end

    -- The code of a rank: codes are in the order of ranks.
    function messages.rank_code(rank)
        local code = rank + RANK_0
        if code >= NEAR_FROM and code <= NEAR_TO then
            return pack('>I2', code)
        end
        return pack('>BI5', rank < 0 and FAR_LOW or FAR_HIGH, rank + FAR_0)
    end

    -- The rank whose code begins at a position of a member, and what follows the code.
    function messages.rank_in(member, at)
        local first = byte(member, at)
        if first ~= FAR_LOW and first ~= FAR_HIGH then
            return unpack_from('>I2', member, at) - RANK_0, at + 2
        end
        return unpack_from('>I5', member, at + 1) - FAR_0, at + 6
    end

    -- The number of the message that a member ends with.
    function messages.number_in(member)
        return (unpack_from('>I7', member, #member - 6))
    end

    -- The member of a message in an order by rank.
    local function member_of(rank, position, seq, mid)
        local code = rank + RANK_0
        if code >= NEAR_FROM and code <= NEAR_TO then
            return pack('>I2I7I7I7', code, position, seq, mid)
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
    local function index_out_of_sequence(lane, score, mid, rank, seq, since, published, deliveries)
        if rank % 2 == 0 or seq ~= mid or since ~= published or deliveries > 0 then
            local code, letter = rank + RANK_0, deliveries == 0 and UNDELIVERED or DELIVERED
            writes.set_member(lanes.key_of('o', lane), code >= NEAR_FROM and code <= NEAR_TO
                and pack('>I2BI7I7', code, letter, seq, mid)
                or messages.rank_code(rank) .. pack('>BI7I7', letter, seq, mid), score)
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
        if record.plain then
            rawset(record, 'plain', false)
        end
        record.lane = lane.name
        park(lane, record, parking)
    end

    -- The opposite.
    function messages.unpark_ready(lane, record, parking)
        unpark(lane, record, parking)
        into_order(lane, record)
    end

    -- Waiting

    local function leave_plain(record)
        if record.plain then
            rawset(record, 'plain', false)
        end
    end

    -- Let the message wait: delayed, if its `since` is in the future, else it arrives. New messages
    -- of its merge key join it, unless `collects` is false.
    function messages.begin_waiting(lane, record, collects)
        leave_plain(record)
        record.lane = lane.name
        lanes.expect_costs(lane, record.headers)
        resize(lane, record, messages.size(record))
        shard.waiting = shard.waiting + 1
        if record.expires then
            writes.set_member(keys.due, EXPIRES .. sortable(record.mid), record.expires)
        end
        if record.mkey and collects ~= false then
            writes.set_field(keys.merge, record.topic .. '\0' .. record.mkey, record.mid)
        end
        index_out_of_sequence(lane, 0, record.mid, record.rank, record.seq, record.since,
            record.published, record.deliveries)
        if record.since > shard.now then
            record.state = DELAYED
            lane.delayed = lane.delayed + 1
            writes.set_member(keys.due, DUE .. sortable(record.mid), record.since)
            writes.set_member(lanes.key_of('a', lane), place_aside(record, 'd'), 0)
            messages.mirror(lane, record, 'd')
        else
            messages.arrive(lane, record)
        end
        changed[record] = true
        lanes.touch(lane)
    end

    local function rare_values(joined, parts, parts_bytes)
        return packed(false, 0, 0, false, joined, parts or 0, parts_bytes or 0, 0, 0, false, false,
            false)
    end

    -- A new message waits: as `begin_waiting`, but without a decoded record, whose tables would
    -- cost more than all the rest. `line`: its serial key, which no message has yet; false: none.
    function messages.insert(lane, draft, mid, since, expires, serial, line)
        local now, rank, size, state = shard.now, draft.rank, draft.size, READY
        local position = rank % 2 == 1 and since or FRONT - mid
        if draft.headers then
            lanes.expect_costs(lane, draft.headers)
        end
        lane.published, lane.bytes = lane.published + 1, lane.bytes + size
        shard.published, shard.bytes, shard.waiting = shard.published + 1, shard.bytes + size,
            shard.waiting + 1
        if expires then
            writes.set_member(keys.due, EXPIRES .. sortable(mid), expires)
        end
        if draft.mkey then
            writes.set_field(keys.merge, draft.topic .. '\0' .. draft.mkey, mid)
        end
        if since ~= now or rank % 2 == 0 then
            index_out_of_sequence(lane, 0, mid, rank, mid, since, now, 0)
        end
        if since > now then
            state = DELAYED
            lane.delayed = lane.delayed + 1
            writes.set_member(keys.due, DUE .. sortable(mid), since)
            writes.set_member(lanes.key_of('a', lane), 'd' .. member_of(rank, since, mid, mid), 0)
        else
            lane.ready, lane.sorted = lane.ready + 1, lane.sorted + 1
            writes.set_member(lanes.key_of('z', lane), member_of(rank, position, mid, mid), 0)
            if line then
                messages.set_holder(line, mid, false)
            end
        end
        if known[mid] ~= nil then -- an id has named it before
            known[mid] = nil
        end
        local code = rank + RANK_0
        if code >= NEAR_FROM and code <= NEAR_TO then
            unread[mid] = pack(HEAD, RICH, state + 4 * serial, code, mid, since, now, expires or 0,
                0) .. draft.content
        else
            local rare = FAR_MARK .. rare_values(0) .. packed(rank)
            unread[mid] = pack(HEAD, RICH, state + 4 * serial, 0, mid, since, now, expires or 0,
                #rare) .. rare .. draft.content
        end
        copied[mid] = true
        if not lane.is_changed then
            lanes.touch(lane)
        end
    end

    -- Beginnings of records by state and serial, and the codes of ranks near 0: to join strings is
    -- faster than to pack numbers.
    local heads, codes = {}, {}
    -- around a number in 7 bytes: {number, false} as MessagePack writes numbers from 2^32 on
    local FREE_FROM, FREE_TO = '\207\0', '\194'

    local function head_of(flags)
        local head = string.char(RICH, flags)
        heads[flags] = head
        return head
    end

    local function code_of(code)
        local packed_code = pack('>I2', code)
        codes[code] = packed_code
        return packed_code
    end

    -- Whether a new message that is ready now waits behind the one that has its serial key; false
    -- also if that has to be decoded. `code`: that of its rank, which is near 0.
    local function is_behind(line, code)
        local head, is_held = values_of(writes.field(keys.keys, line))
        local stored = not is_held and unread[head]
        if not stored or byte(stored) ~= RICH then
            return is_held
        end
        local its_code = unpack_from('>I2', stored, RANK_AT)
        if its_code == code then -- of those at the front, the new one is the first
            return code % 2 == 1 and unpack_from('>I8', stored, SINCE_AT) <= shard.now
        end
        return its_code > 0 and its_code < code
    end

    -- As `insert`, with a lane of rich_heads.lua, and of a draft with a rank near 0. `line`: false,
    -- or the serial key, of which the messages were loaded. False, and nothing is changed, if
    -- another message has the key and the new one may precede it.
    function messages.insert_brief(lane, draft, mid, since, expires, serial, line)
        local code, size, flags, number = draft.rank + RANK_0, draft.size, 4 * serial, pack('>I7',
            mid)
        stamp = stamp or sortable(shard.now)
        local rank, is_delayed, ready_from = codes[code] or code_of(code), since > shard.now, stamp
        if is_delayed then
            local count, at = lane.to_a + 1, #new_events
            flags, ready_from, lane.to_a = flags + DELAYED, pack('>I7', since), count
            lane.in_a[2 * count] = 'd' .. rank .. ready_from .. number .. number
            new_events[at + 1], new_events[at + 2] = since, DUE .. number
        elseif line and not writes.claim_field(keys.keys, line, FREE_FROM .. number .. FREE_TO) then
            if not is_behind(line, code) then
                return false
            end
            -- `a:N` has it beside delayed messages: all there count as such, unless they are parked
            local count, rest = lane.to_a + 1, number .. number
            flags, lane.to_a, lane.delayed, lane.parked = flags + PARKED, count, lane.delayed - 1,
                lane.parked + 1
            lane.in_a[2 * count] = 'p' .. rank .. stamp .. rest
            writes.set_member(key('k:' .. line), rank .. (code % 2 == 1 and stamp
                or sortable(FRONT - mid)) .. rest, 0)
        else
            local count = lane.to_z + 1
            lane.to_z = count
            lane.in_z[2 * count] = rank .. (code % 2 == 1 and ready_from or sortable(FRONT - mid))
                .. number .. number
        end
        if is_delayed or code % 2 == 0 then -- as `index_out_of_sequence`
            local count = lane.to_o + 1
            lane.to_o, lane.in_o[2 * count] = count, rank .. 'u' .. number .. number
        end
        lane.bytes, new_count, new_bytes = lane.bytes + size, new_count + 1, new_bytes + size
        if draft.mkey then
            writes.set_field(keys.merge, draft.topic .. '\0' .. draft.mkey, mid)
        end
        local ends = NEVER
        if expires then
            local at, last = #new_events, pack('>I7', expires)
            new_events[at + 1], new_events[at + 2], ends = expires, EXPIRES .. number, '\0' .. last
        end
        local record = (heads[flags] or head_of(flags)) .. rank .. '\0' .. number .. '\0'
            .. ready_from .. '\0' .. stamp .. ends .. NO_RARE .. draft.content
        if known[mid] ~= nil then -- an id has named it before
            known[mid] = nil
        end
        local at = #new_records
        new_records[at + 1], new_records[at + 2] = mid, record
        return true
    end

    -- Write what `insert_brief` has left to the end.
    function messages.write_new()
        shard.published, shard.waiting, shard.bytes = shard.published + new_count, shard.waiting
            + new_count, shard.bytes + new_bytes
        run_many('HSET', keys.m, new_records, 2)
        run_many('ZADD', keys.due, new_events, 2)
        new_records, new_events, new_count, new_bytes = {}, {}, 0, 0
    end

    local rare_by_count = { [0] = '' }

    -- The rare fields of a message to which ids were joined, and nothing else that is rare.
    local function rare_of_joined(joined)
        local found = rare_by_count[joined]
        if not found then
            found = RARE_MARK .. rare_values(joined)
            if joined < MOST_BRIEF then
                rare_by_count[joined] = found
            end
        end
        return found
    end

    -- A new message joins a waiting one of its merge key, which is loaded and not decoded.
    -- `replaces`: the waiting one takes the new one's body, headers, ttl and priority. Returns its
    -- lane and its id (false: generated). Nil, and nothing is changed, if it has to be decoded.
    -- `head`, `is_named`: as `merging.join_brief`.
    function messages.join_brief(mid, draft, replaces, head, is_named)
        local stored = stored_of(mid)
        if not stored or byte(stored) ~= RICH then
            return nil
        end
        local flags, rank, seq, since, published, expires, _, size, topic, key_of, id, mkey,
            joined = messages.brief(stored)
        local content_from = 1 + HEAD_BYTES + unpack_from('>I4', stored, HEAD_BYTES - 3)
        if not flags or not is_near(draft.rank) or sub(stored, 1 + HEAD_BYTES, content_from
            - 1) ~= rare_of_joined(joined) then
            return nil
        end
        local lane = head or lanes.find(topic)
        local moves = replaces and rank ~= draft.rank
        local is_delayed = flags % 4 == DELAYED
        -- a delayed one that is due would arrive, and one that is parked by its key
        if not lane or flags == PARKED or (moves and not is_delayed)
            or (replaces and is_delayed and since <= shard.now) then
            return nil
        end
        lanes.touch(lane)
        if not replaces and not draft.id then
            return lane, id
        end
        local content = nil
        if not replaces then
            content = sub(stored, content_from)
        elseif id or draft.id then -- both have the same topic and keys
            content = with_id(draft.content, draft.topic, draft.key, draft.id, id)
        else
            content = draft.content
        end
        if replaces then
            lanes.expect_costs(lane, draft.headers)
            local ends = draft.ttl and shard.now + draft.ttl or 0
            if ends ~= expires then
                writes.set_member(keys.due, EXPIRES .. sortable(mid), ends > 0 and ends)
                expires = ends
            end
            lane.bytes, shard.bytes = lane.bytes + draft.size - size, shard.bytes + draft.size
                - size
        end
        if moves then
            local aside = lanes.key_of('a', lane)
            index_out_of_sequence(lane, false, mid, rank, seq, since, published, 0)
            writes.set_member(aside, 'd' .. member_of(rank, since, seq, mid), false)
            rank, seq = draft.rank, next_number()
            index_out_of_sequence(lane, 0, mid, rank, seq, since, published, 0)
            writes.set_member(aside, 'd' .. member_of(rank, since, seq, mid), 0)
        end
        if draft.id then
            joined = joined + 1
            ids.add_joined(topic, mid, draft.id, is_named)
        end
        local rare = rare_of_joined(joined)
        unread[mid], copied[mid] = pack(HEAD, RICH, flags, head_rank(rank), seq, since, published,
            expires, #rare) .. rare .. content, true
        return lane, id
    end

    -- The body of a new message is collected by a waiting one of its merge key, which is loaded and
    -- not decoded. Returns as `join_brief`; nil also if it has as many bodies as it may have.
    function messages.add_part_brief(mid, draft, limit, head, is_named)
        local stored, joined, parts, parts_bytes = stored_of(mid), 0, 0, 0
        local lane = head or (draft.lane and lanes.find(draft.lane))
        if not lane or not stored or byte(stored) ~= RICH then
            return nil
        end
        local _, flags, rank, seq, since, published, expires, rare = unpack_from(HEAD, stored)
        local at = 1 + HEAD_BYTES + rare
        if rare > 0 then
            local values, _ = sub(stored, 2 + HEAD_BYTES, at - 1)
            _, _, _, _, joined, parts, parts_bytes = values_of(values)
            if values ~= rare_values(joined, parts, parts_bytes) then
                return nil
            end
        end
        if parts + 1 >= limit then
            return nil
        end
        local _, _, _, id = content_at(stored, at)
        call('RPUSH', key('b:' .. text(mid)), body_of(draft))
        lane.bytes, shard.bytes = lane.bytes + draft.size, shard.bytes + draft.size
        if draft.id then
            joined = joined + 1
            ids.add_joined(draft.topic, mid, draft.id, is_named)
        end
        local values = RARE_MARK .. rare_values(joined, parts + 1, parts_bytes + draft.size)
        unread[mid], copied[mid] = pack(HEAD, RICH, flags, rank, seq, since, published, expires,
            #values) .. values .. sub(stored, at), true
        lanes.touch(lane)
        return lane, id or false
    end

    local function end_expiry_and_merging(mid, topic, expires, mkey)
        if expires then
            writes.set_member(keys.due, EXPIRES .. sortable(mid), false)
        end
        if mkey then
            local where = topic .. '\0' .. mkey
            if tonumber(writes.field(keys.merge, where)) == mid then
                writes.set_field(keys.merge, where, false)
            end
        end
    end

    -- The message no longer waits. It was taken out of its lane's order already.
    function messages.leave(lane, record)
        resize(lane, record, -messages.size(record))
        shard.waiting = shard.waiting - 1
        end_expiry_and_merging(record.mid, record.topic, record.expires, record.mkey)
        if not record.plain then
            index_out_of_sequence(lane, false, record.mid, record.rank, record.seq, record.since,
                record.published, record.deliveries)
        end
        lanes.touch(lane)
    end

    local left_keys -- merge keys of messages that left without being decoded, and their numbers

    at_begin(function()
        left_keys = {}
    end)

    -- Forget the merge keys of these messages: their owners are read at once.
    function messages.end_merging()
        local wanted = {}
        for n = 1, #left_keys, 2 do
            wanted[#wanted + 1] = left_keys[n]
        end
        if #wanted > 0 then
            writes.load_fields(keys.merge, wanted)
        end
        for n = 1, #left_keys, 2 do
            if tonumber(writes.field(keys.merge, left_keys[n])) == left_keys[n + 1] then
                writes.set_field(keys.merge, left_keys[n], false)
            end
        end
        left_keys = {}
    end

    -- The same without decoding the record, which is no plain one; the caller counts the message
    -- and its bytes, and calls `messages.end_merging`. Returns line (false: none), whether it has
    -- ids of the user's own, merge key (nil or false: none), since when it was ready, and its
    -- bytes; nil, and nothing is changed, if the message is decoded, has to be, or is expired.
    -- `is_last`: this call takes all messages of the lane.
    function messages.leave_brief(lane, mid, stored, is_last)
        local _, flags, code, seq, since, published, expires, rare, size = unpack_from(
            HEAD_AND_SIZE, stored)
        if known[mid] or lane.is_bucket or (expires > 0 and expires <= shard.now) then
            return nil
        end
        local rank, deliveries, joined = code - RANK_0, 0, 0
        local topic, key_of, id, sticky, mkey
        if rare == 0 then -- as `messages.brief`, without passing on all of the values
            topic, key_of, id, _, sticky, mkey = fields_at(stored, HEAD_BYTES + 4)
            if sticky then
                return nil
            end
            size = #stored - HEAD_BYTES - 2 - size
        else
            flags, rank, seq, since, published, expires, deliveries, size, topic, key_of, id, mkey,
                joined = messages.brief(stored)
            if not flags then
                return nil
            end
        end
        if expires > 0 then
            writes.set_member(keys.due, EXPIRES .. sortable(mid), false)
        end
        if mkey then
            local n = #left_keys
            left_keys[n + 1], left_keys[n + 2] = topic .. '\0' .. mkey, mid
        end
        if since ~= published or seq ~= mid or rank % 2 == 0 or deliveries > 0 then
            if is_last then
                writes.clear(lanes.key_of('o', lane))
            else
                index_out_of_sequence(lane, false, mid, rank, seq, since, published, deliveries)
            end
        end
        if not lane.is_changed then
            lanes.touch(lane)
        end
        return flags > DEAD and topic .. '\0' .. key_of, id or joined > 0, mkey, since, size
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

    function messages.end_delay(lane, record)
        lane.delayed = lane.delayed - 1
        writes.set_member(keys.due, DUE .. sortable(record.mid), false)
        writes.set_member(lanes.key_of('a', lane), place_aside(record, 'd'), false)
    end

    -- Whether the message is in the index of its state.
    function messages.is_indexed(lane, record)
        if record.state == READY then
            return call('ZSCORE', lanes.key_of('z', lane), place_of(record)) ~= false
        end
        return call('ZSCORE', lanes.key_of('a', lane), place_aside(record, record.state == DELAYED
            and 'd' or 'p')) ~= false
    end

    local function holder(line)
        local stored = writes.field(keys.keys, line)
        if stored then
            return values_of(stored)
        end
    end

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

    function messages.is_free(line)
        return not writes.field(keys.keys, line)
    end

    -- {number, whether it is leased} as `insert_brief` writes it: to pack values costs more.
    local HOLDER, NUMBER_MARK, TRUE, FALSE = '>BI8B', 207, 195, 194

    function messages.set_holder(line, mid, is_held)
        writes.set_field(keys.keys, line, pack(HOLDER, NUMBER_MARK, mid, is_held and TRUE or FALSE))
    end

    -- A delayed message that is loaded becomes ready. Returns its lane. Nil, and nothing changes,
    -- if it has to be decoded, for example because another one has its serial key.
    function messages.arrive_brief(mid)
        local stored = unread[mid]
        if not stored then
            return nil
        end
        local flags, rank, seq, since, _, _, _, _, topic, key_of = messages.brief(stored)
        local lane = flags and flags % 4 == DELAYED and lanes.find(topic)
        if not lane then
            return nil
        elseif flags > DEAD then
            local line = topic .. '\0' .. key_of
            local head = holder(line)
            if not head then
                messages.set_holder(line, mid, false)
            elseif head ~= mid then
                return nil
            end
        end
        local aside = member_of(rank, since, seq, mid)
        lane.delayed, lane.ready, lane.sorted = lane.delayed - 1, lane.ready + 1, lane.sorted + 1
        writes.set_member(lanes.key_of('a', lane), 'd' .. aside, false)
        writes.set_member(lanes.key_of('z', lane), rank % 2 == 1 and aside
            or member_of(rank, FRONT - seq, seq, mid), 0)
        unread[mid], copied[mid] = sub(stored, 1, 1)
            .. string.char(flags - DELAYED + READY) .. sub(stored, 3), true
        return lane
    end

    local USUAL_ASIDE = 24 -- bytes of a member of `a:N` with a rank near 0

    -- The members, in `a:N`, of the due messages of this one's lane, at most so many, and the lane:
    -- of all ranks near 0, if few are delayed in it, else of this one's rank; and whether nothing
    -- else is in `a:N`. Nil if the message, which is loaded, has to be decoded.
    function messages.due_with(mid, most)
        local stored = unread[mid]
        local topic = stored and messages.names(mid)
        local lane = topic and lanes.find(topic)
        if lane and lane.delayed <= most then
            local found, due = call('ZRANGE', lanes.key_of('a', lane), '[d', '(e', 'BYLEX'), {}
            for n = 1, #found do
                local member = found[n]
                if #member == USUAL_ASIDE and unpack_from('>I7', member, 4) <= shard.now then
                    due[#due + 1] = member
                end
            end
            return due, lane, #due == #found and lane.parked == 0
        elseif lane then
            local begin = 'd' .. sub(stored, 3, 4)
            return call('ZRANGE', lanes.key_of('a', lane), '[' .. begin, '(' .. begin
                .. sortable(shard.now + 1), 'BYLEX', 'LIMIT', 0, most), lane
        end
    end

    -- The serial key of a delayed message, which is loaded, if it can arrive by its member in
    -- `a:N`; false: it has none; nil: it cannot.
    function messages.line_of_due(mid)
        local stored = unread[mid]
        if not stored then
            return nil
        elseif sub(stored, NO_RARE_AT, HEAD_BYTES) ~= NO_RARE then
            local flags, _, _, _, _, ends, _, _, topic, key_of = messages.brief(stored)
            if not flags or flags % 4 ~= DELAYED or (ends > 0 and ends <= shard.now) then
                return nil
            end
            return flags > DEAD and topic .. '\0' .. key_of
        end
        local expires, flags = unpack_from('>I8', stored, EXPIRES_AT), byte(stored, 2)
        if flags % 4 ~= DELAYED or (expires > 0 and expires <= shard.now) then
            return nil
        elseif flags == DELAYED then
            return false
        end
        local topic, line = messages.names(mid)
        return topic and line
    end

    -- Delayed messages of a lane become ready, by their members in `a:N`. `lines`: what
    -- `line_of_due` has found; those whose keys are taken, and others for which it is nil, stay.
    -- `are_all`: nothing else is in `a:N`. Returns the events of those that are ready.
    function messages.arrive_together(lane, members, lines, are_all)
        local aside, sorted, events = {}, {}, {}
        for n = 1, #members do
            local member, line = members[n], lines[n]
            local rank, _, seq, mid = unpack_from('>I2I7I7I7', member, 2)
            if line == false or (line and messages.is_free(line)) then
                local place, stored = #aside + 1, unread[mid]
                if line then
                    messages.set_holder(line, mid, false)
                end
                aside[place], sorted[2 * place - 1], sorted[2 * place] = member, 0, rank % 2 == 1
                    and sub(member, 2) or member_of(rank - RANK_0, FRONT - seq, seq, mid)
                events[place] = DUE .. sub(member, -7)
                unread[mid], copied[mid] = sub(stored, 1, 1) .. string.char(byte(stored, 2)
                    - DELAYED + READY) .. sub(stored, 3), true
            end
        end
        lane.delayed, lane.ready, lane.sorted = lane.delayed - #aside, lane.ready + #aside,
            lane.sorted + #aside
        if are_all and #aside == #members then
            writes.clear(lanes.key_of('a', lane))
        else
            call_many('ZREM', lanes.key_of('a', lane), aside, 1)
        end
        call_many('ZADD', lanes.key_of('z', lane), sorted, 2)
        return events
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
                    park(lane, record, behind(record))
                    return
                end
                if other then -- it is overtaken, because the key was free
                    out_of_order(lane, other)
                    park(lane, other, behind(other))
                end
                messages.set_holder(line, record.mid, false)
            end
        end
        into_order(lane, record)
    end

    -- The message no longer has the serial key, for which none is parked.
    function messages.release_key(line, mid)
        if holder(line) == mid then
            writes.set_field(keys.keys, line, false)
        end
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
        unpark(lane, record, behind(record))
        into_order(lane, record)
        messages.set_holder(line, record.mid, false)
        lanes.touch(lane)
    end

    -- Several messages no longer have their keys: what is aside in their lanes is read at once.

    local MOST_ASIDE = 32

    -- The messages aside in these lanes, where they are few. `counts`: by lane, for how many keys
    -- the first parked one is wanted. Returns by lane {all members of `a:N`, by key the first
    -- parked one of them, how many each key has, those that `unpark_brief` takes out}.
    local function read_aside(counts)
        local found, mids = {}, {}
        for lane, count in pairs(counts) do
            if lane.parked <= 2 * count and lane.parked + lane.delayed <= MOST_ASIDE then
                local members, parked = call('ZRANGE', lanes.key_of('a', lane), 0, -1), 0
                for n = 1, #members do
                    if byte(members[n]) == 112 then -- "p"
                        parked, mids[#mids + 1] = parked + 1, messages.number_in(members[n])
                    end
                end
                if parked == lane.parked then -- else the doctor repairs the count
                    found[lane] = { members, {}, {}, {} }
                end
            end
        end
        messages.load(mids)
        for _, each in pairs(found) do
            local members, firsts, sizes = each[1], each[2], each[3]
            for n = 1, #members do
                local line = byte(members[n]) == 112 and messages.line_of(messages.number_in(
                    members[n]))
                if line then
                    firsts[line], sizes[line] = firsts[line] or members[n], (sizes[line] or 0) + 1
                end
            end
        end
        return found
    end

    local USUAL_PARKED = 24 -- bytes of a member of `a:N` with a rank near 0

    -- The first parked message of a key becomes ready. `aside`: of its lane, by `read_aside`.
    -- False, and nothing is changed, if it has to be decoded.
    local function unpark_brief(lane, line, aside)
        local member, gone = aside[2][line], aside[4]
        local mid = messages.number_in(member)
        local stored = unread[mid]
        if #member ~= USUAL_PARKED or byte(member, 3) % 2 == 0 or not stored
            or sub(stored, NO_RARE_AT, HEAD_BYTES) ~= NO_RARE
            or sub(line, 1, #lane.name + 1) ~= lane.name .. '\0' then
            return false
        end
        local parking, place = key('k:' .. line), sub(member, 2)
        lane.parked, lane.ready, lane.sorted = lane.parked - 1, lane.ready + 1, lane.sorted + 1
        if aside[3][line] == 1 then
            writes.clear(parking)
        else
            writes.set_member(parking, place, false)
        end
        gone[#gone + 1] = member
        writes.set_member(lanes.key_of('z', lane), place, 0)
        unread[mid], copied[mid] = sub(stored, 1, 1) .. string.char(byte(stored, 2) - PARKED
            + READY) .. sub(stored, 3), true
        messages.set_holder(line, mid, false)
        return true
    end

    -- As `free_key`, of several messages with different keys. `lanes_of`: their lanes.
    function messages.free_keys(lanes_of, lines, mids)
        local wanted, counts = {}, {}
        for n = 1, #lines do
            local lane = lanes_of[n]
            if lane.parked > 0 and holder(lines[n]) == mids[n] then
                wanted[n], counts[lane] = true, (counts[lane] or 0) + 1
            end
        end
        local found = read_aside(counts)
        for n = 1, #lines do
            local lane, line = lanes_of[n], lines[n]
            local aside = wanted[n] and found[lane]
            if aside and not aside[2][line] then
                messages.release_key(line, mids[n])
            elseif not aside or not unpark_brief(lane, line, aside) then
                messages.free_key(lane, line, mids[n])
            end
        end
        for lane, aside in pairs(found) do
            local name, gone = lanes.key_of('a', lane), aside[4]
            if #gone == #aside[1] then
                writes.clear(name)
            else
                for n = 1, #gone do
                    writes.set_member(name, gone[n], false)
                end
            end
            lanes.touch(lane)
        end
    end

    -- The end

    -- Delete the list of the ids that joined a message.
    function messages.forget_joined(record)
        if record.joined > 0 then
            gone_lists[#gone_lists + 1] = key('j:' .. text(record.mid))
        end
    end

    function messages.remove(lane, record)
        messages.take_out(lane, record)
        if record.parts > 0 then
            gone_lists[#gone_lists + 1] = key('b:' .. text(record.mid))
            gone_lists[#gone_lists + 1] = key('w:' .. text(record.mid))
        end
        messages.forget_joined(record)
    end

    -- Delete the record, but not the lists that belong to it.
    function messages.take_out(lane, record)
        writes.set_field(keys.m, record.mid, false)
        if record.mirrored then
            messages.mirror(lane, record, false)
        end
        known[record.mid], changed[record] = false, nil
    end

    local function count_letters(topic, more)
        if letters[topic] ~= false then
            letters[topic] = (letters[topic] or 0) + more
        end
    end

    -- For the doctor.
    function messages.count_letters_again(topic)
        letters[topic] = false
    end

    -- Change the numbers of topics' dead letters by what this call has counted.
    function messages.save_letters()
        local topics = {}
        for topic in pairs(letters) do
            topics[#topics + 1] = topic
        end
        for first = 1, #topics, SLICE do
            local last = min(first + SLICE - 1, #topics)
            local scores = call('ZMSCORE', keys['top:dead'], unpack(topics, first, last))
            for n = first, last do
                local more = letters[topics[n]]
                local number = more and (tonumber(scores[n - first + 1]) or 0) + more
                    or call('ZCARD', key('dead:' .. topics[n]))
                writes.set_member(keys['top:dead'], topics[n], number > 0 and number)
            end
        end
        letters = {}
    end

    -- A message that neither waits nor is leased becomes a dead letter.
    function messages.bury(lane, record, reason, failure)
        shard.deaths, shard.dead = shard.deaths + 1, shard.dead + 1
        local ends = shard.now + rules.of(record.topic).dead_ttl
        leave_plain(record)
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

    -- What `bury` makes of the rare fields of a message that has none, up to its death's number:
    -- one delivery, and the beginning of a list of five values.
    local LETTER = RARE_MARK .. '\194\0\1\194\0\0\0\0\0\194\149'

    -- What follows the number: the rest of its death and its history. The letters of a call often
    -- have it in common.
    local function rest_of_letter(ends, reason, failure)
        local last = last_rest
        if last.ends ~= ends or last.reason ~= reason or last.failure ~= failure then
            local now = shard.now
            last.ends, last.reason, last.failure, last.rest = ends, reason, failure, packed(now,
                ends, reason, failure, { { now, reason, failure } })
        end
        return last.rest
    end

    -- Bury a message that is leased for the first time and loaded, with an entry in its history.
    -- Returns its serial key (false: none); nil, and nothing changes, if it has to be decoded.
    function messages.bury_undecoded(lane, mid, reason, failure)
        local stored = unread[mid]
        if not stored or lane.is_bucket then
            return nil
        end
        local is_rich = byte(stored) == RICH
        if is_rich and sub(stored, NO_RARE_AT, HEAD_BYTES) ~= NO_RARE then
            return nil
        end
        local _, topic, key_of, _, headers = content_at(stored, is_rich and 1 + HEAD_BYTES or 2)
        if headers and results.reports_end(headers) then
            return nil
        end
        local number, line, ends = shard.deaths + 1, false, shard.now + rules.of(topic).dead_ttl
        shard.deaths, shard.dead = number, shard.dead + 1
        local rare = LETTER .. packed(number) .. rest_of_letter(ends, reason, failure)
        if is_rich then
            local flags = byte(stored, 2)
            line = flags > DEAD and topic .. '\0' .. key_of
            unread[mid] = sub(stored, 1, 1) .. string.char(flags - READY + DEAD)
                .. sub(stored, 3, NO_RARE_AT - 1) .. pack('>I4', #rare) .. rare
                .. sub(stored, HEAD_BYTES + 1)
        else
            local published = unpack_from('>I7', stored, #stored - 6)
            unread[mid] = pack(HEAD, RICH, DEAD, 1 + RANK_0, mid, published, published, 0, #rare)
                .. rare .. sub(stored, 2, -8)
        end
        copied[mid] = true
        count_letters(topic, 1)
        local n = #new_letters
        new_letters[n + 1], new_letters[n + 2] = number, mid
        letters_ends[n + 1], letters_ends[n + 2] = ends, RETENTION_ENDS .. sortable(mid)
        writes.set_member(key('dead:' .. topic), mid, number)
        writes.set_member(keys.dead_topics, topic, 0)
        return line
    end

    -- Add the letters that `bury_undecoded` has made to their lists. What it does needs this before
    -- anything else reads them.
    function messages.list_letters()
        call_many('ZADD', keys.dead, new_letters, 2)
        call_many('ZADD', keys.due, letters_ends, 2)
        new_letters, letters_ends = {}, {}
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
        record.history = record.history or {}
        record.history[#record.history + 1] = { shard.now, what, failure or false }
        if #record.history > HISTORY then
            table.remove(record.history, 1)
        end
        changed[record] = true
    end
end)
