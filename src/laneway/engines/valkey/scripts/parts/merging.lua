-- Merging messages with the same merge key: on publish, and when a leased message returns while
-- another one waits. Example: merging.py; rules: "Arriving" in docs/specification.md.

local merging = part(function(merging)
    local MAX_WAIT_WINDOWS = 10

    -- The message that waits with a merge key; nil or false: none.
    function merging.waiting_one(topic, mkey)
        local mid = writes.field(keys.merge, topic .. '\0' .. mkey)
        return mid and messages.read(tonumber(mid))
    end

    -- Read the waiting messages of several merge keys at once: topic and key, joined by \0.
    function merging.load(wanted)
        local mids, found = {}, writes.load_fields(keys.merge, wanted)
        for n = 1, #wanted do
            mids[#mids + 1] = tonumber(found[wanted[n]])
        end
        messages.load(mids)
    end

    -- The due time that the publisher set; false: none.
    function merging.explicit_due(draft)
        if draft.at then
            return max(draft.at, shard.now)
        end
        return draft.delay > 0 and shard.now + draft.delay
    end

    -- When the first message of a key is due by the policy's window.
    function merging.window_due(topic, mkey, policy)
        if not policy.leading then
            return shard.now + policy.window
        end
        local where = topic .. '\0' .. mkey
        local due = max(shard.now, tonumber(call('ZSCORE', keys.edges, where) or 0))
        -- the next window begins when this message is due
        call('ZADD', keys.edges, due + policy.window, where)
        return due
    end

    function merging.forget_edges(most)
        local past = call('ZRANGE', keys.edges, '-inf', shard.now, 'BYSCORE', 'LIMIT', 0, most)
        call_many('ZREM', keys.edges, past, 1)
    end

    local function new_due(record, draft, policy)
        local due = policy.merge == 'last' and merging.explicit_due(draft)
        if not due and policy.debounce and policy.window and record.since > shard.now then
            local most = policy.max_wait or MAX_WAIT_WINDOWS * policy.window
            due = max(min(record.published + most, shard.now + policy.window), shard.now)
        end
        return due or record.since
    end

    local function set_content(record, from)
        messages.set_content(record, from, record.sticky)
        if record.parts > 0 then -- collected under the policy `all`
            call('DEL', key('b:' .. text(record.mid)))
            record.parts, record.parts_bytes = 0, 0
        end
    end

    function merging.add_part(record, body)
        call('RPUSH', key('b:' .. text(record.mid)), body)
        record.parts, record.parts_bytes = record.parts + 1, record.parts_bytes + #body
    end

    -- A message whose priority changes gets a new sequence number.
    local function set_rank(record, rank)
        if rank ~= record.rank then
            record.rank, record.seq = rank, next_number()
        end
    end

    -- Change the waiting message that a new one joins: its due time and, with "last", its content.
    -- It keeps its place if it would return to it.
    local function change_waiting(lane, record, draft, policy)
        local due, is_last, now = new_due(record, draft, policy), policy.merge == 'last', shard.now
        local moves = due ~= record.since
        if not is_last and not moves then
            return
        end
        moves = moves or draft.rank ~= record.rank or not messages.stays(record)
        if moves then
            messages.end_waiting(lane, record)
            if due > now then
                key_limits.leave(lane, record)
            end
            if record.serial ~= NO and not messages.holds_key(record) then
                -- it has to wait for its key again
                messages.free_key(lane, messages.line(record), record.mid)
            end
            record.since = due
        end
        if is_last then
            local size, ends = messages.size(record), draft.ttl and now + draft.ttl
            set_content(record, draft)
            if record.attempts > 0 then
                record.attempts = 0
            end
            if moves then
                record.expires = ends
                set_rank(record, draft.rank)
            else
                messages.stay(lane, record, size, ends)
            end
        end
        if moves then
            messages.begin_waiting(lane, record)
        end
    end

    -- Let a new message join the waiting one; false: that one is full, and the new one waits beside
    -- it.
    function merging.join(lane, record, draft, policy)
        if policy.merge == 'all' then
            if record.parts + 1 >= policy.merge_limit then
                return false
            end
            merging.add_part(record, body_of(draft))
            messages.resize(lane, record, draft.size)
        end
        change_waiting(lane, record, draft, policy)
        if draft.sticky then
            messages.make_sticky(record)
        end
        if draft.id then
            ids.join(record, draft.id)
        end
        lane.merged, shard.merged = lane.merged + 1, shard.merged + 1
        lanes.touch(lane)
        messages.touch(record)
        return true
    end

    -- `record` comes back from a lease. The message of its merge key that waits joins it, as if
    -- `record` had been published first. Returns false if both together exceed the merge limit:
    -- then both wait, and new messages join the other one.
    function merging.rejoin(lane, record)
        local other = record.mkey and merging.waiting_one(record.topic, record.mkey)
        if not other or other.mid == record.mid then
            return true
        end
        local policy = policies.of(record.topic)
        if policy.merge == 'all' and record.parts + other.parts + 2 > policy.merge_limit then
            return false
        end
        messages.end_for_good(lane, other)
        local more = other.parts > 0 and call('LRANGE', key('b:' .. text(other.mid)), 0, -1) or {}
        if policy.merge == 'all' then
            merging.add_part(record, body_of(other))
        elseif policy.merge == 'last' then
            set_content(record, other)
            record.expires = other.expires
            set_rank(record, other.rank)
        end
        if policy.merge == 'all' or policy.merge == 'last' then
            for _, body in ipairs(more) do
                merging.add_part(record, body)
            end
        end
        ids.absorb(record, other)
        if other.sticky then
            messages.make_sticky(record)
        end
        messages.free_key(lane, messages.line(other), other.mid)
        messages.remove(lane, other)
        lane.merged, shard.merged = lane.merged + 1, shard.merged + 1
        return true
    end
end)
