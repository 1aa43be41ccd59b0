-- Waking: a waiting worker has a channel of its own, which is in `waiters:POOL` until the worker is
-- notified or its time is over (in `choosy:POOL`, if it serves only named topics or patterns). One
-- worker is notified at a time: it leases, and its lease notifies the next one if there is more. If
-- none waits, one of `arrivals:POOL` is notified of an arrival: these are busy, and would see it
-- only at their next lease. All of `choosy:POOL` are notified of a lane that becomes runnable.
--
-- A waiter that registered as CHANNEL/N/M can start N messages, and its leases end after M
-- microseconds at the latest (0: as their policies say). A call that puts few messages leases
-- them to it at once: it publishes LEASED, to learn whether somebody listens, and then what was
-- leased (or the shard's number, if there is nothing to lease after all). So the worker needs no
-- call of its own. valkey/wakeup.py has an example.

local wakeup = part(function(wakeup)
    local TRIES, MOST_CHOOSY = 8, 256
    local LEASED = '+'
    -- the most messages of a call, and the most bytes that wait in the shard
    local MOST_PUSHED, MOST_PUSHED_BYTES = 16, 65536
    local MEMBER = '^(.*)/(%d+)/(%d+)$'

    local function real_now()
        local time = run('TIME')
        return time[1] * 1000000 + time[2]
    end

    local function notify_choosy(pool)
        for _, channel in ipairs(call('ZRANGE', key('choosy:' .. pool), 0, MOST_CHOOSY - 1)) do
            call('PUBLISH', channel, shard.index)
        end
        call('ZREMRANGEBYRANK', key('choosy:' .. pool), 0, MOST_CHOOSY - 1)
    end

    -- Notify one waiting worker of the pool: the one that is registered for the longest time. It
    -- most likely still waits; a worker whose own shard this is registers for twice as long.
    -- Returns whether there was one.
    local function notify(waiters)
        for _ = 1, TRIES do
            local last = call('ZPOPMAX', waiters)
            if not last[1] then
                return false
            elseif tonumber(last[2]) < real_now() then
                call('DEL', waiters) -- all others are older
                return false
            end
            -- A cluster does not count the subscribers of other nodes.
            local channel = match(last[1], MEMBER) or last[1]
            if call('PUBLISH', channel, shard.index) > 0 or shard.shards > 1 then
                return true
            end
        end
        return false
    end

    -- `kind`: waiters, choosy or arrivals.
    function wakeup.wait(kind, pool, channel, seconds)
        local waiters = key(kind .. ':' .. pool)
        call('ZADD', waiters, real_now() + seconds * SECOND, channel)
        call('EXPIRE', waiters, math.ceil(seconds) + 60)
    end

    -- The bytes of a batch: the size of its head, the head (packed), then records and bodies.
    local function encoded(found, runs, bodies, first, wake)
        local mids, sizes, merged, parts = {}, {}, {}, {}
        local function append(part)
            parts[#parts + 1] = part
            return #part
        end
        for n = 1, #found, 2 do
            mids[#mids + 1], sizes[#sizes + 1] = found[n], append(found[n + 1])
        end
        for n = 1, #bodies, 2 do
            local of_one = {}
            for place, body in ipairs(bodies[n + 1]) do
                of_one[place] = append(body)
            end
            merged[#merged + 1] = { bodies[n], of_one }
        end
        local head = packed({ shard.now, wake or -1, shard.nonce, first, mids, sizes, runs,
            merged })
        return pack('>I4', #head) .. head .. table.concat(parts)
    end

    -- Lease to a waiting worker of the pool what this call has put. Returns whether there may be
    -- more to lease.
    local function lease_to(waiters, pool)
        local last = call('ZRANGE', waiters, 0, 1, 'REV', 'WITHSCORES')
        local channel, room, longest = match(last[1] or '', MEMBER)
        if not channel or tonumber(last[2]) < shard.now then
            return true
        end
        call('ZREM', waiters, last[1])
        if call('PUBLISH', channel, LEASED) == 0 then
            return true
        end
        room = tonumber(room)
        local found, runs, bodies, first, withheld, _, _, is_cut = serving.lease(room, pool, nil,
            room, false, nil, longest ~= '0' and tonumber(longest) or nil)
        -- This worker learns the next event when it registers again. If others wait, one of them
        -- has to know it, because this one may be busy then.
        local wake = is_cut and shard.now or last[3] and next_wake.time()
        call('PUBLISH', channel, #found > 0 and encoded(found, runs, bodies, first, wake)
            or shard.index)
        return withheld or is_cut or #found == 2 * room or (wake and wake < shard.now + SECOND)
    end

    -- Called before the end of a call that put `count` messages: lease them to waiting workers.
    -- A caller that passes the time is a test, which leases by itself.
    function wakeup.lease_at_once(count)
        if count > MOST_PUSHED or shard.bytes > MOST_PUSHED_BYTES or shard.shards > 1
            or least == 0 or next(pools_to_notify) == nil then
            return
        end
        local pools = {}
        for pool in pairs(pools_to_notify) do
            pools[#pools + 1] = pool
        end
        for _, pool in ipairs(pools) do
            pools_to_notify[pool] = lease_to(key('waiters:' .. pool), pool) or nil
        end
    end

    -- Called at the end of a call. If an event is due before the waiting workers look again, one of
    -- each pool is notified, so that it learns the time.
    function wakeup.notify_all(is_timed)
        if is_timed and next(pools_to_notify) == nil and next_wake.is_sooner() then
            shard.alarm = 0
            for _, tier_queue in ipairs(tier_queues) do
                pools_to_notify[tier_queue.pool] = true
            end
        end
        for pool, who in pairs(pools_to_notify) do
            if not notify(key('waiters:' .. pool)) and has_arrivals then
                notify(key('arrivals:' .. pool))
            end
            if who ~= ONE then
                notify_choosy(pool)
            end
        end
    end
end)

-- Write all changes: the end of every call that changes something.
local function save(is_timed)
    local end_notices = results.take_end_notices()
    if end_notices[1] then
        intake.accept_all(end_notices)
    end
    messages.save()
    gates.save()
    local watched = lanes.save()
    tallies.save()
    writes.save()
    lanes.end_topics()
    for n = 1, #watched do
        results.notify('=' .. watched[n])
    end
    if is_timed or next(pools_to_notify) ~= nil then
        wakeup.notify_all(is_timed)
    end
    save_shard()
end
