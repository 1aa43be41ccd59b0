-- Gates: limits that many topics share. Example of what they admit: shared/gates.py. A lane
-- has a key of gates: the name of one, or the names of several joined by \31. It waits at one of
-- them, see turns.lua: the lanes and groups that wait at a gate are in a sorted set for each tier
-- queue, `gate:N:NAME`, by their turns. While the gate admits the first lane of that set it is
-- also in `heads:N`, by that lane's position in the tier queue, so that a tier with a thousand
-- gates is served as fast as one without. If the first lane belongs to a group, the gate is in the
-- heads of the group, see groups.lua. `gate_lanes` has how many lanes go through a gate and wait at
-- another one. With several shards, `waited_gates` has N and NAME of those with lanes; N is 0 if
-- they wait at another one.
--
-- `turn`: the virtual time there of the entry that was served last; `mean`: the moving mean of the
-- time between a lease and its end, 0: unknown. `holder`, `holder_name`: the number and name of the
-- lane for which `need` permits, or a slot, are held until `held_until`, `held_turn`: its turn
-- there; `owes`: the cost of the last delivery, 0 if it was 1. `claimed`: about how many lanes are
-- runnable because the gate has spare. `listed`: by tier queue, the group in whose heads it is.
--
-- `grant`: this shard's part of the gate, if there are several shards; the sum of all grants never
-- exceeds the gate's limits.
--
-- What the partitions of a topic share is a gate too, which is set when their lanes are placed and
-- forgotten with the last one: `code` is the limits of the topic, `operator` this shard's part of
-- them while there is no grant. If the concurrency adapts, the limits have its least too, `flow` is
-- what the shard knows of the destination (false: nothing yet), and grants have the topic's limit
-- that was divided.
--
-- A grant is {rate, burst, concurrency, false, false, out of, false, start, finish, left}. The last
-- three are the shard's turn, see sharded/grants.py: virtual times, and how many deliveries are
-- left of it; false: no turn.

local lanes -- defined in lanes.lua, which uses gates

