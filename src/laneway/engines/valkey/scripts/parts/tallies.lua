-- Tallies: what happened so far, by tier and pattern, see base/history.py. A lane is counted when
-- it is written: what its counters have become since it was read. A call adds that up and changes
-- few fields of one hash, mostly one. Its fields:
--
--   since                    when the shard began to count
--   TIER \0 PATTERN          there is such a tally
--   TIER \0 PATTERN \0 NAME  its counter, one of `FLOWS` or `RARE`; absent: 0
--   TIER \0\0 PLACE          waiting times: how many, by the place of their class; those of noisy
--                            topics are behind those of the others
--
-- `left` counts what left the backlog other than by a delivery, less what came back: so what waits
-- is published - delivered - left, and the usual calls change one counter each.

local tallies = part(function(tallies)
    local MOST, OTHER = 100, '(other)'
    local FLOWS = { 'published', 'delivered', 'done', 'left', 'retried', 'died', 'merged',
        'throttled' }
    local RARE_FLOWS = { 'retried', 'died', 'merged', 'throttled' }
    -- the upper bounds of the classes of waiting times, exclusive, in microseconds
    local BOUNDS = { 1000, 5000, 25000, 100000, 500000, 1000000, 5000000, 15000000, 60000000,
        300000000, 900000000, 3600000000, 21600000000, 86400000000 }
    local NOISY_PART, MOST_NOISY = 100, 1000

    -- What is known of each shard that the server has: the patterns of topics by their stem, as of
    -- a version of the policies; the tallies that exist; the largest size class that is not noisy.
    local MOST_SHARDS, MOST_STEMS = 1024, 4096
    local shards, count = {}, 0

    local function of_shard()
        local found = shards[PREFIX]
        if not found then
            if count >= MOST_SHARDS then
                shards, count = {}, 0
            end
            found = { version = false, stems = {}, count = 0, named = {}, noise = 0, noise_at = 0 }
            shards[PREFIX], count = found, count + 1
        end
        return found
    end

    -- The most specific pattern of a topic, or the pattern of a bucket; '*': none.
    local function pattern_of(here, name, version)
        if here.version ~= version or here.count >= MOST_STEMS then
            here.version, here.stems, here.count = version, {}, 0
        end
        local stem = string.match(name, '^(.*%.)') or ''
        local pattern = here.stems[stem]
        if not pattern then
            local rest = stem
            while rest ~= '' and run('HEXISTS', keys.rules, rest .. '*') == 0 do
                rest = string.match(rest, '^(.*%.)[^.]*%.$') or ''
            end
            pattern = rest .. '*'
            here.stems[stem], here.count = pattern, here.count + 1
        end
        return pattern
    end

    -- The names of a tally's counters. One that is too many is counted among the others.
    local function named(here, tier, pattern, now)
        local id = tier .. '\0' .. pattern
        run('HSETNX', keys.tallies, 'since', now)
        if run('HSETNX', keys.tallies, id, '') == 1 and pattern ~= OTHER
            and run('HINCRBY', keys.tallies, '', 1) > MOST then
            run('HINCRBY', keys.tallies, '', -1)
            run('HDEL', keys.tallies, id)
            return named(here, tier, OTHER, now)
        end
        local names = {}
        for _, flow in ipairs(FLOWS) do
            names[flow] = id .. '\0' .. flow
        end
        return names
    end

    local function names_of(here, tier, pattern, now)
        local of_tier = here.named[tier]
        if not of_tier then
            of_tier = {}
            here.named[tier] = of_tier
        end
        local names = of_tier[pattern]
        if not names then
            names = named(here, tier, pattern, now)
            of_tier[pattern] = names
        end
        return names
    end

    local here   -- what is known of the shard of this call; nil: not needed yet
    local counts -- what to add, by the name of the counter
    local rare   -- by lane: its rare counters as they were read

    at_begin(function()
        here, counts, rare = nil, {}, {}
    end)

    local function add(name, number)
        counts[name] = (counts[name] or 0) + number
    end

    local function names_for(rule, tier_queue)
        here = here or of_shard()
        return names_of(here, tier_queues[tier_queue].tier, pattern_of(here, rule, shard.version),
            shard.now)
    end

    -- A lane with rare counters was read.
    function tallies.begin_rare(lane)
        rare[lane] = { retried = lane.retried, died = lane.died, merged = lane.merged,
            throttled = lane.throttled }
    end

    -- Count what has happened in a lane since it was read, or counted.
    function tallies.count(lane)
        local published, delivered, done, waiting = lane.published - lane.was_published,
            lane.delivered - lane.was_delivered, lane.done - lane.was_done,
            lane.ready + lane.delayed + lane.parked
        local left = published - delivered - waiting + lane.was_waiting
        lane.was_published, lane.was_delivered, lane.was_done, lane.was_waiting = lane.published,
            lane.delivered, lane.done, waiting
        local names = names_for(lane.rule or lane.name, lane.tier_queue)
        if published ~= 0 then
            add(names.published, published)
        end
        if delivered ~= 0 then
            add(names.delivered, delivered)
        end
        if done ~= 0 then
            add(names.done, done)
        end
        if left ~= 0 then
            add(names.left, left)
        end
        if lane.is_rare then
            local before = rare[lane]
            for _, flow in ipairs(RARE_FLOWS) do
                local more = lane[flow] - (before and before[flow] or 0)
                if more ~= 0 then
                    add(names[flow], more)
                end
            end
            tallies.begin_rare(lane)
        end
    end

    -- Count messages that were published in a lane of which only the beginning was read.
    function tallies.count_published(topic, tier_queue, published)
        add(names_for(topic, tier_queue).published, published)
    end

    -- The same of one message, in a call that has no other part of the shard. `version`: that of
    -- the policies.
    function tallies.count_one(topic, tier, version, now)
        local of_this = of_shard()
        run('HINCRBY', keys.tallies, names_of(of_this, tier,
            pattern_of(of_this, topic, version), now).published, 1)
    end

    local function class_of(wait)
        for n = 1, #BOUNDS do
            if wait < BOUNDS[n] then
                return n
            end
        end
        return #BOUNDS + 1
    end

    -- The largest size class that is not noisy. Read once a second: it changes slowly.
    local function noise()
        local since = shard.now - here.noise_at
        if since < 0 or since >= 1000000 then
            local noisy = math.min(math.max(math.floor(shard.lanes / NOISY_PART), 1), MOST_NOISY)
            local found = call('ZRANGE', keys['top:big'], noisy, noisy, 'REV', 'WITHSCORES')
            here.noise_at, here.noise = shard.now, tonumber(found[2]) or 0
        end
        return here.noise
    end

    -- Count how long `number` messages of a lane that are delivered now have waited. `first` and
    -- `last`: since when the first and the last of them was ready. Returns false if they are in
    -- different classes; then nothing is counted.
    function tallies.waited(lane, first, last, number)
        local class = class_of(shard.now - first)
        if number > 1 and class ~= class_of(shard.now - last) then
            return false
        end
        here = here or of_shard()
        local noisy = lane.big > noise() and #BOUNDS + 1 or 0
        add(tier_queues[lane.tier_queue].tier .. '\0\0' .. (class + noisy), number)
        return true
    end

    -- Write what this call has counted.
    function tallies.save()
        for name, number in pairs(counts) do
            if number ~= 0 then
                run('HINCRBY', keys.tallies, name, number)
            end
        end
        counts = {}
    end
end)
