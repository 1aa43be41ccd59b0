-- Accepting a message.

local putting = part(function(putting)
    local SERIAL = { hold = HOLD, yield = YIELD }

    -- Arguments, then the content. -1 stands for none, as the time to live is positive.
    local DRAFT = '>Bi8i8i8i8i8i8i8'
    local DRAFT_BYTES = 57
    local PLAIN_WITH_ID = 112 -- "p"

    -- Tables of drafts that are not plain are used again in later calls, because creating them is
    -- slow.
    local POOL = 1100 -- more than a message and its copies
    local pool, taken = {}, 0

    local function reset()
        taken = 0
    end

    -- Read the head of a draft: what its options say, its topic and its id. `content`: false until
    -- `decode` reads the rest.
    function putting.read(stored)
        local kind = byte(stored)
        if kind == PLAIN or kind == PLAIN_WITH_ID then
            local _, topic, _, id = unpack_limit(stored, 3, 4)
            return { topic = topic, id = id or false, stored = stored, is_plain = true,
                size = #stored - 3 - unpack_from('>I2', stored, 2) }
        end
        if taken == 0 then
            at_next_begin(reset)
        end
        taken = taken + 1
        local draft = pool[taken] or { topic = '', id = false, size = 0, stored = '', is_plain =
            false, key = false, headers = false, sticky = false, mkey = false, rank = 0, delay = 0,
            at = false, ttl = false, generated_mid = false, spread = false, signal = false,
            own = false, content = false, policy = false, lane = false }
        pool[taken] = taken <= POOL and draft or nil
        local own, rank, delay, at, ttl, generated_mid, spread, signal = unpack_from(DRAFT, stored)
        local _, topic, _, id = unpack_limit(stored, 3, DRAFT_BYTES + 3)
        draft.stored, draft.content, draft.mkey, draft.headers, draft.own, draft.rank, draft.delay,
            draft.at, draft.ttl, draft.generated_mid, draft.spread, draft.signal, draft.topic,
            draft.id, draft.size
            = stored, false, false, false, own == 1, rank, delay,
            at >= 0 and at, ttl >= 0 and ttl, generated_mid >= 0 and generated_mid,
            spread >= 0 and spread, signal >= 0 and signal, topic,
            id or false, #stored - DRAFT_BYTES - 2 - unpack_from('>I2', stored, DRAFT_BYTES + 1)
        return draft
    end

    function putting.decode(draft)
        if draft.is_plain or draft.content then
            return
        end
        local _, _, key_of, _, headers, sticky, mkey = unpack_limit(draft.stored, 6, DRAFT_BYTES
            + 3)
        draft.key, draft.headers, draft.sticky, draft.mkey = key_of or false, headers or false,
            sticky, mkey or false
        draft.content = sub(draft.stored, DRAFT_BYTES + 1)
    end

    -- Whether this call has read messages that are not plain: these may cause events.
    function putting.has_events()
        return taken > 0
    end

    -- Release what the tables hold: bodies may be large.
    function putting.forget()
        for n = 1, min(taken, POOL) do
            pool[n].stored, pool[n].content = '', false
        end
    end

    local is_limited -- whether the namespace has a backlog limit

    -- Set the policy of a draft that is not plain and, if its topic has one lane, the name of that.
    -- Add its merge key and its serial key. Returns the name of its lane; nil: its number decides.
    local function look_up(draft, merge_keys, lines)
        local topic = draft.topic
        local policy = policies.of(topic)
        draft.policy = policy
        draft.lane = not policy.buckets and policy.partitions == 1 and topic
        if draft.mkey then
            merge_keys[#merge_keys + 1] = topic .. '\0' .. draft.mkey
        end
        if draft.key and policy.serial then
            lines[#lines + 1] = topic .. '\0' .. draft.key
        end
        return draft.lane or (policy.buckets or draft.spread) and lanes.name_for(policy, topic,
            draft.spread) or nil
    end

    -- Read at once what the first drafts need.
    function putting.load(drafts, count)
        local names, last, by_topic, merge_keys, lines = {}, nil, nil, nil, nil
        is_limited = shard.max_backlog or shard.max_backlog_bytes
        if taken > 0 then -- not all are plain
            merge_keys, lines = {}, {}
        end
        if shard.own > 0 then
            local topics = {}
            for n = 1, count do
                topics[n] = drafts[n].topic
            end
            policies.load(topics)
        end
        for n = 1, count do
            local draft = drafts[n]
            local name = draft.is_plain and draft.topic or look_up(draft, merge_keys, lines)
            if name and name ~= last then
                names[#names + 1], last = name, name
            end
            if draft.id then
                by_topic = by_topic or {}
                ids.add_wanted(by_topic, draft.topic, draft.id)
            end
        end
        lanes.load(names)
        if by_topic then
            ids.load(by_topic)
        end
        if merge_keys and merge_keys[1] then
            merging.load(merge_keys)
        end
        if lines and lines[1] then
            messages.load_holders(lines)
        end
    end

    -- Let a message wait that is not plain.
    local function insert(draft, policy, lane, mid)
        local since, expires, now = shard.now, draft.ttl and shard.now + draft.ttl, shard.now
        if draft.headers and draft.headers['laneway-signals'] then
            since, expires = UNTIL_SIGNALLED, false
        elseif draft.at or draft.delay > 0 then
            since = merging.explicit_due(draft)
        elseif draft.mkey and policy.window then
            since = merging.window_due(draft.topic, draft.mkey, policy)
        end
        local serial = draft.key and SERIAL[policy.serial] or NO
        messages.begin_waiting(lane, messages.new(mid, draft, since, now, expires, serial))
    end

    -- Duplicate, merged, refused or accepted, in this order. Returns the number, or {outcome, …}.
    -- A copy is not refused.
    function putting.accept(draft, arrivals, is_copy)
        if draft.signal then
            return flow_signals.receive(draft, arrivals)
        end
        local policy = draft.policy
        if draft.id and ids.is_known(draft.topic, draft.id, draft.generated_mid) then
            return { 'duplicate' }
        end
        local name = draft.is_plain and draft.topic or draft.lane
            or lanes.name_for(policy, draft.topic, draft.spread, shard.seq + 1)
        local waiting = draft.mkey and merging.waiting_one(draft.topic, draft.mkey)
        local its_lane = waiting and lanes.find(waiting.lane)
        if its_lane and merging.join(its_lane, waiting, draft, policy) then
            arrivals[#arrivals + 1] = its_lane
            return { 'merged', id_of(waiting) }
        end
        if not draft.own and (is_limited or policy and (policy.max_backlog
            or policy.max_backlog_bytes)) then
            local limit = backlog.make_room(draft.topic, policy or policies.of(draft.topic),
                draft.size, is_copy, arrivals)
            if limit and not is_copy then
                return { 'refused', limit[5], text(limit[1]), text(limit[2]) }
            end
        end
        local lane, mid = lanes.find(name) or lanes.make(name), next_number()
        arrivals[#arrivals + 1] = lane
        lane.published, shard.published = lane.published + 1, shard.published + 1
        if draft.id then
            ids.set(draft.topic, draft.id, mid)
        end
        if draft.is_plain then
            plain.append(lane, mid, draft.stored, draft.size)
        else
            lane.policy = lane.policy or draft.lane and policy
            insert(draft, policy, lane, mid)
        end
        return mid
    end

    -- The draft's delay, if it would expire before it is due; else nil.
    local function outlasts(draft)
        local ttl = draft.ttl
        if not ttl or (draft.delay < ttl and not draft.at) then
            return nil
        end
        putting.decode(draft)
        local waits = draft.signal or draft.headers and draft.headers['laneway-signals']
        local due = not waits and merging.explicit_due(draft)
        return due and due >= shard.now + ttl and due - shard.now or nil
    end

    -- The largest cost that its policy and its gates allow the draft, and the gate that allows no
    -- more (nil: the policy), if it costs more; else nil.
    local function too_high_for(draft)
        local cost = draft.headers and messages.cost_in(draft.headers) or 1
        if cost == 1 or draft.signal or draft.own then
            return nil
        end
        local policy = policies.of(draft.topic)
        local name = policy.group and groups.name_for(policy.group, policy.bucket_name
            or draft.topic)
        local gate = (policy.gate or '') .. (name and '\31' .. GROUP .. name or '')
        local most, by = gates.largest_cost(gate, policy.largest_cost)
        if cost > most then
            return most, by
        end
    end

    -- The answer if a draft at this position cannot be published: it would expire before it is due,
    -- or costs too much; nil: it can. One that is not decoded has no cost.
    function putting.refusal(draft, position)
        local by = outlasts(draft)
        if by then
            return { 'impossible', position, by }
        end
        local most, gate = too_high_for(draft)
        return most and { 'costs too much', position, most, gate or '' }
    end

    -- Decode drafts up to this position. Returns the same of the first such draft of a call; nil:
    -- there is none. Called before anything is changed.
    function putting.decode_all(drafts, last)
        for n = 1, taken > 0 and #drafts or 0 do
            if n <= last then
                putting.decode(drafts[n])
            end
            local found = putting.refusal(drafts[n], n - 1)
            if found then
                return found
            end
        end
    end

    -- The content at a position of a record, of a message of this topic, with a sticky id.
    local function named_content(record, at, topic, id)
        local _, _, key_of, _, headers, _, mkey = unpack_limit(record, 6, at + 2)
        return content_of(topic, key_of or false, id, headers or false, true, mkey or false,
            sub(record, at + 2 + unpack_from('>I2', record, at)))
    end

    -- Give a draft a sticky id.
    function putting.name(draft, id)
        if draft.is_plain then
            draft.stored = 'p' .. named_content(draft.stored, 2, draft.topic, id)
        else
            draft.content = named_content(draft.content, 1, draft.topic, id)
        end
        draft.id, draft.sticky = id, true
    end
end)
