-- Policies. The hash `resolved` has one for each pattern: what holds for a topic whose most
-- specific pattern it is ("": topics without a pattern). Clients write it.
--
-- A topic with a policy of its own has an entry in `own` (topic → id). `own_sets` has that policy
-- (id → record, see record_formats.py); equal ones share a record, and `own_uses` counts their
-- topics. It is combined with the pattern's when it is needed, so that a change of one of the two
-- does not touch the other. Topics with partitions, or under a pattern with buckets, are in
-- `resolved` as patterns are, because clients need their policies to find the shard.
--
-- A pattern of topics also has a policy for each name of subscriptions that has some by pattern
-- (`orders.*#audit`), there or above: so the first one that is found is the whole one. The entry
-- `#` of the hash has these names. `consumed`: the pool is that of one consumer, whatever a topic's
-- own policy says.

local policies = part(function(policies)
    local FIELDS = {
        'rate', 'burst', 'concurrency', 'weight', 'tier', 'pool', 'lease', 'retries', 'backoff',
            'ttl', 'drop_expired', 'dead_ttl', 'serial',
        'gate', 'merge', 'merge_limit', 'window', 'debounce', 'max_wait', 'leading', 'dedupe',
            'max_backlog', 'max_backlog_bytes', 'on_full',
        'partitions', 'buckets', 'bucket_name', 'at_most_once', 'paused', 'limited', 'on_unhandled',
            'set_burst', 'auto_burst', 'by_operator', 'min_concurrency', 'max_concurrency', 'group',
        'key_concurrency', 'key_rate', 'consumed', 'max_cost',
        'history',
    }
    local KINDS = 5000
    local AUTO, LEAST, MOST = -1, 1, 64 -- a concurrency that adapts, and its usual bounds
    local by_name, by_stem, overridden, own_ids = {}, {}, {}, {}
    -- the stem of the topic before, and what holds for its topics; nil: not known
    local stem_before, policy_before
    -- decoded policies by their records, which seldom change from call to call
    local decoded, sets, kinds = {}, {}, 0

    local function reset()
        by_name, by_stem, overridden, own_ids, policy_before = {}, {}, {}, {}, nil
    end

    local function count_kind()
        kinds = kinds + 1
        if kinds > KINDS then
            decoded, sets, kinds = {}, {}, 1
        end
    end

    -- The partitions of a topic share its rate and its concurrency: these are not the lane's then,
    -- but those of a gate, see `gates.share`.
    local function derive(policy)
        policy.key_limited = (policy.key_concurrency or policy.key_rate) and true or false
        policy.key_limits = policy.key_limited and string.format('%d %.17g', policy.key_concurrency
            or 0, policy.key_rate or 0) or ''
        if policy.key_rate then
            policy.key_step = fairness.interval(policy.key_rate)
            policy.key_depth = fairness.depth(policy.key_step, 1 + policy.key_rate / 20)
        end
        policy.adapts = policy.concurrency == AUTO
        policy.least = policy.min_concurrency or LEAST
        policy.most = math.max(policy.max_concurrency or MOST, policy.least)
        policy.largest_cost = policy.max_cost or fairness.largest_cost(policy.rate, policy.burst)
        policy.shared = false
        if policy.partitions > 1 and (policy.rate or policy.concurrency) then
            policy.shared = { policy.rate, policy.rate and policy.burst, policy.adapts
                and policy.most or policy.concurrency, false, policy.adapts and policy.least }
            policy.rate, policy.concurrency, policy.adapts = false, false, false
        end
        if policy.rate then
            policy.step = fairness.interval(policy.rate)
            policy.depth = fairness.depth(policy.step, policy.burst)
        end
    end

    local function decode(stored)
        local policy = decoded[stored]
        if not policy then
            count_kind()
            policy = named(FIELDS, { values_of(stored) })
            policy.combined, decoded[stored] = {}, policy
            derive(policy)
        end
        return policy
    end

    local function stored_policy(name)
        local stored = overridden[name]
        if stored == nil then
            stored = call('HGET', keys.resolved, name)
        end
        return stored
    end

    -- That a pattern has no policy is remembered: topics with a stem of their own would cost a
    -- command each.
    local function read_pattern(pattern)
        local here, is_stored = memory(), overridden[pattern] == nil
        if is_stored and here.absent[pattern] then
            return nil
        end
        local stored = stored_policy(pattern)
        if not stored and is_stored and pattern ~= '' then
            here.absent[pattern], here.count = true, here.count + 1
        end
        return stored and decode(stored) or nil
    end

    -- Use other policies from now on, {pattern, its record or false} each, and else those that are
    -- stored. `exact`: how many names of all policies are exact topics.
    function policies.override(changes, exact)
        at_next_begin(reset)
        overridden = {}
        for _, each in ipairs(changes) do
            overridden[each[1]] = each[2]
        end
        shard.exact = exact
        by_name, by_stem, policy_before = {}, {}, nil
    end

    -- `stem`: "push.eu." for all topics push.eu.*, "" for all topics. `mark`: "#audit" for the
    -- topics of a subscription that has policies by pattern, else "".
    local function of_stem(stem, mark)
        local found = by_stem[stem .. mark]
        if not found then
            found = read_pattern(stem .. '*' .. mark)
                or mark ~= '' and read_pattern(stem .. '*')
            if not found then
                found = stem == '' and read_pattern('')
                    or of_stem(match(stem, '^(.*%.)[^.]*%.$') or '', mark)
            end
            by_stem[stem .. mark] = found
        end
        return found
    end

    -- Whether topics of this subscription (`#audit`) have policies by pattern.
    local function have_policies(mark)
        local here, is_stored = memory(), overridden['#'] == nil
        local found = is_stored and here.subscriptions
        if not found then
            local stored = stored_policy('#')
            found = stored and cmsgpack.unpack(stored) or {}
            here.subscriptions = is_stored and found
        end
        return found[sub(mark, 2)]
    end

    -- What holds for a topic without a policy of its own.
    local function of_patterns_of(name)
        if policy_before and sub(name, 1, #stem_before) == stem_before
            and not find_in(name, '[.#]', #stem_before + 1) then
            return policy_before
        end
        at_next_begin(reset)
        local at = find_in(name, '#', 1, true)
        local mark, stem = at and sub(name, at), stem_of(name)
        local found = of_stem(stem, mark and have_policies(mark) and mark or '')
        if not mark then
            stem_before, policy_before = stem, found
        end
        return found
    end

    -- Topics' own

    local function set_of(id)
        local set = sets[id]
        if not set then
            count_kind()
            local stored = call('HGET', keys.own_sets, id)
            if not stored then -- the store lost it; the doctor reports it
                return { is_marked = false, code = {}, operator = {} }
            end
            local is_marked, code, operator = values_of(stored)
            set = { is_marked = is_marked, code = code, operator = operator }
            sets[id] = set
        end
        return set
    end

    -- Fields that do not go together were set one after the other: "Changes" in
    -- docs/specification.md.
    local function fit(policy)
        policy.buckets, policy.bucket_name = false, false
        if policy.serial then -- it is stronger
            policy.key_concurrency, policy.key_rate = false, false
        end
        policy.burst = policy.set_burst or policy.auto_burst or 1
        derive(policy)
        policy.limited = (policy.rate or policy.concurrency or policy.shared or policy.gate
            or policy.key_limited)
            and true or false
        policy.window = policy.merge and policy.window
        policy.debounce = policy.window and policy.debounce
        policy.leading = policy.window and not policy.debounce and policy.leading
        if policy.at_most_once and policy.serial == 'yield' then
            policy.serial = 'hold'
        end
        return policy
    end

    local function copy_of(base)
        local policy = named(FIELDS, values_in(FIELDS, base))
        if base.shared then
            policy.rate, policy.concurrency = base.shared[1], base.shared[5] and AUTO
                or base.shared[3]
        end
        return policy
    end

    -- The operator's pattern overrides the topic's own policy in the code.
    local function combine(base, set)
        local policy = copy_of(base)
        for field, value in pairs(set.code) do
            if not base.by_operator[field] then
                policy[field] = value
            end
        end
        for field, value in pairs(set.operator) do
            policy[field] = value
        end
        policy.pool = base.consumed and base.pool or policy.pool
        return fit(policy)
    end

    local function combined(base, id)
        local found = base.combined[id]
        if not found then
            local set = set_of(id)
            count_kind()
            found = combine(base, set)
            base.combined[id] = found
        end
        return found
    end

    -- Read the ids of many topics at once.
    function policies.load(topics)
        if shard.own == 0 then
            return
        end
        at_next_begin(reset)
        local wanted = unknown_in(own_ids, topics)
        for n, id in ipairs(read_many(keys.own, wanted)) do
            own_ids[wanted[n]] = id
        end
    end

    -- Clients have to know the fields that decide how a message is written: the body's limit, ttl,
    -- serial, merge, backlog. `known`: the ids that the client has, by topic. Returns {topic, id or
    -- "", its record or ""} of each topic of the drafts where the shard has another one; nil: none.
    function policies.unknown_to(known, drafts)
        if shard.marked == 0 and next(known) == nil then
            return nil
        end
        local topics, is_there, found = {}, {}, {}
        for n = 1, #drafts do
            local topic = drafts[n].topic
            if not is_there[topic] then
                topics[#topics + 1], is_there[topic] = topic, true
            end
        end
        policies.load(topics)
        for n = 1, #topics do
            local topic = topics[n]
            local id = own_ids[topic]
            if id or known[topic] then
                local is = id and set_of(id).is_marked and id or ''
                if is ~= (known[topic] or '') then
                    found[#found + 1] = { topic, is, is ~= '' and call('HGET', keys.own_sets, is)
                        or '' }
                end
            end
        end
        return #found > 0 and found or nil
    end

    local uses

    local function use(id, count)
        if id then
            uses[id] = (uses[id] or 0) + count
            if set_of(id).is_marked then
                shard.marked = shard.marked + count
            end
            shard.own = shard.own + count
        end
    end

    -- Write how many topics use each policy; sets without topics are deleted. `own_tiers` counts
    -- the topics whose own policies name a tier: a tier in use is not removed.
    local function write_uses()
        for id, count in pairs(uses) do
            local set = set_of(id)
            for _, fields in ipairs({ set.code, set.operator }) do
                if fields.tier and count ~= 0
                    and call('HINCRBY', keys.own_tiers, fields.tier, count) <= 0 then
                    call('HDEL', keys.own_tiers, fields.tier)
                end
            end
            if call('HINCRBY', keys.own_uses, id, count) <= 0 then
                call('HDEL', keys.own_uses, id)
                call('HDEL', keys.own_sets, id)
                sets[id] = nil
            end
        end
    end

    -- `changes`: {topic, id before, id then} each, "" for none; `stored`: {id, record} of the new
    -- policies. Returns the positions that another client has changed meanwhile, and the topics.
    function policies.set_own(changes, stored)
        local others, topics, written, removed = {}, {}, {}, {}
        for _, each in ipairs(stored) do
            call('HSETNX', keys.own_sets, each[1], each[2])
        end
        for n, each in ipairs(changes) do
            topics[n] = each[1]
        end
        own_ids, uses = {}, {}
        policies.load(topics)
        for n, each in ipairs(changes) do
            local topic, before, after = each[1], each[2] ~= '' and each[2], each[3] ~= ''
                and each[3]
            if (own_ids[topic] or false) ~= before then
                others[#others + 1] = n
                use(after, 0)
            else
                use(before, -1)
                use(after, 1)
                own_ids[topic] = after
                if after then
                    written[#written + 1] = topic
                    written[#written + 1] = after
                else
                    removed[#removed + 1] = topic
                end
            end
        end
        call_many('HSET', keys.own, written, 2)
        call_many('HDEL', keys.own, removed, 1)
        write_uses()
        by_name = {}
        return others, topics
    end

    -- What holds for a topic, or for the pattern of a bucket.
    function policies.of(name)
        local found = by_name[name]
        if not found then
            at_next_begin(reset)
            local ends_in_star = byte(name, -1) == 42
            if ends_in_star then
                found = read_pattern(name)
            elseif shard.exact > 0 then
                local stored = stored_policy(name)
                found = stored and decode(stored)
            end
            if not found then
                found = of_patterns_of(name)
                local is_pattern = name == '*' or sub(name, -2) == '.*'
                if shard.own > 0 and not is_pattern then
                    policies.load({ name })
                    found = own_ids[name] and combined(found, own_ids[name]) or found
                end
                if found.buckets and string.find(name, '#', 1, true) then
                    -- subscriptions' topics do not fold into buckets
                    found.combined['#'] = found.combined['#'] or fit(copy_of(found))
                    found = found.combined['#']
                end
            end
            by_name[name] = found
        end
        return found
    end

    -- The same for a lane, which keeps it: most need no entry of their own here.
    function policies.of_lane(name)
        if shard.exact == 0 and shard.own == 0 and byte(name, -1) ~= 42 then
            local found = of_patterns_of(name)
            if not found.buckets then
                return found
            end
        end
        return policies.of(name)
    end

    -- `rate`, `burst` and `concurrency` of a policy are those of each lane; false: not limited.
    -- `adapts`: each lane's limit does. `shared`: what the partitions of the topic share: {rate,
    -- burst, concurrency, false, the least if it adapts}; or false.

    function policies.backoff(policy, attempts, random)
        local base, factor, cap, jitter, delays = unpack(policy.backoff)
        if delays then
            local delay = delays[math.min(attempts, #delays)]
            return round(delay * (jitter and 0.8 + 0.4 * random or 1) * 1000000)
        end
        -- else infinity times 0
        local delay = base == 0 and 0 or math.min(base * factor ^ math.min(attempts - 1, 200), cap)
        return round(delay * (jitter and random or 1) * 1000000)
    end
end)