local gates = part(function(gates)
    local FIELDS = { 'code', 'operator', 'tat', 'leased', 'is_open', 'wake', 'grant', 'need',
        'held_until', 'owes', 'flow', 'turn', 'mean', 'holder', 'holder_name', 'claimed',
        'held_turn', 'listed' }
    local FLOW = 11 -- its place
    local NEW = { false, false, 0, 0, true, 0, false, 0, 0, 0, false, 0, 0, 0, '', 0, 0, false }
    local IN_USE = 1000000 -- for how long a gate is in use after a delivery
    local known, changed, moved, by_key = {}, {}, {}, {}

    local function reset()
        known, changed, moved, by_key = {}, {}, {}, {}
    end

    local function limits_of(gate)
        local limits = gate.grant or groups.settings(gate.name, gate.code, gate.operator)
        gate.rate, gate.concurrency = limits[1], limits[3]
        gate.least = gate.code and gate.code[5] or false
        if gate.least and gate.concurrency then
            gate.most = gate.code[3]
            gate.concurrency = adaptive.part_of(adaptive.limit(gate.flow, gate), limits[3],
                gate.most, limits[6])
        end
        if gate.rate then
            gate.step, gate.burst = fairness.interval(gate.rate), limits[2] or 1 + gate.rate / 20
            gate.depth = fairness.depth(gate.step, gate.burst)
        end
    end

    local function decode(name, values)
        local gate = named(FIELDS, values)
        gate.name, gate.is_held_again, gate.listed = name, false, gate.listed or {}
        gate.flow = gate.flow and named(adaptive.FIELDS, gate.flow)
        known[name] = gate
        return gate
    end

    function gates.find(name)
        local gate = known[name]
        if gate == nil then
            at_next_begin(reset)
            local stored = call('HGET', keys.gates, name)
            if not stored then
                return nil
            end
            gate = decode(name, { values_of(stored) })
            limits_of(gate)
        end
        return gate
    end

    -- The gate's clock under its rate, which may have changed.
    local function tat_of(gate)
        return fairness.rebase(gate.tat, shard.now, gate.step, gate.depth, gate.owes)
    end

    function gates.set(name, layer, limits)
        local gate = gates.find(name)
        if not gate then
            gate, by_key = decode(name, NEW), {}
            if shard.shards > 1 and string.byte(name) ~= 28 then
                gate.grant = { false, false, 0 } -- until it gets one
            end
        end
        gate[layer] = limits
        limits_of(gate)
        if gate.rate then
            gate.tat = tat_of(gate)
        end
        changed[gate] = true
    end

    -- Forget what deliveries have used and costs owe; its leases stay.
    function gates.reset(name)
        local gate = gates.find(name)
        if gate then
            gate.tat, gate.owes = 0, 0
            gates.end_hold(gate)
        end
    end

    -- Set or end this shard's grant. It has as many permits as before, and `more`, so that permits
    -- that another shard used are not used again. Returns those that it has no more.
    local function regrant(gate, grant, more)
        local now, had = shard.now * TICKS, more
        if gate.rate and gate.concurrency ~= 0 then
            had = had + (now + gate.depth - max(tat_of(gate), now)) / gate.step
        end
        gate.grant, gate.tat, gate.owes = grant, 0, 0
        limits_of(gate)
        changed[gate] = true
        if not gate.rate then
            return had
        end
        local has = min(had, gate.depth / gate.step)
        local ahead = max(0, math.ceil(gate.depth - has * gate.step))
        gate.tat = fairness.take_permits(0, shard.now, ahead, 1)
        gate.owes = ahead > gate.depth and math.ceil(ahead / gate.step) or 0
        return had - has
    end

    local function are_same(one, other)
        return one and other and one[1] == other[1] and one[2] == other[2] and one[3] == other[3]
            and (one[5] or false) == (other[5] or false) or one == other
    end

    local function least(one, other)
        return one and other and min(one, other) or one or other
    end

    -- A shard's grant after the limits of a topic have changed, until grants move again: in
    -- proportion. `part`: what it has of a limit that is new; if only that has changed, the grant
    -- is at most this. As `gates.rescaled` in Python.
    local function rescaled(grant, was, limits, part)
        local start, finish, left = grant[8], grant[9], grant[10]
        if are_same(limits, was) then
            local most, out_of = least(grant[3], part[3]), grant[6]
            if limits[5] and grant[3] * limits[3] > part[3] * (out_of or limits[3]) then
                most, out_of = part[3], false
            end
            return { least(grant[1], part[1]), least(grant[2], part[2]), most, false, false,
                out_of, false, start, finish, left }
        end
        local rate, burst, concurrency, out_of = part[1], part[2], limits[3] and part[3], false
        local whole = grant[6] or was[3]
        if limits[1] and was[1] then
            local share = grant[1] and grant[1] / was[1]
            rate, burst = share and limits[1] * share, share and limits[2] * share
        end
        if grant[3] == 0 or part[3] == 0 and limits[1] and not was[1] then
            concurrency = 0
        elseif limits[3] and grant[3] and whole then
            concurrency = math.floor(grant[3] * limits[3] / whole)
            if limits[5] then
                concurrency, out_of = grant[3], whole
            end
        end
        return { rate, burst, concurrency, false, false, out_of, false, start, finish, left }
    end

    -- The gate that the partitions of a topic share, if it has these limits.
    function gates.of_topic(topic, limits)
        local gate = gates.find(TOPIC_GATE .. topic)
        return gate and are_same(gate.code, limits) and gate or nil
    end

    -- Its flow has changed.
    function gates.adapted(gate)
        limits_of(gate)
        changed[gate] = true
    end

    -- Set that gate. `here`: how many of the partitions are on this shard; `number`: which of the
    -- topic's shards it is. As `gates.part_of_topic` in Python.
    function gates.share(topic, limits, here, partitions, number)
        local name, part = TOPIC_GATE .. topic, limits
        if here < partitions then
            local count = min(shard.shards, partitions)
            count = limits[1] and min(count, 1 + floor((limits[2] - 1) / 2)) or count
            part = number >= count and { false, false, 0 } or { limits[1] and limits[1] / count,
                limits[1] and limits[2] / count,
                limits[3] and math.floor(limits[3] * here / partitions) }
        end
        local gate, operator = gates.find(name), here < partitions and part
        if gate and are_same(gate.code, limits) and are_same(gate.operator, operator) then
            return gate
        end
        if gate and gate.grant and gate.code then
            gate.grant = rescaled(gate.grant, gate.code, limits, part)
        end
        gates.set(name, 'operator', operator)
        gates.set(name, 'code', limits)
        return gates.find(name)
    end

    -- Set this shard's grant. `moves`: by how much the shard's limit changes, if it adapts; `more`:
    -- how many permits it gets. Returns those that it has no more.
    function gates.grant(name, limits, moves, more)
        local gate, is_topic = gates.find(name), string.byte(name) == 28
        if is_topic then -- its limits may have changed since a lane was placed
            local shared = policies.of(sub(name, 2)).shared
            if shared then
                gate = lanes.shared_gate(sub(name, 2), shared, true)
            elseif not gate then
                gates.set(name, 'grant', { false, false, 0 })
                gate = gates.find(name)
            end
        end
        if not gate then
            return 0
        end
        if gate.least and moves ~= 0 then
            gate.flow = gate.flow or adaptive.begin(0)
            gate.flow.limit = adaptive.limit(gate.flow, gate) + moves
        end
        if is_topic then
            call('ZADD', keys.topic_grants, 0, name)
        end
        return regrant(gate, limits, more)
    end

    function gates.end_grant(name)
        local gate = gates.find(name)
        if gate then
            regrant(gate, false, 0)
        end
        call('ZREM', keys.topic_grants, name)
    end

    -- The last partition of the topic was forgotten. A grant is kept until clients take it back.
    function gates.end_topic(topic)
        local gate = gates.find(TOPIC_GATE .. topic)
        if gate and not gate.grant then
            call('HDEL', keys.gates, gate.name)
            call('ZREM', keys.gate_wakes, gate.name)
            known[gate.name], changed[gate], by_key = nil, nil, {}
        end
    end

    -- When the rate of that gate admits the next delivery; 0: it has none.
    function gates.next_permit(topic)
        local gate = gates.find(TOPIC_GATE .. topic)
        return gate and gate.rate and fairness.next_permit(tat_of(gate), shard.now, gate.step,
            gate.depth, 1) or 0
    end

    -- The gates of a key; false: one that is not defined.
    function gates.of_key(name)
        local found = by_key[name]
        if not found then
            at_next_begin(reset)
            found = {}
            for each in string.gmatch(name, '[^\31]+') do
                found[#found + 1] = gates.find(each) or false
            end
            by_key[name] = found
        end
        return found
    end

    -- How many deliveries the gate admits now, of the lane that it is held for or of another one.
    -- `precedes`: nothing is kept from it.
    local function room_of(gate, is_holder, precedes)
        local room, need = 2 ^ 30, 0
        if shard.now < gate.held_until and (is_holder or not precedes) then
            need = gate.need
        end
        if gate.rate then
            local tat = tat_of(gate)
            room = fairness.permits(tat, shard.now, gate.step, gate.depth)
            if need == 0 or not is_holder then
                room = room - need
            elseif not fairness.admits(tat, shard.now, gate.step, gate.depth, need) then
                room = 0
            end
        end
        if gate.concurrency then
            room = min(room, gate.concurrency - gate.leased - (need > 0 and not is_holder and 1
                or 0))
        end
        if gate.grant and gate.grant[10] then
            room = min(room, gate.grant[10])
        end
        return max(room, 0)
    end

    -- Whether the gate (false: not defined) is in use and decides nothing now, as in Python.
    -- Grants move to shards where lanes wait, and what the partitions of a topic share is theirs.
    function gates.has_spare(gate, claimed)
        if not gate or gate.grant or shard.now < gate.held_until or byte(gate.name) == 28 then
            return false
        end
        if gate.leased == 0 and gate.tat < (shard.now - IN_USE) * TICKS then
            return false
        end
        local least = 2 + claimed
        if gate.rate and (claimed > 0 or not fairness.recovered(gate.tat, shard.now))
            and fairness.permits(tat_of(gate), shard.now, gate.step, gate.depth) < least then
            return false
        end
        return not gate.concurrency or gate.concurrency - gate.leased >= least
    end

    -- Whether a lane that comes to the gates of a key is runnable: all have spare for it.
    function gates.claim(name)
        for _, gate in ipairs(gates.of_key(name)) do
            if not gates.has_spare(gate, gate and gate.claimed) then
                return false
            end
        end
        for _, gate in ipairs(gates.of_key(name)) do
            gate.claimed, changed[gate] = gate.claimed + 1, true
        end
        return true
    end

    -- How many deliveries of the lane the gate (false: not defined) admits now. `turn`: its turn
    -- there if it waits elsewhere; what is held for a later turn is not kept from it.
    function gates.room_of(gate, lane, turn)
        return gate and room_of(gate, gate.holder == lane.number, turn and turn < gate.held_turn)
            or 0
    end

    -- Microseconds until the gate is expected to admit a delivery of the lane that uses `need`
    -- permits; `FOREVER`: not known, or it cannot while it is held for another lane.
    function gates.time_to_open(gate, lane, need)
        local is_kept, wait = shard.now < gate.held_until and gate.holder ~= lane.number, 0
        if gate.rate then
            need = need + (is_kept and gate.need or 0)
            if is_kept and need > gate.burst then
                return gates.FOREVER
            end
            wait = fairness.next_permit(tat_of(gate), shard.now, gate.step, gate.depth, need)
                - shard.now
        end
        if gate.concurrency and gate.leased + (is_kept and 1 or 0) >= gate.concurrency then
            if gate.mean == 0 then
                return gates.FOREVER
            end
            wait = max(wait, floor(floor(gate.mean / max(gate.concurrency, 1)) / 2))
        end
        return wait
    end

    -- The largest cost of a message at the gates of a key, at most `most`, and which of them allows
    -- no more. What the partitions of a topic share says nothing: the policy does.
    function gates.largest_cost(name, most)
        local by = nil
        for _, gate in ipairs(gates.of_key(name)) do
            if gate and string.byte(gate.name) ~= 28 then
                local limits = groups.settings(gate.name, gate.code, gate.operator)
                local largest = limits[7] or fairness.largest_cost(limits[1], limits[2]
                    or 1 + (limits[1] or 0) / 20)
                if largest < most then
                    most, by = largest, gate.name
                end
            end
        end
        return most, by
    end

    gates.FOREVER = 2 ^ 62

    -- Microseconds between deliveries of `need` permits that the gate admits, if it is used up.
    function gates.interval(gate, need)
        local by_rate = gate.rate and floor(gate.step / TICKS) or 0
        return max(by_rate * max(gate.owes, need), floor(gate.mean / max(gate.concurrency or 1, 1)))
    end

    -- Whether others can use the whole rate while these permits are kept: the burst suffices for
    -- them and the cost of the last delivery.
    function gates.keeps_up(gate, kept)
        return gate.rate and not gate.concurrency and kept + max(gate.owes, 1) <= gate.burst
    end

    -- Keep so many permits, or a slot, for the lane, whose turn there is this.
    function gates.hold(gate, lane, turn, need, for_us)
        gate.holder, gate.holder_name, gate.need, gate.held_until, gate.held_turn = lane.number,
            lane.name, need, shard.now + for_us, turn
        gate.is_held_again, changed[gate] = true, true
    end

    function gates.end_hold(gate)
        gate.holder, gate.holder_name, gate.need, gate.held_until = 0, '', 0, 0
        gate.is_held_again, changed[gate] = true, true
    end

    -- The lane for which the gate is held and that waits there; nil: none.
    function gates.holder_at(gate)
        if gate.holder == 0 or shard.now >= gate.held_until then
            return nil
        end
        local lane = lanes.find(gate.holder_name)
        return lane and lane.number == gate.holder and lanes.waits_at(lane) == gate.name and lane
            or nil
    end

    -- Deliveries of the lane go through the gate. `permits`: those that they use together;
    -- `largest`: the most that one uses.
    function gates.take(gate, lane, taken, permits, largest)
        gate.leased = gate.leased + taken
        gate.claimed = max(0, gate.claimed - 1)
        if gate.grant and gate.grant[10] then
            gate.grant[10] = max(0, gate.grant[10] - taken)
        end
        if gate.holder == lane.number then
            gates.end_hold(gate)
        end
        if gate.rate then
            gate.tat = fairness.take_permits(tat_of(gate), shard.now, gate.step, permits)
            gate.owes = largest > 1 and largest or 0
        else
            gate.tat = max(gate.tat, shard.now * TICKS) -- when it was used last
        end
        if gate.least then
            gate.flow = gate.flow or adaptive.begin(shard.now)
            adaptive.delivered(gate.flow, gate.leased, gate.concurrency)
        end
        changed[gate] = true
    end

    -- The clocks of the gates of a key that have rates, for `fairness.admitted`, and these gates.
    function gates.clocks(name)
        local clocks, rated = {}, {}
        for _, gate in ipairs(gates.of_key(name)) do
            if gate and gate.rate then
                clocks[#clocks + 1] = { tat_of(gate), gate.step, gate.depth }
                rated[#rated + 1] = gate
            end
        end
        return clocks, rated
    end

    -- End a lease's use of the gates of a key ("": none). `granted`: when it began; nil: the
    -- message was not delivered.
    function gates.free(name, granted)
        for _, gate in ipairs(gates.of_key(name)) do
            if gate then
                gate.leased = gate.leased - 1
                changed[gate] = true
                if granted and gate.concurrency then
                    local took = max(shard.now - granted, 1)
                    gate.mean = gate.mean == 0 and took
                        or max(1, gate.mean + floor((took - gate.mean) / 8))
                end
            end
        end
    end

    function gates.give_back_permits(name, permits, since)
        for _, gate in ipairs(gates.of_key(name)) do
            if gate and gate.rate then
                gate.tat = fairness.return_permits(gate.tat, gate.step, permits, since)
                changed[gate] = true
            end
        end
    end

    -- The first lane at a gate has changed, or its position.
    function gates.moved(name, tier_queue)
        at_next_begin(reset)
        moved[name .. '\0' .. tier_queue] = { name, tier_queue }
    end

    function gates.lanes_key(name, tier_queue)
        return key('gate:' .. tier_queue .. ':' .. name)
    end

    -- Clients move the grants of gates that lanes wait at.
    local function list_waited(name, tier_queue, has_lanes)
        if shard.shards > 1 then
            writes.set_member(keys.waited_gates, tier_queue .. ':' .. name, has_lanes and 0)
        end
    end

    -- So many lanes more go through the gate and wait at another one.
    function gates.count_elsewhere(name, more)
        local count = call('HINCRBY', keys.gate_lanes, name, more)
        if count <= 0 then
            call('HDEL', keys.gate_lanes, name)
        end
        list_waited(name, 0, count > 0)
    end

    -- The first lane that waits at a gate in a tier queue, and whether the gate is held for it;
    -- nil: none does.
    local function first_lane(gate, tier_queue)
        local holder = gates.holder_at(gate)
        if holder and tier_queues[holder.tier_queue].number == tier_queue then
            return holder, true
        end
        local member = call('ZRANGE', gates.lanes_key(gate.name, tier_queue), 0, 0)[1]
        if member and byte(member, 8) == 29 then
            member = call('ZRANGE', gates.lanes_key(gate.name, -unpack_from('>I7', member)), 0,
                0)[1]
        end
        return member and lanes.find(sub(member, 8)) or nil, false
    end

    -- Whether the gate admits the first lane that waits there in a tier queue.
    function gates.is_open(gate, tier_queue)
        local holder = gates.holder_at(gate)
        return room_of(gate, holder and tier_queues[holder.tier_queue].number == tier_queue) > 0
    end

    -- List the gate among the heads of its tier queue, or of the group of its first lane.
    local function write_head(gate, tier_queue, is_new)
        local lane, is_holder = first_lane(gate, tier_queue)
        local is_listed = lane and room_of(gate, is_holder) > 0
        local group = is_listed and lanes.group(lane) or nil
        local before, number = gate.listed[tier_queue], group and group.number or nil
        if before and before ~= number then
            call('ZREM', groups.heads_key(before), gate.name)
            if groups.find(before) then
                groups.head_moved(groups.find(before))
            end
        end
        if before ~= number then
            gate.listed[tier_queue], changed[gate] = number, true
        end
        if group then
            call('ZADD', groups.heads_key(number), lane.vt, gate.name)
            groups.head_moved(group)
        end
        writes.set_member(tier_queues[tier_queue].heads, gate.name, is_listed and not group
            and lane.vt)
        if is_listed and is_new then
            pools_to_notify[tier_queues[tier_queue].pool] = true
        end
        list_waited(gate.name, tier_queue, lane ~= nil)
    end

    -- The earlier of a time (nil: none) and that at which the rate admits a delivery of this cost.
    local function with_permit(at, gate, cost)
        local permit = fairness.next_permit(gate.tat, shard.now, gate.step, gate.depth, cost)
        return permit > shard.now and least(at, permit) or at
    end

    -- When the gate opens by the clock: only if its rate alone shuts it, or a hold; 0: never.
    local function wake_of(gate)
        if (gate.concurrency and gate.leased >= gate.concurrency)
            or (gate.grant and gate.grant[10] == 0) then
            return 0
        end
        local is_held = shard.now < gate.held_until
        local at = is_held and gate.held_until or nil
        if gate.rate then
            gate.tat = tat_of(gate)
            at = with_permit(at, gate, 1)
            if is_held then -- the lane that it is held for gets what is held; others need one more
                at = with_permit(with_permit(at, gate, gate.need), gate, gate.need + 1)
            end
        end
        return at or 0
    end

    -- Set when the gate opens. All its heads are to be written if it has opened or shut, or admits
    -- the lane that it is held for.
    local function look(gate)
        gate.wake = wake_of(gate)
        writes.set_member(keys.gate_wakes, gate.name, gate.wake > 0 and gate.wake)
        local is_open = room_of(gate, false) > 0
        if is_open ~= gate.is_open or gate.is_held_again
            or (shard.now < gate.held_until and room_of(gate, true) > 0) then
            gate.is_open, gate.is_held_again = is_open, false
            for tier_queue = 1, #tier_queues do
                moved[gate.name .. '\0' .. tier_queue] = { gate.name, tier_queue, true }
            end
        end
    end

    -- Housekeeping: open the gates whose next permit has come, or whose hold has ended.
    function gates.wake(most)
        local due = call('ZRANGE', keys.gate_wakes, '-inf', shard.now, 'BYSCORE', 'LIMIT', 0, most)
        for _, name in ipairs(due) do
            local gate = gates.find(name)
            if gate then -- else the store lost it
                gate.is_held_again, changed[gate] = gate.holder ~= 0, true
            end
        end
        if due[1] then
            gates.save()
        end
    end

    function gates.save()
        groups.save_turns(gates.moved)
        if next(changed) ~= nil or next(moved) ~= nil then
            for gate in pairs(changed) do
                look(gate)
            end
            for _, each in pairs(moved) do
                local gate = gates.find(each[1])
                if gate then
                    write_head(gate, each[2], each[3])
                end
            end
            for gate in pairs(changed) do
                local values = values_in(FIELDS, gate)
                values[FLOW] = gate.flow and values_in(adaptive.FIELDS, gate.flow)
                values[#FIELDS] = next(gate.listed) ~= nil and gate.listed
                call('HSET', keys.gates, gate.name, packed(unpack(values, 1, #FIELDS)))
            end
            changed, moved = {}, {}
        end
        groups.save()
    end
end)
