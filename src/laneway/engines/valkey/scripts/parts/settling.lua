-- Leases (hash `l`, by the message's number), and how they end. Example of fences: leases.py.
--
--   held     → settled by its fence (acked, retried, died, released), or run out after `deadline`
--   gone     its topic was deleted: only the mark is left, for the answer "gone"

local settling = part(function(settling)
    local BACK_OFF_FIRST, BACK_OFF_MAX = SECOND, 300 * SECOND
    local EVENTS_AT_ONCE = 20
    local ENTRIES_FORMAT = ('I6'):rep(64)
    local ENDS_AHEAD = 100 -- events examined for ends of settled leases
    local END_OF_ONE = 19  -- bytes of an event that ends one lease
    -- The least bytes behind fence and lane. A small hash whose values have 64 bytes or less is a
    -- list, which is slow to search.
    local REST_LEAST = 54
    local SPACES = '                                                      '
    -- of a settlement: {number, fence, action, delay, reason, error, cost, begun, random, overload}
    local ACTION, DELAY, REASON, FAILURE, COST, BEGUN, RANDOM, OVERLOAD = 3, 4, 5, 6, 7, 8, 9, 10
    local BRIEF_BYTES = 300
    local UNHANDLED_FIRST, UNHANDLED_MAX = 5 * SECOND, 300 * SECOND

    local tails = {} -- decoded ones, by what is stored

    local function forget_tails()
        tails = {}
    end

    -- `empty`: delivered at most once, so the message is deleted already; `line`: the serial key
    -- that the lease holds then, or that an ack frees without reading the message; `quick`: an ack
    -- changes only counts; `holder`: see lease.lua; `slot`: the slot of a key that it has, or nil.
    -- Many leases have in common what is behind the lane's name, which is decoded once: they look
    -- up these fields in one table.
    function settling.decode(stored)
        local behind, fence, lane = unpack_limit(stored, 2, 0)
        local rest = sub(stored, behind + 1)
        local tail = tails[rest]
        if not tail then
            at_next_begin(forget_tails)
            local deadline, granted, charge, started, gate, empty, line, gone, quick, holder,
                padding = values_of(rest)
            tail = { deadline = deadline, granted = granted, charge = charge, started = started,
                gate = gate, empty = empty, line = line, gone = gone, quick = quick,
                holder = holder,
                slot = key_limits.slot_at(padding) or false }
            tail.__index, tails[rest] = tail, tail
        end
        return setmetatable({ fence = fence, lane = lane }, tail)
    end

    -- What is behind fence and lane; many leases of a call share it. The last value is spaces, and
    -- the slot if there is one.
    function settling.tail(deadline, granted, charge, started, gate, empty, line, gone, quick,
        holder, slot)
        local rest = packed(deadline, granted, charge, started, gate, empty, line, gone, quick,
            holder)
        slot = slot or ''
        return rest .. packed(sub(SPACES, 1, max(0, REST_LEAST - #rest - #slot)) .. slot)
    end

    -- A lease: MessagePack's mark of 8-byte integers (207), fence and tail.
    settling.LEASE = '>BI8c0'

    function settling.encode(lease)
        return pack(settling.LEASE, 207, lease.fence, packed(lease.lane) .. settling.tail(
            lease.deadline, lease.granted, lease.charge, lease.started, lease.gate, lease.empty,
            lease.line, lease.gone, lease.quick, lease.holder, lease.slot))
    end

    -- The leases of these messages, in order; false: none.
    function settling.read(mids)
        local found = read_many(keys.l, mids)
        for n = 1, #mids do
            found[n] = found[n] and settling.decode(found[n])
        end
        return found
    end

    local function moved(mean, cost)
        return max(1, mean + floor((cost - mean) / 8))
    end

    -- Fair by time: charge the lane what its message really took. It never falls behind its tier.
    local function correct_cost(lane, lease, cost)
        local tier_queue = tier_queues[lane.tier_queue]
        local group = lane.tier_queue < 0 and groups.find(-lane.tier_queue)
        cost = max(0, min(cost, lease.deadline - lease.granted))
        local before, more = lane.vt, cost - lease.charge
        lanes.before_move(lane)
        lane.vt = max(before + fairness.stride_of_work(more, lanes.policy_of(lane).weight),
            min(group and group.inner_vt or tier_queue.vt, before))
        if group then
            group.vt = max(group.vt + fairness.stride_of_work(more, group.weight),
                min(tier_queue.vt, group.vt))
            groups.touch(group)
        end
        if cost > 0 then
            lane.mean = moved(lane.mean > 0 and lane.mean or tier_queue.mean > 0 and tier_queue.mean
                or DEFAULT_MEAN, cost)
            tier_queue.mean = moved(tier_queue.mean > 0 and tier_queue.mean or DEFAULT_MEAN, cost)
        end
    end

    -- Free the lease's slots of lane and gate. `cost`: how long it was held.
    function settling.end_of_lease(lane, lease, cost)
        lane.leased, shard.leased = lane.leased - 1, shard.leased - 1
        gates.free(lease.gate, lease.granted)
        key_limits.free(lane, lease.slot)
        if lease.charge > 0 then
            correct_cost(lane, lease, cost)
        end
        lanes.touch(lane)
    end

    function settling.die(lane, record, reason, failure)
        lane.died, shard.died = lane.died + 1, shard.died + 1
        messages.bury(lane, record, reason, failure)
        messages.free_key(lane, messages.line(record), record.mid)
        return 'died'
    end

    -- The message waits again: delayed until `due`, its new since, or (false) with its old since.
    -- After its ttl it expires.
    local function return_to_lane(lane, record, due)
        if record.expires and record.expires <= shard.now then
            messages.touch(record)
            messages.expire(lane, record)
            return
        end
        record.since = due or record.since
        local collects = merging.rejoin(lane, record)
        messages.begin_waiting(lane, record, collects)
    end

    -- The first line of an error, as `refusals.brief` in Python.
    local function brief(failure)
        local line = string.match(failure, '^[^\n]*')
        if #line > BRIEF_BYTES then
            line = string.gsub(sub(line, 1, BRIEF_BYTES), '[\192-\255][\128-\191]*$', '')
        end
        return line
    end

    local function used_up(attempts, settlement)
        local what = settlement[REASON] or settlement[FAILURE] and brief(settlement[FAILURE]) or ''
        local counted = string.format('%d attempt%s', attempts, attempts == 1 and '' or 's')
        return REASONS.retries .. ' (' .. counted .. '): ' .. (what ~= '' and what or 'failed')
    end

    local function retry(lane, record, settlement)
        local policy = policies.of(record.topic)
        local what = settlement[REASON] or 'failed'
        record.attempts = record.attempts + 1
        messages.add_history(record, what, settlement[FAILURE])
        if record.attempts > policy.retries then
            return settling.die(lane, record, used_up(record.attempts, settlement),
                settlement[FAILURE])
        end
        local delay = settlement[DELAY] or policies.backoff(policy, record.attempts,
            settlement[RANDOM])
        lane.retried, shard.retried = lane.retried + 1, shard.retried + 1
        if record.serial == YIELD then
            messages.free_key(lane, messages.line(record), record.mid)
        end
        return_to_lane(lane, record, shard.now + max(delay, 0))
        return 'retried'
    end

    local function unhandled(lane, record)
        if record.unhandled_from == 0 then
            record.unhandled_from = shard.now
        end
        local longest = policies.of(record.topic).on_unhandled
        if longest and shard.now - record.unhandled_from >= longest then
            messages.add_history(record, REASONS.unhandled)
            return settling.die(lane, record, REASONS.unhandled)
        end
        local delay = min(UNHANDLED_FIRST * 2 ^ min(record.unhandled_times, 16), UNHANDLED_MAX)
        record.unhandled_times = record.unhandled_times + 1
        return_to_lane(lane, record, shard.now + delay)
        return 'released'
    end

    -- The topic's destination is unavailable: all its lanes on this shard back off. Reports of
    -- leases from before the back-off do not count.
    local function back_off(lane, lease, asked, ended)
        if lease.fence <= lane.back_off_fence then
            return
        end
        local step = lane.back_off_step > 0 and min(lane.back_off_step * 2, BACK_OFF_MAX)
            or BACK_OFF_FIRST
        if asked then
            step = max(asked, 1)
        end
        for _, each in ipairs(lane.is_bucket and { lane } or lanes.of_topic(lanes.topic(lane),
            lanes.policy_of(lane))) do
            each.back_off_step, each.back_off_until = step, shard.now + step
            each.back_off_fence = shard.fence
            if not ended[each] then
                ended[each], ended[#ended + 1] = true, each
            end
        end
    end

    local function give_back_permits(lane, lease, permits)
        local policy, since = lanes.policy_of(lane), shard.now - lease.granted
        permits = min(permits, (gates.largest_cost(lease.gate, policy.largest_cost)))
        if policy.rate then
            lane.tat = fairness.return_permits(lane.tat, policy.step, permits, since)
        end
        gates.give_back_permits(lease.gate, permits, since)
        key_limits.give_back(lane, lease.slot, since)
    end

    local function come_back(lane, lease, record, settlement)
        record.deliveries = record.deliveries + 1
        if settlement[ACTION] == 'retry' then
            return retry(lane, record, settlement)
        elseif settlement[ACTION] == 'dead' then
            record.attempts = record.attempts + 1
            local reason = settlement[REASON] or REASONS.refused
            messages.add_history(record, reason, settlement[FAILURE])
            return settling.die(lane, record, reason, settlement[FAILURE])
        elseif settlement[ACTION] == 'unhandled' then
            return unhandled(lane, record)
        end
        local delay = settlement[ACTION] == 'release' and settlement[DELAY] or 0
        if settlement[ACTION] == 'release' and not settlement[BEGUN] then
            give_back_permits(lane, lease, messages.cost_in(record.headers))
        end
        return_to_lane(lane, record, delay > 0 and shard.now + delay)
        return 'released'
    end

    -- Whether an ack has to know more of the message than its serial key, which the lease has.
    local function needs_message(lease, lane)
        return not (lease.quick or lease.line) or (lanes.policy_of(lane).dedupe and true)
    end

    local function finish(lane, lease, mid, gone_messages)
        lane.done, shard.done = lane.done + 1, shard.done + 1
        if not needs_message(lease, lane) then
            gone_messages[#gone_messages + 1] = mid
            messages.free_key(lane, lease.line, mid)
            return
        end
        local record = messages.read(mid)
        if record then
            ids.finish(record, true)
            messages.remove(lane, record)
            messages.free_key(lane, messages.line(record), mid)
        end
    end

    -- Adapt the limit of the lane, or of what its topic's partitions share. `bounds`: its `least`
    -- and `most`. A report of an unavailable destination becomes a release with a delay if the
    -- smaller limit is enough.
    local function adapt(lane, flow, bounds, here, lease, settlement)
        local is_borne = settlement[ACTION] == 'back_off' and not settlement[DELAY]
            and lane.back_off_step == 0 and adaptive.bears(flow, lease.fence, bounds)
        adaptive.settled(flow, bounds, here, lease.fence, shard.fence, settlement[ACTION],
            settlement[OVERLOAD], settlement[COST], shard.now)
        if is_borne then
            settlement[ACTION], settlement[DELAY], settlement[BEGUN] = 'release', BACK_OFF_FIRST,
                true
        end
    end

    -- The lease's lane, or its topic's partitions, adapt their limit to how it ends.
    local function adapt_to(lane, lease, settlement)
        local policy = lanes.policy_of(lane)
        if policy.adapts and lane.flow then
            adapt(lane, lane.flow, policy, adaptive.limit(lane.flow, policy), lease, settlement)
        elseif policy.shared and policy.shared[5] then
            local gate = gates.of_topic(lane.policy_name or lane.name, policy.shared)
            if gate and gate.flow then
                adapt(lane, gate.flow, gate, gate.concurrency, lease, settlement)
                gates.adapted(gate)
            end
        end
    end

    local ANSWERS_OF_EMPTY = { ack = 'acked', dead = 'died' }

    -- At most once: report the end of a message that its handler has not reported.
    local function report_finished(mid, settlement)
        local action, reason = settlement[ACTION], REASONS.once
        if action == 'retry' then
            reason = used_up(1, settlement)
        elseif action == 'dead' then
            reason = settlement[REASON] or REASONS.refused
        end
        if not ANSWERS_OF_EMPTY[action] then
            results.set_handled(nil)
        end
        messages.finished_message_ended(mid, action ~= 'ack' and 'dead', reason)
    end

    -- End a lease that is held, then its message. Lanes that have to be placed are added to
    -- `ended`, messages to delete to `gone_messages`.
    local function settle(mid, lease, settlement, ended, gone_messages)
        if lease.gone then
            return 'gone'
        end
        local lane = lanes.find(lease.lane)
        if not ended[lane] then
            ended[lane], ended[#ended + 1] = true, lane
        end
        settling.end_of_lease(lane, lease, settlement[COST])
        adapt_to(lane, lease, settlement)
        if lease.empty then
            report_finished(mid, settlement)
            messages.free_key(lane, lease.line, mid)
        end
        local action = settlement[ACTION]
        if action == 'ack' and lane.is_rare and lane.back_off_step > 0
            and lease.fence > lane.back_off_fence then
            lane.back_off_step, lane.back_off_until = 0, 0
        elseif action == 'back_off' then
            back_off(lane, lease, settlement[DELAY], ended)
        end
        if lease.empty then -- whatever the action is, the message is done
            return ANSWERS_OF_EMPTY[action] or 'released'
        elseif action == 'ack' then
            finish(lane, lease, mid, gone_messages)
            return 'acked'
        end
        local record = messages.read(mid)
        return record and come_back(lane, lease, record, settlement) or 'gone'
    end

    -- Read at once what the settlements need: lanes, messages, holders of keys, states of slots.
    local function load_all(mids, leases, settlements)
        local names, wanted, lines, slots = {}, {}, {}, {}
        for n = 1, #mids do
            names[#names + 1] = leases[n] and leases[n].lane or nil
        end
        lanes.load(names)
        for n = 1, #mids do
            local lease = leases[n]
            if lease and not (lease.gone or lease.empty) then
                if settlements[n][ACTION] ~= 'ack'
                    or needs_message(lease, lanes.find(lease.lane)) then
                    wanted[#wanted + 1] = mids[n]
                else
                    lines[#lines + 1] = lease.line or nil
                end
                slots[#slots + 1] = lease.slot or nil
            end
        end
        messages.load(wanted)
        for n = 1, #wanted do
            local record = messages.read(wanted[n])
            lines[#lines + 1] = record and messages.line(record) or nil
        end
        writes.load_fields(keys.keys, lines)
        writes.load_fields(keys.key_states, slots)
    end

    -- Settle in the order of the call: number, fence and settlement of each. Returns the answers,
    -- and a list of the lanes that have to be placed.
    function settling.settle_all(mids, fences, settlements)
        local answers, ended, gone_leases, gone_messages, seen = {}, {}, {}, {}, {}
        local leases = settling.read(mids)
        load_all(mids, leases, settlements)
        for n = 1, #mids do
            local mid, lease, each = mids[n], leases[n], settlements[n]
            if not lease or lease.fence ~= fences[n] or seen[mid] then
                answers[n] = 'lost'
            else
                seen[mid] = true -- the second settlement of one lease is lost
                gone_leases[#gone_leases + 1] = mid
                results.set_handled(each.reports_end and mid or nil, each.has_outcome)
                answers[n] = settle(mid, lease, each, ended, gone_messages)
            end
        end
        results.set_handled(nil)
        call_many('HDEL', keys.l, gone_leases, 1)
        call_many('HDEL', keys.m, gone_messages, 1)
        return answers, ended
    end

    -- Take a message from its worker, whose settlement will be lost; it waits again.
    function settling.give_back(lane, lease, record)
        call('HDEL', keys.l, text(record.mid))
        settling.end_of_lease(lane, lease, shard.now - lease.granted)
        record.deliveries = record.deliveries + 1
        return_to_lane(lane, record, false)
    end

    -- Leases that run out

    local function become_suspect(lane, record, started)
        record.deliveries, record.suspect = record.deliveries + 1, true
        if started then
            record.attempts = record.attempts + 1
            messages.add_history(record, REASONS.started)
            if record.attempts > policies.of(record.topic).retries then
                settling.die(lane, record, REASONS.started)
                return
            end
        end
        return_to_lane(lane, record, false)
    end

    -- Returns as how many leases it counts.
    local function run_out(mid, lease)
        local weight = 1
        call('HDEL', keys.l, mid)
        if lease.gone then
            return weight
        end
        local lane = lanes.find(lease.lane)
        settling.end_of_lease(lane, lease, lease.deadline - lease.granted)
        if lease.empty then
            messages.finished_message_ended(mid, 'dead', REASONS.once)
            messages.free_key(lane, lease.line, mid)
        else
            local record = messages.read(mid)
            if record then
                become_suspect(lane, record, lease.started)
                weight = messages.weight(record.size)
            end
        end
        lanes.place(lane)
        return weight
    end

    -- One event has all leases of a call that end at the same time: {number, fence} each. Extended
    -- leases get a new event when this one comes, settled ones are skipped.

    -- `entries`: number and fence of each, flat.
    function settling.expect(deadline, entries)
        local parts, count = { sortable(entries[2]) }, #entries
        for first = 1, count, #ENTRIES_FORMAT / 2 do
            local last = min(first + #ENTRIES_FORMAT / 2 - 1, count)
            parts[#parts + 1] = pack('>' .. sub(ENTRIES_FORMAT, 1, 2 * (last - first + 1)),
                unpack(entries, first, last))
        end
        call('ZADD', keys.ends, deadline, table.concat(parts))
    end

    -- End the leases of one time's events that have run out, at most so many, by fence. Returns how
    -- many, and how many were looked at, with those that were settled or extended.
    function settling.run_out_at(at, most)
        local entries, mids, held = {}, {}, {}
        for _, member in ipairs(call('ZRANGE', keys.ends, at, at, 'BYSCORE', 'LIMIT', 0,
            EVENTS_AT_ONCE)) do
            for position = 8, #member, 12 do
                local mid, fence = unpack_from('>I6I6', member, position)
                entries[#entries + 1] = { mid, fence }
            end
            call('ZREM', keys.ends, member)
        end
        for n = 2, #entries do
            if entries[n - 1][2] > entries[n][2] then -- of several events
                table.sort(entries, function(one, other)
                    return one[2] < other[2]
                end)
                break
            end
        end
        for n, entry in ipairs(entries) do
            mids[n] = entry[1]
        end
        local ended, next_deadline = 0, nil
        for n, lease in ipairs(settling.read(mids)) do
            if lease and lease.fence == entries[n][2] then
                if lease.deadline <= at and ended < most then
                    ended = ended + run_out(mids[n], lease)
                else
                    held[#held + 1], held[#held + 2] = entries[n][1], entries[n][2]
                    next_deadline = min(next_deadline or lease.deadline, lease.deadline)
                end
            end
        end
        if #held > 0 then
            settling.expect(max(next_deadline, at), held)
        end
        return ended, #entries
    end

    -- Forget, of the next events, the ends of single leases that were settled. Most were, long
    -- before; each such end would wake an idle worker.
    function settling.forget_ends_ahead()
        local members, mids, fences = {}, {}, {}
        for _, member in ipairs(call('ZRANGE', keys.ends, '(' .. text(shard.now), '+inf', 'BYSCORE',
            'LIMIT', 0, ENDS_AHEAD)) do
            if #member == END_OF_ONE then
                members[#members + 1] = member
                mids[#mids + 1], fences[#fences + 1] = unpack_from('>I6I6', member, 8)
            end
        end
        local settled = {}
        for n, lease in ipairs(settling.read(mids)) do
            if not lease or lease.fence ~= fences[n] then
                settled[#settled + 1] = members[n]
            end
        end
        call_many('ZREM', keys.ends, settled, 1)
    end
end)
