-- Accepting messages that are not plain.
--
-- uses: rules, lanes, rich_heads, messages, ids, merging, signals, backlog

local putting = part(function(putting)
    local SERIAL = { hold = HOLD, yield = YIELD }

    -- Arguments, then the content. -1 stands for none, as the time to live is positive.
    local DRAFT = '>Bi8i8i8i8i8i8i8'
    local DRAFT_BYTES = 57
    -- Most have a rank near 0, nothing but a delay and a time to live (less 1; 0: none).
    local USUAL = '>BI2I8I8'
    local USUAL_BYTES = 19
    local IS_USUAL = 2 -- the first byte; others: 0, or 1 for Laneway's own

    -- Tables of drafts are used again in later calls, because creating them is slow. Usual ones
    -- never have the other fields.
    local POOL = 512
    local pool, taken, usual_pool, usual_taken = {}, 0, {}, 0

    at_begin(function()
        taken, usual_taken = 0, 0
    end)

    local function draft_table(tables, number)
        local draft = tables[number]
        if not draft then
            draft = { topic = '', key = false, id = false, headers = false, sticky = false, mkey =
                false, rank = 0, delay = 0, at = false, ttl = false, generated_mid = false, spread =
                false, signal = false, own = false, content = '', size = 0, policy = false,
                lane = false }
            if number <= POOL then
                tables[number] = draft
            end
        end
        return draft
    end

    local function decode_usual(stored)
        usual_taken = usual_taken + 1
        local draft = draft_table(usual_pool, usual_taken)
        local _, code, delay, ttl, size = unpack_from(USUAL .. 'I2', stored)
        local body_at = USUAL_BYTES + 3 + size
        local topic, key_of, id, headers, sticky, mkey = values_of(sub(stored, USUAL_BYTES
            + 4, body_at - 1))
        draft.topic, draft.key, draft.id, draft.headers, draft.sticky, draft.mkey = topic, key_of
            or false, id or false, headers or false, sticky, mkey or false
        draft.rank, draft.delay, draft.ttl = code - RANK_0, delay, ttl > 0 and ttl - 1
        draft.content, draft.size = sub(stored, USUAL_BYTES + 1), #stored - body_at + 1
        return draft
    end

    function putting.decode(stored)
        if byte(stored) == IS_USUAL then
            return decode_usual(stored)
        end
        taken = taken + 1
        local draft = draft_table(pool, taken)
        local own, rank, delay, at, ttl, generated_mid, spread, signal, size = unpack_from(DRAFT
            .. 'I2', stored)
        local body_at = DRAFT_BYTES + 3 + size
        -- the values of a list, without a table
        local topic, key_of, id, headers, sticky, mkey = values_of(sub(stored, DRAFT_BYTES
            + 4, body_at - 1))
        draft.topic, draft.key, draft.id, draft.headers, draft.sticky, draft.mkey = topic, key_of
            or false, id or false, headers or false, sticky, mkey or false
        draft.rank, draft.delay, draft.own = rank, delay, own == 1
        draft.at, draft.ttl, draft.spread, draft.signal = at >= 0 and at, ttl >= 0 and ttl, spread
            >= 0 and spread, signal >= 0 and signal
        draft.generated_mid = generated_mid >= 0 and generated_mid
        draft.content, draft.size = sub(stored, DRAFT_BYTES + 1), #stored - body_at + 1
        return draft
    end

    -- Release what the tables hold: bodies may be large.
    function putting.forget()
        for n = 1, min(taken, POOL) do
            pool[n].content = ''
        end
        for n = 1, min(usual_taken, POOL) do
            usual_pool[n].content = ''
        end
    end

    -- Whether nothing has to be decided about a draft that `decode_usual` has read: it is accepted,
    -- and waits in the lane of its topic, if its policy allows that.
    local function is_accepted(draft)
        local headers = draft.headers
        return not (draft.id or draft.mkey or draft.sticky)
            and not (headers and (headers['laneway-cost'] or headers['laneway-signals']))
    end

    local function is_accepting(policy)
        return policy.partitions == 1 and not policy.buckets and not policy.max_backlog
            and not policy.max_backlog_bytes
    end

    -- Read at once what the drafts need, and the beginnings of their lanes, if all of them are
    -- accepted, and none is in one of these topics of plain messages. Returns false, and nothing
    -- was read, if not.
    function putting.load_accepted(drafts, topics)
        if taken > 0 or shard.own > 0 or shard.max_backlog or shard.max_backlog_bytes then
            return false
        end
        local names, only_delayed, lines, last_policy, is_plain = {}, {}, {}, nil, {}
        for n = 1, #topics do
            is_plain[topics[n]] = true
        end
        for _, draft in pairs(drafts) do
            local topic, is_delayed = draft.topic, draft.delay > 0
            local policy = rules.of(topic)
            if is_plain[topic] or not is_accepted(draft)
                or (policy ~= last_policy and not is_accepting(policy)) then
                return false
            end
            last_policy, draft.policy, draft.lane = policy, policy, topic
            if only_delayed[topic] == nil then
                names[#names + 1], only_delayed[topic] = topic, is_delayed
            elseif not is_delayed then
                only_delayed[topic] = false
            end
            if draft.key and policy.serial then
                lines[#lines + 1] = topic .. '\0' .. draft.key
            end
        end
        messages.load_holders(lines)
        rich_heads.load(names, only_delayed)
        return true
    end

    -- Read at once what the drafts need. Those of topics with a lane of their own get its name.
    function putting.load(drafts)
        local names, merge_keys, lines, known = {}, {}, {}, {}
        if shard.own > 0 then
            for _, draft in pairs(drafts) do
                names[#names + 1] = draft.topic
            end
            rules.load(names)
            names = {}
        end
        for _, draft in pairs(drafts) do
            local topic = draft.topic
            local policy = rules.of(topic)
            draft.policy = policy
            if policy.partitions == 1 and not policy.buckets then
                draft.lane, names[#names + 1] = topic, topic
            elseif policy.partitions == 1 or draft.spread then
                draft.lane, names[#names + 1] = false, lanes.name_for(policy, topic, draft.spread)
            else
                draft.lane = false
            end
            if draft.mkey then
                merge_keys[#merge_keys + 1] = topic .. '\0' .. draft.mkey
            end
            if draft.key and policy.serial then
                lines[#lines + 1] = topic .. '\0' .. draft.key
            end
            if draft.id then
                local of_topic = known[topic]
                if not of_topic then
                    of_topic = {}
                    known[topic] = of_topic
                end
                of_topic[#of_topic + 1] = draft.id
            end
        end
        lanes.load(names)
        ids.load(known)
        merging.load(merge_keys)
        messages.load_holders(lines)
    end

    local function insert_decoded(draft, lane, mid, since, expires, serial)
        lane.published, shard.published = lane.published + 1, shard.published + 1
        messages.begin_waiting(lane, messages.new({
            mid = mid, state = READY, rank = draft.rank, seq = mid, since = since, published =
                shard.now, expires = expires, serial = serial, topic = draft.topic,
            lane = lane.name, key = draft.key, id = draft.id, mkey = draft.mkey, headers =
                draft.headers, content = draft.content, size = draft.size,
        }, draft.sticky))
        return mid
    end

    local function insert(draft, policy, lane)
        local mid, topic, now = next_number(), draft.topic, shard.now
        local since, expires = now, draft.ttl and now + draft.ttl
        if draft.headers and signals.waits(draft) then
            since, expires = UNTIL_SIGNALLED, false
        elseif draft.at or draft.delay > 0 then
            since = merging.explicit_due(draft)
        elseif draft.mkey and policy.window then
            since = merging.window_due(topic, draft.mkey, policy)
        end
        local serial = draft.key and SERIAL[policy.serial] or NO
        local line = serial ~= NO and topic .. '\0' .. draft.key
        if draft.id then
            ids.set(topic, draft.id, mid)
        end
        if draft.lane and (not line or since > now or messages.is_free(line)) then
            messages.insert(lane, draft, mid, since, expires, serial, line)
            return mid
        end
        return insert_decoded(draft, lane, mid, since, expires, serial)
    end

    -- Duplicate, merged, refused or accepted, in this order. Returns the number, or {outcome, …}.
    -- A copy is not refused.
    function putting.accept(draft, arrivals, is_copy)
        if draft.signal then
            return signals.receive(draft, arrivals)
        end
        local policy = draft.policy
        if draft.id and ids.is_known(draft.topic, draft.id, draft.generated_mid) then
            return { 'duplicate' }
        end
        local name = draft.lane or lanes.name_for(policy, draft.topic, draft.spread, shard.seq + 1)
        if draft.mkey then
            local joined, waiting = merging.join_brief(draft, policy), nil
            if joined then
                return { 'merged', joined }
            end
            waiting = merging.waiting_one(draft.topic, draft.mkey)
            if waiting and lanes.find(waiting.lane) and merging.join(lanes.find(waiting.lane),
                waiting, draft, policy) then
                arrivals[#arrivals + 1] = lanes.find(waiting.lane)
                return { 'merged', ids.of(waiting) }
            end
        end
        if not draft.own and (policy.max_backlog or policy.max_backlog_bytes or shard.max_backlog
            or shard.max_backlog_bytes) then
            local limit = backlog.make_room(draft.topic, policy, draft.size, is_copy)
            if limit and not is_copy then
                return { 'refused', limit[5], text(limit[1]), text(limit[2]) }
            end
        end
        local lane = lanes.make(name)
        lane.policy = lane.policy or draft.lane and policy
        arrivals[#arrivals + 1] = lane
        return insert(draft, policy, lane)
    end

    -- Accept a draft about which nothing has to be decided, see `load_accepted`.
    function putting.insert(draft, arrivals)
        local topic, ttl, delay, key_of, now = draft.topic, draft.ttl, draft.delay, draft.key,
            shard.now
        local lane, which = rich_heads.use(topic), key_of and draft.policy.serial
        if not lane then
            lane = lanes.make(topic)
            lane.policy = lane.policy or draft.policy
            arrivals[#arrivals + 1] = lane
        end
        local mid, since, expires = next_number(), delay > 0 and now + delay or now, ttl and now
            + ttl
        local line = which and topic .. '\0' .. key_of
        if line and since == now and not messages.is_free(line) then
            return insert_decoded(draft, lane, mid, since, expires, SERIAL[which])
        end
        messages.insert(lane, draft, mid, since, expires, line and SERIAL[which] or NO, line)
        return mid
    end

    -- The position of the first draft that would expire before it is due, and its delay; nil: none.
    -- Called before anything is changed.
    function putting.impossible(drafts)
        for n, draft in pairs(drafts) do
            local due = draft.ttl and not draft.signal and not signals.waits(draft)
                and merging.explicit_due(draft)
            if due and due >= shard.now + draft.ttl then
                return n, due - shard.now
            end
        end
    end
end)
