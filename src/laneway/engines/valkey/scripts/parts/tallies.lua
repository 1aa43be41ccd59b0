-- Tallies: what happened so far, by tier and pattern, see base/history.py. A lane is counted when
-- it is written: what its counters have become since it was read. A call adds that up and changes
-- few fields of one hash, mostly one. Its fields:
--
--   since                    when the shard began to count
--   TIER \0 PATTERN          there is such a tally
--   TIER \0 PATTERN \0 NAME  its counter, one of `FLOWS` or `RARE`; absent: 0
--   TIER \0\0 PLACE          waiting times: how many, by the place of their class; those of noisy
--                            topics, and of topics that their own rate held back, are behind those
--                            of the others
--
-- `left` counts what left the backlog other than by a delivery, less what came back: so what waits
-- is published - delivered - left, and the usual calls change one counter each.

local tallies = part(function(tallies)
    local MOST, OTHER = 100, '(other)'
    local FLOWS = { 'published', 'delivered', 'done', 'left', 'retried', 'died', 'merged',
        'throttled' }
    -- the upper bounds of the classes of waiting times, exclusive, in microseconds
    local BOUNDS = { 1000, 5000, 25000, 100000, 500000, 1000000, 5000000, 15000000, 60000000,
        300000000, 900000000, 3600000000, 21600000000, 86400000000 }
    local NOISY_PART, MOST_NOISY = 100, 1000

    -- The memory of the shard: cells by stem, which have what a call has counted; the largest size
    -- class that is not noisy. nil: not needed yet.
    local here

    -- The most specific pattern of the topics with this stem; '*' if there is none. Stems of
    -- buckets begin with \30.
    local function pattern_of(stem)
        local rest = byte(stem) == 30 and sub(stem, 2) or stem
        while rest ~= '' and run('HEXISTS', keys.resolved, rest .. '*') == 0 do
            rest = match(rest, '^(.*%.)[^.]*%.$') or ''
        end
        return rest .. '*'
    end

    -- The cells, by tier, of a stem's pattern, or of a topic that is counted apart.
    local function cells_of(stem, topic)
        local name = topic and '\0' .. topic or stem
        local found = here.by_stem[name]
        if not found then
            local pattern = topic or pattern_of(stem)
            found = here.cells[pattern] or { pattern = pattern, by_tier = {} }
            if not topic then
                here.cells[pattern] = found
            end
            here.by_stem[name], here.count = found, here.count + 1
        end
        return found
    end

    -- A cell: what this call has counted of a tier and pattern, and the names of its fields. A
    -- pattern that is too many is counted among the others.
    local function new_cell(tier, pattern, now)
        local id = tier .. '\0' .. pattern
        run('HSETNX', keys.tallies, 'since', now)
        if run('HSETNX', keys.tallies, id, '') == 1 and pattern ~= OTHER
            and run('HINCRBY', keys.tallies, '', 1) > MOST then
            run('HINCRBY', keys.tallies, '', -1)
            run('HDEL', keys.tallies, id)
            return new_cell(tier, OTHER, now)
        end
        local cell = { names = {}, is_used = false }
        for _, flow in ipairs(FLOWS) do
            cell.names[flow], cell[flow] = id .. '\0' .. flow, 0
        end
        return cell
    end

    local used = {} -- the cells in which this call has counted something
    local waits_used = {} -- and the waiting times of tiers

    -- the cell, and the waiting times, that were used last: mostly those that are used next
    local last_of, last_tier, last_cell, last_queue, last_waits

    local function reset()
        if used[1] or waits_used[1] then -- of a call that ended in an error
            here.nonce, used, waits_used = false, {}, {}
        end
        here, last_of, last_queue = nil, nil, nil
    end

    local function look_up_shard()
        at_next_begin(reset)
        return memory()
    end

    -- `topic`: one that is counted apart.
    local function use(stem, tier, topic)
        here = here or look_up_shard()
        local cells = cells_of(stem, topic)
        local cell = cells.by_tier[tier] or new_cell(tier, cells.pattern, shard.now)
        cells.by_tier[tier] = cell
        if not cell.is_used then
            cell.is_used, used[#used + 1] = true, cell
        end
        return cell
    end

    local function cell_of_lane(lane)
        local policy, tier = lane.policy, tier_queues[lane.tier_queue].tier
        if not policy and shard.own + shard.exact > 0 then
            policy = policies.of_lane(lane.policy_name or lane.name)
        end
        if policy and policy.history then
            return use(nil, tier, lane.policy_name or lane.name)
        end
        local stem = stem_of(lane.name) -- that of a partition is that of its topic
        if stem ~= last_of or tier ~= last_tier then
            last_of, last_tier, last_cell = stem, tier, use(stem, tier)
        end
        return last_cell
    end

    -- A lane with rare counters was read. `was`: what of the lane is counted.
    function tallies.begin_rare(lane, was)
        was[5], was[6], was[7], was[8] = lane.retried, lane.died, lane.merged, lane.throttled
    end

    -- Count what has happened in a lane since it was read, or counted.
    function tallies.count(lane)
        local cell, was = cell_of_lane(lane), lane.was
        local published, delivered, done, waiting = lane.published, lane.delivered, lane.done,
            lane.ready + lane.delayed + lane.parked
        local more, taken = published - was[1], delivered - was[2]
        if more ~= 0 then
            cell.published, was[1] = cell.published + more, published
            if published % 32 < more and not lane.is_bucket then -- a bucket has many topics
                recent.arrived(lane.policy_name or lane.name, published, more)
            end
        end
        if taken ~= 0 then
            cell.delivered, was[2] = cell.delivered + taken, delivered
        end
        if done ~= was[3] then
            cell.done, was[3] = cell.done + done - was[3], done
        end
        cell.left, was[4] = cell.left + more - taken - waiting + was[4], waiting
        if lane.is_rare then
            local retried, died, merged, throttled = lane.retried, lane.died, lane.merged,
                lane.throttled
            local failed = retried + died - was[5] - was[6]
            if failed > 0 then
                cell.retried, cell.died = cell.retried + retried - was[5], cell.died + died - was[6]
                if not lane.is_bucket then
                    recent.add('failures', lane.policy_name or lane.name, failed)
                end
            end
            cell.merged, cell.throttled = cell.merged + merged - was[7], cell.throttled + throttled
                - was[8]
            was[5], was[6], was[7], was[8] = retried, died, merged, throttled
        end
    end

    -- Count a message that is not stored, because no subscription takes it.
    function tallies.count_unrouted(topic, tier)
        local cell = use(stem_of(topic), tier, policies.of(topic).history and topic)
        cell.published, cell.left = cell.published + 1, cell.left + 1
    end

    local least, most, class = 0, 0, 0 -- the class of the last waiting time, and its bounds

    local function waits_of(tier)
        here = here or look_up_shard()
        local waits = here.waits[tier]
        if not waits then
            waits = { tier = tier, counts = {} }
            here.waits[tier] = waits
        end
        if next(waits.counts) == nil then
            local since = shard.now - here.noise_at
            if since < 0 or since >= 1000000 then -- once a second: it changes slowly
                local noisy = min(max(floor(shard.lanes / NOISY_PART), 1), MOST_NOISY)
                local found = call('ZRANGE', keys['top:big'], noisy, noisy, 'REV', 'WITHSCORES')
                here.noise_at, here.noise = shard.now, tonumber(found[2]) or 0
            end
            waits_used[#waits_used + 1] = waits
        end
        return waits
    end

    -- Count how long a message of a lane that is delivered now has waited. `since`: when it was
    -- ready; `first`: when the first one of the visit was.
    function tallies.waited(lane, since, first)
        local wait = shard.now - since
        if wait < least or wait >= most then
            class = 1
            while BOUNDS[class] and wait >= BOUNDS[class] do
                class = class + 1
            end
            least, most = BOUNDS[class - 1] or -math.huge, BOUNDS[class] or math.huge
        end
        if lane.tier_queue ~= last_queue then
            last_queue, last_waits = lane.tier_queue, waits_of(tier_queues[lane.tier_queue].tier)
        end
        local counts, place = last_waits.counts, class
        -- a large backlog, or its own rate admitted them later than they were ready
        if lane.big > here.noise or (lane.admitted and lane.admitted > first) then
            place = place + #BOUNDS + 1
        end
        counts[place] = (counts[place] or 0) + 1
    end

    function tallies.save()
        recent.save(shard.now)
        for n = 1, #used do
            local cell = used[n]
            for k = 1, #FLOWS do
                local flow = FLOWS[k]
                if cell[flow] ~= 0 then
                    run('HINCRBY', keys.tallies, cell.names[flow], cell[flow])
                    cell[flow] = 0
                end
            end
            cell.is_used = false
        end
        for n = 1, #waits_used do
            local waits = waits_used[n]
            for place, number in pairs(waits.counts) do
                run('HINCRBY', keys.tallies, waits.tier .. '\0\0' .. place, number)
            end
            waits.counts = {}
        end
        clear(used)
        clear(waits_used)
        last_of, last_queue = nil, nil
    end
end)
