-- Recent counts of topics: messages that arrived, and attempts that failed; see shared/recent.py,
-- which has the numbers too. `recent:KIND` has the score of each topic.

local recent = part(function(recent)
    local STEP, MOST, HIGHEST = 32, 1000, 1000
    local HALF_LIVES = { ['in-rate'] = 20000000, failures = 300000000 } -- microseconds
    local LEAST = { ['in-rate'] = 1, failures = 0.05 }

    local function add(kind, topic, count, now)
        local name, at = keys['recent:' .. kind], now / HALF_LIVES[kind]
        local score = run('ZSCORE', name, topic)
        local before = score and 2 ^ min(tonumber(score) - at, HIGHEST) or 0
        run('ZADD', name, at + math.log(before + count) / math.log(2), topic)
        if not score and run('ZCARD', name) > 2 * MOST then
            run('ZREMRANGEBYRANK', name, 0, -MOST - 1)
        end
    end

    -- The topic of a lane's name, which may name a partition behind \31; nil: a bucket, which has
    -- many topics.
    local function topic_of(name)
        if byte(name) ~= 30 then
            local cut = find_in(name, '\31', 1, true)
            return cut and sub(name, 1, cut - 1) or name
        end
    end

    -- Forget the counts that are 0 by now, of topics where nothing has happened for long.
    function recent.forget(now)
        for kind, half_life in pairs(HALF_LIVES) do
            local least = now / half_life + math.log(LEAST[kind]) / math.log(2)
            local past = call('ZCOUNT', keys['recent:' .. kind], '-inf', least)
            if past > 0 then
                call('ZREMRANGEBYRANK', keys['recent:' .. kind], 0, past - 1)
            end
        end
    end

    -- Count the arrivals in a lane that has `published` messages now, `more` than before. Called
    -- if published % STEP < more: then the number passed a multiple of STEP.
    function recent.arrived(name, published, more, now)
        local topic = topic_of(name)
        if topic then
            local steps = floor(published / STEP) - floor((published - more) / STEP)
            add('in-rate', topic, steps * STEP, now)
        end
    end

    function recent.failed(name, count, now)
        local topic = topic_of(name)
        if topic then
            add('failures', topic, count, now)
        end
    end
end)
