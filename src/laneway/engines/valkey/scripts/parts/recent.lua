-- Recent counts of topics: messages that arrived, and attempts that failed; see shared/recent.py,
-- which has the numbers too. `recent:KIND` has the score of each topic.

local recent = part(function(recent)
    local STEP, MOST, HIGHEST = 32, 1000, 1000
    local HALF_LIVES = { ['in-rate'] = 20000000, failures = 300000000 } -- microseconds
    local LEAST = { ['in-rate'] = 1, failures = 0.05 }

    -- of this call, by kind and topic: a command for each would be slow
    local counts = {}

    local function reset()
        counts = {}
    end

    function recent.add(kind, topic, count)
        at_next_begin(reset)
        counts[kind] = counts[kind] or {}
        counts[kind][topic] = (counts[kind][topic] or 0) + count
    end

    local function write(kind, of_kind, now)
        local name, at, topics, written, is_new = keys['recent:' .. kind], now / HALF_LIVES[kind],
            {}, {}, false
        local log, log_of_2 = math.log, math.log(2)
        for topic in pairs(of_kind) do
            topics[#topics + 1] = topic
        end
        for n, score in ipairs(read_many(name, topics, run, 'ZMSCORE')) do
            local before = score and 2 ^ min(tonumber(score) - at, HIGHEST) or 0
            is_new = is_new or not score
            written[2 * n - 1], written[2 * n] = at + log(before + of_kind[topics[n]]) / log_of_2,
                topics[n]
        end
        run_many('ZADD', name, written, 2)
        if is_new and run('ZCARD', name) > 2 * MOST then
            run('ZREMRANGEBYRANK', name, 0, -MOST - 1)
        end
    end

    -- Write what this call has counted.
    function recent.save(now)
        for kind, of_kind in pairs(counts) do
            write(kind, of_kind, now)
            counts[kind] = nil
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
    function recent.arrived(topic, published, more)
        local steps = floor(published / STEP) - floor((published - more) / STEP)
        recent.add('in-rate', topic, steps * STEP)
    end
end)
