-- Gates: limits that many topics share. A lane has a key of gates: the name of one, or the names
-- of several joined by \31; a delivery goes through all of them, or is not made. The lanes at gates
-- are in a sorted set for each tier queue and key, `gate:N:KEY`. While all gates of the key are
-- open its first lane is also in `heads:N`, so that a tier with a thousand gates is served as fast
-- as one without. `gate_sets:NAME` has N and KEY of the keys of several gates that name this one.
-- With several shards, `waited_gates` has N and KEY of those with lanes.
--
-- `need`, `held_until`: until then a gate stays shut while it has fewer permits, so that a delivery
-- of that cost gets its turn; `owes`: the cost of the last delivery, 0 if it was 1.
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
--
-- uses: fairness, adaptive, groups

local gates = part(function(gates)
    local HELD_FOR = 60 * SECOND
    local known, changed, moved, by_key, groups_moved

    at_begin(function()
        known, changed, moved, by_key, groups_moved = {}, {}, {}, {}, {}
    end)

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
            gate.step = fairness.interval(gate.rate)
            gate.depth = fairness.depth(gate.step, limits[2] or 1 + gate.rate / 20)
        end
    end

    function gates.find(name)
        local gate = known[name]
        if gate == nil then
            local stored = call('HGET', keys.gates, name)
            if not stored then
                return nil
            end
            local code, operator, tat, leased, is_open, wake, grant, need, held_until, owes, flow =
                values_of(stored)
            gate = { name = name, code = code, operator = operator, tat = tat, leased = leased,
                is_open = is_open, wake = wake, grant = grant, need = need or 0, held_until =
                    held_until or 0, owes = owes or 0, -- layout 5 has none of these three
                flow = flow and adaptive.decode(flow) or false }
            limits_of(gate)
            known[name] = gate
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
            gate = { name = name, code = false, operator = false, tat = 0, leased = 0, is_open =
                true, wake = 0, grant = false, need = 0, held_until = 0, owes = 0, flow = false }
            known[name], by_key = gate, {}
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
            gate.tat, gate.need, gate.held_until, gate.owes = 0, 0, 0, 0
            changed[gate] = true
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
        gate.tat = fairness.after(ahead, shard.now)
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
        local rate, burst, concurrency, out_of = part[1], part[2], part[3], false
        local whole = grant[6] or was[3]
        if limits[1] and was[1] then
            local share = grant[1] and grant[1] / was[1]
            rate, burst = share and limits[1] * share, share and limits[2] * share
        end
        if grant[3] == 0 then
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

    -- The same, if its concurrency adapts and something was delivered; else nil.
    function gates.adapting(topic, limits)
        local gate = gates.of_topic(topic, limits)
        return gate and gate.flow and gate or nil
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
        if not gate and is_topic then
            gates.set(name, 'grant', { false, false, 0 })
            gate = gates.find(name)
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

    -- For how long the rate of that gate shuts it.
    function gates.shut_for(topic)
        local gate = gates.find(TOPIC_GATE .. topic)
        local now = shard.now
        return gate and gate.rate and fairness.held_back(now, now, fairness.next_permit(
            tat_of(gate), now, gate.step, gate.depth, 1)) or 0
    end

    -- The gates of a key; false: one that is not defined.
    local function of_key(name)
        local found = by_key[name]
        if not found then
            found = {}
            for each in string.gmatch(name, '[^\31]+') do
                found[#found + 1] = gates.find(each) or false
            end
            by_key[name] = found
        end
        return found
    end

    -- How many deliveries the gate admits now.
    local function room_of(gate)
        local room = 2 ^ 30
        if gate.rate then
            local tat = tat_of(gate)
            room = fairness.permits(tat, shard.now, gate.step, gate.depth)
            if shard.now < gate.held_until
                and not fairness.admits(tat, shard.now, gate.step, gate.depth, gate.need) then
                room = 0
            end
        end
        if gate.concurrency then
            room = math.min(room, gate.concurrency - gate.leased)
        end
        if gate.grant and gate.grant[10] then
            room = math.min(room, gate.grant[10])
        end
        return math.max(room, 0)
    end

    -- How many deliveries all gates of a key admit now.
    function gates.room(name)
        local room = 2 ^ 30
        for _, gate in ipairs(of_key(name)) do
            room = math.min(room, gate and room_of(gate) or 0)
        end
        return room
    end

    function gates.is_open(name)
        return gates.room(name) > 0
    end

    -- `permits`: those that the deliveries use together; `largest`: the most that one uses.
    function gates.take(name, taken, permits, largest)
        for _, gate in ipairs(of_key(name)) do
            gate.leased = gate.leased + taken
            if gate.grant and gate.grant[10] then
                gate.grant[10] = max(0, gate.grant[10] - taken)
            end
            if largest >= gate.need then
                gate.need, gate.held_until = 0, 0
            end
            if gate.least then
                gate.flow = gate.flow or adaptive.begin(shard.now)
                adaptive.delivered(gate.flow, gate.leased, gate.concurrency)
            end
            if gate.rate then
                gate.tat = fairness.take_permits(tat_of(gate), shard.now, gate.step, permits)
                gate.owes = largest > 1 and largest or 0
            end
            changed[gate] = true
        end
    end

    -- The largest cost of a message at the gates of a key, at most `most`, and which of them allows
    -- no more. What the partitions of a topic share says nothing: the policy does.
    function gates.largest_cost(name, most)
        local by = nil
        for _, gate in ipairs(of_key(name)) do
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

    -- The clocks of the gates of a key that have rates, for `fairness.admitted`.
    function gates.clocks(name)
        local clocks = {}
        for _, gate in ipairs(of_key(name)) do
            if gate and gate.rate then
                clocks[#clocks + 1] = { tat_of(gate), gate.step, gate.depth }
            end
        end
        return clocks
    end

    -- Keep the permits of the gates of a key for a delivery of that cost.
    function gates.hold(name, cost)
        for _, gate in ipairs(of_key(name)) do
            if gate and gate.rate then
                if shard.now >= gate.held_until or cost > gate.need then
                    gate.need = cost
                end
                gate.held_until = shard.now + HELD_FOR
                changed[gate] = true
            end
        end
    end

    -- End a lease's use of the gates of a key ("": none).
    function gates.free(name)
        for _, gate in ipairs(of_key(name)) do
            if gate then
                gate.leased = gate.leased - 1
                changed[gate] = true
            end
        end
    end

    function gates.give_back_permits(name, permits, since)
        for _, gate in ipairs(of_key(name)) do
            if gate and gate.rate then
                gate.tat = fairness.return_permits(gate.tat, gate.step, permits, since)
                changed[gate] = true
            end
        end
    end

    -- A lane was added to the gates of a key, or removed from them.
    function gates.moved(name, tier_queue)
        moved[name .. '\0' .. tier_queue] = { name, tier_queue }
    end

    function gates.lanes_key(name, tier_queue)
        return key('gate:' .. tier_queue .. ':' .. name)
    end

    -- Clients move the grants of gates that lanes wait at.
    local function list_waited(name, tier_queue, has_lanes)
        if shard.shards > 1 then
            local member = tier_queue .. ':' .. name
            if has_lanes then
                call('ZADD', keys.waited_gates, 0, member)
            else
                call('ZREM', keys.waited_gates, member)
            end
        end
    end

    -- Returns whether there are lanes.
    local function write_head(name, tier_queue, is_open)
        local heads = key('heads:' .. tier_queue)
        local first = call('ZRANGE', gates.lanes_key(name, tier_queue), 0, 0, 'WITHSCORES')
        if is_open and first[1] then
            call('ZADD', heads, first[2], name)
        else
            call('ZREM', heads, name)
        end
        return first[1] ~= nil
    end

    local function sets_key(gate)
        return key('gate_sets:' .. gate.name)
    end

    -- Write the head of a key, and list it at its gates if these are several.
    local function write_moved(name, tier_queue)
        local has_lanes, found = write_head(name, tier_queue, gates.is_open(name)), of_key(name)
        list_waited(name, tier_queue, has_lanes)
        for n = 1, #found > 1 and #found or 0 do
            local member = tier_queue .. ':' .. name
            if found[n] and has_lanes then
                call('ZADD', sets_key(found[n]), 0, member)
            elseif found[n] then
                call('ZREM', sets_key(found[n]), member)
            end
        end
    end

    -- The gate has opened or shut: write the heads of the keys of several gates that name it.
    local function write_sets(gate)
        for _, member in ipairs(call('ZRANGE', sets_key(gate), 0, -1)) do
            local tier_queue, name = string.match(member, '^(%d+):(.*)$')
            tier_queue = tonumber(tier_queue)
            local is_open = gates.is_open(name)
            if write_head(name, tier_queue, is_open) and is_open then
                pools_to_notify[tier_queues[tier_queue].pool] = true
            end
        end
    end

    -- Write whether the gate is open; if only its rate shuts it, also when it opens.
    local function look(gate)
        local is_open = room_of(gate) > 0
        gate.wake = 0
        local is_spent = gate.grant and gate.grant[10] == 0
        if not is_open and gate.rate and not is_spent
            and (not gate.concurrency or gate.leased < gate.concurrency) then
            gate.tat = tat_of(gate)
            gate.wake = fairness.next_permit(gate.tat, shard.now, gate.step, gate.depth, 1)
            if shard.now < gate.held_until then
                gate.wake = math.max(gate.wake, math.min(gate.held_until, fairness.next_permit(
                    gate.tat, shard.now, gate.step, gate.depth, gate.need)))
            end
        end
        if gate.wake > 0 then
            call('ZADD', keys.gate_wakes, gate.wake, gate.name)
        else
            call('ZREM', keys.gate_wakes, gate.name)
        end
        if is_open ~= gate.is_open then
            gate.is_open = is_open
            for tier_queue = 1, #tier_queues do
                if write_head(gate.name, tier_queue, is_open) and is_open then
                    pools_to_notify[tier_queues[tier_queue].pool] = true
                end
            end
            write_sets(gate)
        end
        local stored = packed(gate.code, gate.operator, gate.tat, gate.leased, gate.is_open,
            gate.wake, gate.grant, gate.need, gate.held_until, gate.owes)
        if gate.flow then
            stored = stored .. packed(adaptive.encode(gate.flow))
        end
        call('HSET', keys.gates, gate.name, stored)
    end

    -- Housekeeping: open the gates whose next permit has come.
    function gates.wake(most)
        for _, name in ipairs(call('ZRANGE', keys.gate_wakes, '-inf', shard.now, 'BYSCORE', 'LIMIT',
            0, most)) do
            changed[gates.find(name)] = true
        end
        gates.save()
    end

    function gates.save()
        for _, each in pairs(moved) do
            if each[2] < 0 then
                local has_lanes = call('EXISTS', gates.lanes_key(each[1], each[2])) == 1
                local tier_queue = groups.at_gate(-each[2], each[1], has_lanes)
                if tier_queue then
                    groups_moved[#groups_moved + 1] = { each[1], tier_queue }
                end
            end
        end
        for _, each in ipairs(groups_moved) do
            gates.moved(each[1], each[2])
        end
        groups_moved = {}
        groups.save(gates.moved)
        if next(changed) == nil and next(moved) == nil then
            return
        end
        for gate in pairs(changed) do
            look(gate)
        end
        for _, each in pairs(moved) do
            if each[2] > 0 then
                write_moved(each[1], each[2])
            end
        end
        changed, moved = {}, {}
    end
end)
