-- One plain message that arrives by itself while a worker sleeps and nothing else can be leased:
-- it is accepted and leased to that worker. The effect is that of `intake.accept_batch` and
-- `wakeup.lease_at_once`, which takes more than twice as long. Whatever is not usual is left to
-- them, before anything has changed.
--
-- uses: fairness, policies, recent, tallies, lanes, messages, settling, wakeup

local direct = part(function(direct)
    local AT = {}
    for n = 1, #COUNTERS do
        AT[COUNTERS[n]] = n
    end
    local NOW, SEQ, FENCE, NONCE, SHARDS, EXACT, OWN, SWEEPING, BYTES, TIER_QUEUES = AT.now,
        AT.seq, AT.fence, AT.nonce, AT.shards, AT.exact, AT.own, AT.sweeping, AT.bytes,
        AT.tier_queues
    local PUBLISHED, DELIVERED, LEASED, LANES, CREATED = AT.published, AT.delivered, AT.leased,
        AT.lanes, AT.lanes_created
    local VT, CARRY, QUEUE_DELIVERED = 3, 4, 6 -- of a tier queue
    local MOST_PLANS = 4096

    -- What is known of topics with a stem, because working it out costs more than all the rest: by
    -- the shard's prefix and the stem.
    local plans, count = {}, 0
    local last_plan -- of the call before

    -- A change of the policies or of the tiers changes the version.
    local function is_current(plan, version, nonce, queue_count)
        return plan and plan.version == version and plan.nonce == nonce
            and plan.queues == queue_count
    end

    -- A call has put a plain message of this topic, and nothing else could be leased. The next one
    -- of its stem may take the short way.
    function direct.learn(topic)
        local stem = stem_of(topic)
        local id = PREFIX .. stem
        local known = plans[id]
        if shard.exact > 0 or shard.own > 0 or find_in(topic, '#', 1, true)
            or is_current(known, shard.version, shard.nonce, #tier_queues) then
            return
        end
        local policy, lane = policies.of_lane(topic), lanes.find(topic)
        local tier_queue = lane and lane.tier_queue > 0 and tier_queues[lane.tier_queue]
        if not tier_queue or tier_queue.by_time or policy.limited or policy.gate or policy.paused
            or policy.at_most_once or policy.shared or policy.adapts or policy.group
            or policy.key_limited or policy.buckets or policy.partitions > 1
            or tier_queue.pool ~= policy.pool or tier_queue.tier ~= tier_of(policy) then
            return
        end
        local indexes, shares = {}, {}
        for _, tier in ipairs(tiers) do
            local each = tier_queues.find(policy.pool, tier.name)
            if each then
                indexes[#indexes + 1], indexes[#indexes + 2] = each.runnable, each.heads
                if not tier.strict then
                    shares[#shares + 1] = { each.number, tier.share }
                end
            end
        end
        if not known then
            if count >= MOST_PLANS then
                plans, count = {}, 0
            end
            count = count + 1
        end
        local names = tallies.cell(stem, tier_queue.number).names
        plans[id] = { prefix = PREFIX, stem = stem, version = shard.version, nonce = shard.nonce,
            queues = #tier_queues, queue = tier_queue.number,
            lease = policy.lease, stride = fairness.stride(1, policy.weight),
            waiters = key('waiters:' .. policy.pool), indexes = indexes, shares = shares,
            published = names.published, delivered = names.delivered,
            waited = tallies.wait_of_none(tier_queue.tier) }
        last_plan = nil
    end

    local function plan_of(topic)
        local stem = stem_of(topic)
        if not last_plan or last_plan.stem ~= stem or last_plan.prefix ~= PREFIX then
            last_plan = plans[PREFIX .. stem]
        end
        return last_plan
    end

    local function first_score(name)
        return tonumber(run('ZRANGE', name, 0, 0, 'WITHSCORES')[2]) or math.huge
    end

    -- When the next event is due, without that of a lane that is idle; math.huge: never.
    local function next_event(member)
        local idle = run('ZRANGE', keys.idle, 0, 1, 'WITHSCORES')
        return min(tonumber(idle[1] == member and idle[4] or idle[2]) or math.huge,
            first_score(keys.asleep), first_score(keys.due), first_score(keys.gate_wakes),
            first_score(keys.key_wakes))
    end

    -- `values`: the counters, which this function changes if it succeeds; `stored`: the lane's
    -- record, false: it has none. Returns the message's number; nil: the call needs all the rest.
    function direct.put(version, topic, message, values, stored)
        local plan = plan_of(topic)
        local queues = values[TIER_QUEUES]
        if not is_current(plan, version, values[NONCE], #queues) or ARGV[1] ~= ''
            or values[SHARDS] > 1 or values[EXACT] > 0 or values[OWN] > 0 or values[SWEEPING] > 0
            or byte(message) ~= PLAIN or values[BYTES] + #message > wakeup.MOST_PUSHED_BYTES then
            return nil
        end
        -- Who sleeps
        local sleeping = run('ZRANGE', plan.waiters, 0, 1, 'REV', 'WITHSCORES')
        local channel, room, longest = match(sleeping[1] or '', wakeup.MEMBER)
        if not channel then
            return nil
        end
        local time = run('TIME')
        local now = max(time[1] * 1000000 + time[2], values[NOW])
        if tonumber(sleeping[2]) < now or run('EXISTS', unpack(plan.indexes)) > 0 then
            return nil
        end
        -- The lane
        local queue = queues[plan.queue]
        local number, bytes, published, wake, vt, leased, delivered, done, seen, lately, before =
            0, 0, 0, 0, queue[VT], 0, 0, 0, now, 0, 0
        if stored then
            local place, ready, delayed, parked, listed, sorted, latest, its_queue, rest
            place, number, ready, delayed, parked, leased, listed, bytes, published, delivered,
                done, its_queue, wake, vt, seen, lately, before, sorted, latest, rest = unpack_from(
                lanes.HEAD, stored)
            if place ~= IDLE or ready + delayed + parked + listed + sorted > 0
                or its_queue ~= plan.queue or sub(stored, rest) ~= lanes.USUAL_REST then
                return nil
            end
        else
            number = values[CREATED] + 1
        end
        published, delivered = published + 1, delivered + 1
        lately, before, seen = lanes.lately(1, lately, before, seen, now)
        if fairness.size_class(max(before, lately)) > 0 then
            return nil
        end
        local lane_member = pack('>I7c0', number, topic)
        local least_here = least_number(now, values[SHARDS])
        local mid, fence = max(values[SEQ], least_here) + 1, max(values[FENCE], least_here) + 1
        room, longest = tonumber(room), tonumber(longest)
        local deadline = now + (longest > 0 and min(plan.lease, longest) or plan.lease)
        -- If others sleep, one of them has to know the next event, because this worker may be busy.
        local event = sleeping[3] and min(next_event(lane_member), deadline) or -1
        if event >= 0 and event < now + SECOND then
            return nil
        end
        -- The message goes first: nobody may listen any more.
        local record = message .. sortable(now)
        local head = packed({ now, event, plan.nonce, fence, { mid }, { #record },
            { 1, deadline, 0 }, {} })
        run('ZREM', plan.waiters, sleeping[1])
        if run('PUBLISH', channel, pack('>I4', #head) .. head .. record) == 0 then
            return nil
        end
        run('HSET', keys.m, mid, record)
        run('HSET', keys.l, mid, settling.with_fence(fence, packed(topic)
            .. settling.tail(deadline, now, 0, false, '', false, false, false, true)))
        run('ZADD', keys.due, deadline, LEASES_END .. sortable(fence) .. pack('>I6I6', mid, fence))
        vt = max(vt, queue[VT])
        run('HSET', keys.lanes, topic, pack(lanes.HEAD, IDLE, number, 0, 0, 0, leased + 1, 0, bytes,
            published, delivered, done, plan.queue, 0, vt + plan.stride, seen, lately, before, 0, 0,
            '') .. lanes.USUAL_REST)
        if not stored then
            run('ZADD', keys.names, 0, topic)
            values[LANES], values[CREATED] = values[LANES] + 1, number
        elseif wake > 0 then
            run('ZREM', keys.idle, lane_member)
        end
        run('HINCRBY', keys.tallies, plan.published, 1)
        run('HINCRBY', keys.tallies, plan.delivered, 1)
        run('HINCRBY', keys.tallies, plan.waited, 1)
        if published % 32 == 0 then
            recent.arrived(topic, published, 1)
            recent.save(now)
        end
        -- The counters
        queue[VT], queue[QUEUE_DELIVERED] = vt, queue[QUEUE_DELIVERED] + 1
        local entries = {} -- as `serve_alone` in serving.lua
        for _, of_share in ipairs(plan.shares) do
            local is_its = of_share[1] == plan.queue
            entries[#entries + 1] = { share = of_share[2], carry = queues[of_share[1]][CARRY],
                taken = is_its and 1 or nil, working = is_its and room == 1 }
        end
        fairness.set_carries(entries)
        for index, of_share in ipairs(plan.shares) do
            queues[of_share[1]][CARRY] = entries[index].kept
        end
        values[NOW], values[SEQ], values[FENCE] = now, mid, fence
        values[PUBLISHED], values[DELIVERED], values[LEASED] = values[PUBLISHED] + 1,
            values[DELIVERED] + 1, values[LEASED] + 1
        run('SET', keys.shard, packed(unpack(values, 1, #COUNTERS)))
        return mid
    end
end)
