-- Gates: limits that many topics share. The lanes at a gate are in a sorted set for each tier
-- queue, `gate:N:NAME`. The first lane of an open gate is also in `heads:N`, so that a tier with a
-- thousand gates is served as fast as one without.
--
-- `grant`: this shard's part of the gate, if there are several shards; the sum of all grants never
-- exceeds the gate's limits.
--
-- uses: fairness

local gates = part(function(gates)
    local known, changed, moved

    at_begin(function()
        known, changed, moved = {}, {}, {}
    end)

    local function limits_of(gate)
        local limits = gate.grant or gate.operator or gate.code or { false, false, false }
        gate.rate, gate.concurrency = limits[1], limits[3]
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
            local code, operator, tat, leased, is_open, wake, grant = values_of(stored)
            gate = { name = name, code = code, operator = operator, tat = tat, leased = leased,
                is_open = is_open, wake = wake, grant = grant }
            limits_of(gate)
            known[name] = gate
        end
        return gate
    end

    function gates.set(name, layer, limits)
        local gate = gates.find(name)
        if not gate then
            gate = { name = name, code = false, operator = false, tat = 0, leased = 0, is_open =
                true, wake = 0,
                grant = false }
            known[name] = gate
        end
        gate[layer] = limits
        limits_of(gate)
        if gate.rate then
            gate.tat = fairness.rebase(gate.tat, shard.now, gate.depth)
        end
        changed[gate] = true
    end

    -- How many deliveries the gate admits now.
    function gates.room(gate)
        local room = 2 ^ 30
        if gate.rate then
            room = fairness.permits(fairness.rebase(gate.tat, shard.now, gate.depth), shard.now,
                gate.step, gate.depth)
        end
        if gate.concurrency then
            room = math.min(room, gate.concurrency - gate.leased)
        end
        return math.max(room, 0)
    end

    function gates.is_open(name)
        local gate = gates.find(name)
        return gate ~= nil and gates.room(gate) > 0
    end

    function gates.take(gate, taken)
        gate.leased = gate.leased + taken
        if gate.rate then
            gate.tat = fairness.take_permits(fairness.rebase(gate.tat, shard.now, gate.depth),
                shard.now, gate.step, taken)
        end
        changed[gate] = true
    end

    -- End a lease's use of a gate, by name ("": none).
    function gates.free(name)
        local gate = name ~= '' and gates.find(name)
        if gate then
            gate.leased = gate.leased - 1
            changed[gate] = true
        end
    end

    function gates.give_back_permit(name)
        local gate = name ~= '' and gates.find(name)
        if gate and gate.rate then
            gate.tat = fairness.return_permits(gate.tat, gate.step, 1)
            changed[gate] = true
        end
    end

    -- A lane was added to the gate or removed from it.
    function gates.moved(name, tier_queue)
        moved[name .. '\0' .. tier_queue] = { name, tier_queue }
    end

    function gates.lanes_key(name, tier_queue)
        return key('gate:' .. tier_queue .. ':' .. name)
    end

    local function write_head(name, tier_queue, is_open)
        local heads = key('heads:' .. tier_queue)
        local first = call('ZRANGE', gates.lanes_key(name, tier_queue), 0, 0, 'WITHSCORES')
        if is_open and first[1] then
            call('ZADD', heads, first[2], name)
        else
            call('ZREM', heads, name)
        end
    end

    -- Write whether the gate is open; if only its rate shuts it, also when it opens.
    local function look(gate)
        local is_open = gates.room(gate) > 0
        gate.wake = 0
        if not is_open and gate.rate and (not gate.concurrency or gate.leased < gate.concurrency)
            then
            gate.tat = fairness.rebase(gate.tat, shard.now, gate.depth)
            gate.wake = fairness.next_permit(gate.tat, shard.now, gate.step, gate.depth)
        end
        if gate.wake > 0 then
            call('ZADD', keys.gate_wakes, gate.wake, gate.name)
        else
            call('ZREM', keys.gate_wakes, gate.name)
        end
        if is_open ~= gate.is_open then
            gate.is_open = is_open
            for tier_queue = 1, #tier_queues do
                write_head(gate.name, tier_queue, is_open)
                if is_open and call('EXISTS', gates.lanes_key(gate.name, tier_queue)) == 1 then
                    pools_to_notify[tier_queues[tier_queue].pool] = true
                end
            end
        end
        call('HSET', keys.gates, gate.name, packed(gate.code, gate.operator, gate.tat, gate.leased,
            gate.is_open, gate.wake, gate.grant))
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
        if next(changed) == nil and next(moved) == nil then
            return
        end
        for gate in pairs(changed) do
            look(gate)
        end
        for _, each in pairs(moved) do
            write_head(each[1], each[2], gates.is_open(each[1]))
        end
        changed, moved = {}, {}
    end
end)
