-- Accepting messages that are not plain.
--
-- uses: policies, groups, gates, lanes, messages, ids, merging, flow_signals, backlog

local putting = part(function(putting)
    local SERIAL = { hold = HOLD, yield = YIELD }

    -- Arguments, then the content. -1 stands for none, as the time to live is positive.
    local DRAFT = '>Bi8i8i8i8i8i8i8'
    local DRAFT_BYTES = 57
    -- Most have a rank near 0, nothing but a delay and a time to live (less 1; 0: none).
    local USUAL = '>BI2I8I8'
    local USUAL_BYTES = 19
    local DRAFT_AND_SIZE, USUAL_AND_SIZE = DRAFT .. 'I2', USUAL .. 'I2' -- that of the head
    local IS_USUAL = 2 -- the first byte; others: 0, or 1 for Laneway's own

    -- Tables of drafts are used again in later calls, because creating them is slow. Usual ones
    -- never have the other fields.
    local POOL = 1100 -- more than a message and its copies
    local pool, taken, usual_pool, usual_taken = {}, 0, {}, 0

    local function reset()
        taken, usual_taken = 0, 0
    end

    local function draft_table(tables, number)
        local draft = { topic = '', key = false, id = false, headers = false, sticky = false, mkey =
            false, rank = 0, delay = 0, at = false, ttl = false, generated_mid = false, spread =
            false, signal = false, own = false, content = '', size = 0, policy = false,
            lane = false, line = false }
        if number <= POOL then
            tables[number] = draft
        end
        return draft
    end

    function putting.decode(stored)
        if taken + usual_taken == 0 then
            at_next_begin(reset)
        end
        local code_of_kind, code, delay, ttl, meta_size = unpack_from(USUAL_AND_SIZE, stored)
        if code_of_kind == IS_USUAL then
            usual_taken = usual_taken + 1
            local draft = usual_pool[usual_taken] or draft_table(usual_pool, usual_taken)
            local topic, key_of, id, headers, sticky, mkey = messages.fields_at(stored, USUAL_BYTES
                + 4)
            draft.topic, draft.key, draft.id, draft.headers, draft.sticky, draft.mkey = topic,
                key_of or false, id or false, headers or false, sticky, mkey or false
            draft.rank, draft.delay, draft.ttl = code - RANK_0, delay, ttl > 0 and ttl - 1
            draft.content, draft.size = sub(stored, USUAL_BYTES + 1), #stored - USUAL_BYTES - 2
                - meta_size
            return draft
        end
        taken = taken + 1
        local draft = pool[taken] or draft_table(pool, taken)
        local own, rank, delay, at, ttl, generated_mid, spread, signal, size = unpack_from(
            DRAFT_AND_SIZE, stored)
        local body_at = DRAFT_BYTES + 3 + size
        local topic, key_of, id, headers, sticky, mkey = messages.fields_at(stored, DRAFT_BYTES + 4)
        draft.topic, draft.key, draft.id, draft.headers, draft.sticky, draft.mkey = topic, key_of
            or false, id or false, headers or false, sticky, mkey or false
        draft.rank, draft.delay, draft.own = rank, delay, own == 1
        draft.at, draft.ttl, draft.spread, draft.signal = at >= 0 and at, ttl >= 0 and ttl, spread
            >= 0 and spread, signal >= 0 and signal
        draft.generated_mid = generated_mid >= 0 and generated_mid
        draft.content, draft.size = sub(stored, DRAFT_BYTES + 1), #stored - body_at + 1
        return draft
    end

    -- The topic of a draft that is not decoded, a text of MessagePack.
    function putting.topic_of(stored)
        local at = (byte(stored) == IS_USUAL and USUAL_BYTES or DRAFT_BYTES) + 4
        local mark, size = unpack_from('>BB', stored, at)
        if mark < 192 then
            return sub(stored, at + 1, at + mark - 160)
        elseif mark == 217 then
            return sub(stored, at + 2, at + 1 + size)
        end
        return sub(stored, at + 3, at + 2 + unpack_from('>I2', stored, at + 1))
    end

    -- What `decode` reads, of a draft that may have got an id.
    function putting.encode(draft)
        local code, delay, ttl = draft.rank + RANK_0, draft.delay, draft.ttl
        if code >= 0 and code < 65536 and delay >= 0 and not (draft.own or draft.at or draft.signal
            or draft.generated_mid or draft.spread) then
            return pack(USUAL, IS_USUAL, code, delay, ttl and ttl + 1 or 0) .. draft.content
        end
        return pack(DRAFT, draft.own and 1 or 0, draft.rank, delay, draft.at or -1, ttl or -1,
            draft.generated_mid or -1, draft.spread or -1, draft.signal or -1) .. draft.content
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

    -- The policies of the drafts' topics, where topics have policies of their own.
    local function load_rules(drafts)
        if shard.own > 0 then
            local names = {}
            for _, draft in pairs(drafts) do
                names[#names + 1] = draft.topic
            end
            policies.load(names)
        end
    end

    -- Read at once what the drafts need. Those of topics with a lane of their own get its name.
    function putting.load(drafts)
        if next(drafts) == nil then
            return
        end
        local names, merge_keys, lines, known = {}, {}, {}, {}
        load_rules(drafts)
        for _, draft in pairs(drafts) do
            local topic = draft.topic
            local policy = policies.of(topic)
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
                ids.add_wanted(known, topic, draft.id)
            end
        end
        lanes.load(names)
        ids.load(known)
        merging.load(merge_keys)
        messages.load_holders(lines)
    end

    local function insert(draft, policy, lane)
        local mid, topic, now = next_number(), draft.topic, shard.now
        local since, expires = now, draft.ttl and now + draft.ttl
        if draft.headers and flow_signals.waits(draft) then
            since, expires = UNTIL_SIGNALLED, false
        elseif draft.at or draft.delay > 0 then
            since = merging.explicit_due(draft)
        elseif draft.mkey and policy.window then
            since = merging.window_due(topic, draft.mkey, policy)
        end
        local serial = draft.key and SERIAL[policy.serial] or NO
        if draft.id then
            ids.set(topic, draft.id, mid)
        end
        lane.published, shard.published = lane.published + 1, shard.published + 1
        messages.begin_waiting(lane, messages.new(mid, draft, since, now, expires, serial))
        return mid
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
        local name = draft.lane or lanes.name_for(policy, draft.topic, draft.spread, shard.seq + 1)
        if draft.mkey then
            local number = merging.waiting_number(draft.topic, draft.mkey)
            local waiting = number and messages.read(number)
            if waiting and lanes.find(waiting.lane) and merging.join(lanes.find(waiting.lane),
                waiting, draft, policy) then
                arrivals[#arrivals + 1] = lanes.find(waiting.lane)
                return { 'merged', id_of(waiting) }
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

    -- The draft's delay, if it would expire before it is due; else nil.
    function putting.outlasts(draft)
        local ttl = draft.ttl
        if not ttl or (draft.delay < ttl and not draft.at) then
            return nil
        end
        local due = not draft.signal and not flow_signals.waits(draft)
            and merging.explicit_due(draft)
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
    -- or costs too much; nil: it can.
    function putting.refusal(draft, position)
        local by = putting.outlasts(draft)
        if by then
            return { 'impossible', position, by }
        end
        local most, gate = too_high_for(draft)
        return most and { 'costs too much', position, most, gate or '' }
    end

    -- The same of a draft that is not decoded: one without a cost.
    function putting.refusal_undecoded(stored, position)
        local kind, _, delay, ttl = unpack_from(USUAL, stored)
        if kind == IS_USUAL and (ttl == 0 or delay < ttl - 1) then
            return nil
        end
        return putting.refusal(putting.decode(stored), position)
    end

    -- The same of the first such draft of a call; nil: there is none. Called before anything is
    -- changed.
    function putting.first_refusal(order, drafts, stored)
        for n = 1, #order do
            local draft, found = drafts[n], nil
            if draft then
                found = putting.refusal(draft, n - 1)
            elseif order[n] < 0 then
                found = putting.refusal_undecoded(stored[n], n - 1)
            end
            if found then
                return found
            end
        end
    end

    local rest_then, id_then, tail -- of the content that was named last, see below

    -- The content at a position of a record, of a message of this topic, with a sticky id. Copies
    -- of a message differ in their topics only, so what follows the topic is encoded once.
    function putting.named(record, at, topic, id)
        local head, body_at = packed(topic), at + 2 + unpack_from('>I2', record, at)
        local rest = sub(record, at + 3 + #head, body_at - 1)
        if rest ~= rest_then or id ~= id_then then
            local _, key_of, _, headers, _, mkey = values_of(sub(record, at + 3, body_at - 1))
            tail = packed(key_of or false, id, headers or false, true, mkey or false)
            rest_then, id_then = rest, id
        end
        return pack('>I2', 1 + #head + #tail) .. CONTENT_MARK .. head .. tail
            .. sub(record, body_at)
    end

    -- Give a draft a sticky id.
    function putting.name(draft, id)
        draft.content = putting.named(draft.content, 1, draft.topic, id)
        draft.id, draft.sticky = id, true
    end

    -- The draft of a plain message's record.
    function putting.from_plain(record)
        return putting.decode(pack(USUAL, IS_USUAL, RANK_0 + 1, 0, 0) .. sub(record, 2))
    end
end)
