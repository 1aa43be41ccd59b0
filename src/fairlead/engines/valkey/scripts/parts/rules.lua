-- Policies: for each pattern that somebody set one for, what holds for a topic of which it is the most specific (hash `rules`, written by
-- the client; "": where there is none). The patterns that cover a topic are those that cover its most specific one.

local rules = part(function(rules)
    local FIELDS = {
        'rate', 'burst', 'concurrency', 'weight', 'tier', 'pool', 'lease', 'retries', 'backoff', 'ttl', 'drop_expired', 'dead_ttl', 'serial',
        'gate', 'merge', 'merge_limit', 'window', 'debounce', 'max_wait', 'leading', 'dedupe', 'max_backlog', 'max_backlog_bytes', 'on_full',
        'partitions', 'buckets', 'bucket_name', 'at_most_once', 'paused', 'limited', 'on_unhandled',
    }
    local KINDS = 1000
    local by_name, by_stem, overridden
    local decoded, kinds = {}, 0 -- policies by what is stored of them: it seldom changes from call to call

    at_begin(function()
        by_name, by_stem, overridden = {}, {}, {}
    end)

    local function read(pattern)
        local stored = overridden[pattern]
        if stored == nil then
            stored = call('HGET', keys.rules, pattern)
        end
        if not stored then
            return nil
        end
        local policy = decoded[stored]
        if not policy then
            if kinds == KINDS then
                decoded, kinds = {}, 0
            end
            local values = { values_of(stored) }
            policy = {}
            for n = 1, #FIELDS do
                policy[FIELDS[n]] = values[n]
            end
            if policy.rate then
                policy.step = fairness.interval(policy.rate)
                policy.depth = fairness.depth(policy.step, policy.burst)
            end
            decoded[stored], kinds = policy, kinds + 1
        end
        return policy
    end

    -- What holds from here on: {pattern, as it is stored or false} each.
    function rules.override(changes, exact)
        for _, each in ipairs(changes) do
            overridden[each[1]] = each[2]
        end
        shard.exact = exact
        by_name, by_stem = {}, {}
    end

    -- `stem`: "push.eu." of all topics push.eu.*, "" of all.
    local function of_stem(stem)
        local found = by_stem[stem]
        if not found then
            found = read(stem .. '*')
            if not found then
                found = stem == '' and read('') or of_stem(string.match(stem, '^(.*%.)[^.]*%.$') or '')
            end
            by_stem[stem] = found
        end
        return found
    end

    -- What holds for a topic, or for the pattern of a bucket.
    function rules.of(name)
        if shard.exact == 0 and string.byte(name, -1) ~= 42 then -- "*"
            return of_stem(string.match(name, '^(.*%.)') or '')
        end
        local found = by_name[name]
        if not found then
            found = read(name) or of_stem(string.match(name, '^(.*%.)') or '')
            by_name[name] = found
        end
        return found
    end

    -- Rates as they are for each lane are `rate`, `burst`, `concurrency`; false: no such limit.

    function rules.backoff(policy, attempts, random)
        local base, factor, cap, jitter = unpack(policy.backoff)
        local delay = base == 0 and 0 or math.min(base * factor ^ math.min(attempts - 1, 200), cap) -- else infinity times 0
        return round(delay * (jitter and random or 1) * 1000000)
    end
end)
