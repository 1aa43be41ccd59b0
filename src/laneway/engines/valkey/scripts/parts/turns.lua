-- Turns: the order of lanes at their gates. A lane waits at one of its gates, by its turn there: a
-- virtual time that advances by what it gets through that gate. When it is the first one there but
-- another gate does not admit it, or has others before it, it goes to wait at that one, and what is
-- free at its other gates may be held for it.
--
-- An entry of a gate is a lane, or a group with lanes there, which then have turns in the group; at
-- a group's own gate its lanes are entries. The same as gate_order.py, which has an example.
--
-- The field `gate` of a lane: its record, "" if the lane never was at a gate, or once it is needed
-- {waits: the name of the gate where it waits, false: at none; key: all gates that it goes through;
-- turns: by name}.

local turns = part(function(turns)
    local HELD_FOR = 60 * SECOND
    local CREDIT = VT_SCALE -- how much earlier a lane comes from another gate
    local LATE = 5000 -- microseconds that a worker may be late
    local RECORD_MARK = '\147' -- MessagePack's mark of a list of three: waits, key, turns

    function turns.of(lane)
        local found = lane.gate
        if type(found) == 'string' then
            local waits, key_of_gates, its_turns, _ = false, '', {}, nil
            if found ~= '' then
                _, waits, key_of_gates, its_turns = unpack_limit(found, 3, 1)
            end
            found = { waits = waits, key = key_of_gates, turns = its_turns }
            lane.gate = found
        end
        return found
    end

    function turns.record(lane)
        local found = lane.gate
        if type(found) == 'string' then
            return found
        elseif next(found.turns) == nil then
            return ''
        end
        return RECORD_MARK .. packed(found.waits, found.key, found.turns)
    end

    -- The group that the lane belongs to at a gate; nil: none, as at its group's own gate.
    local function group_at(lane, name)
        local group = lane.tier_queue < 0 and groups.find(-lane.tier_queue)
        return group and name ~= GROUP .. group.name and group or nil
    end
    turns.group_at = group_at

    -- The lane, or its group, as it waits at a gate.
    function turns.entry(lane, name)
        return group_at(lane, name) or lane
    end

    -- The turn of an entry at the gate where it waits.
    function turns.at(entry, name)
        return entry.is_group and groups.at(entry, name).turn or turns.of(entry).turns[name]
    end

    -- The lower bound of a lane's turn in an order: that of the entry served last, less `CREDIT` if
    -- the lane waited at another of its gates meanwhile.
    local function lower_bound(lane, reached)
        return turns.of(lane).waits and reached - CREDIT or reached
    end

    -- The turn of the lane's group if the lane came to the gate now.
    function turns.of_group(group, lane, gate)
        return max(groups.at(group, gate.name).turn, lower_bound(lane, gate.turn))
    end

    -- The lane's turn if it came to the gate now, or inside its group there.
    function turns.inner(lane, gate)
        local group = group_at(lane, gate.name)
        return max(turns.of(lane).turns[gate.name] or 0,
            lower_bound(lane, group and groups.at(group, gate.name).inner or gate.turn))
    end

    -- The turn of the lane, or of its group, if the lane came to the gate now.
    function turns.of_entry(lane, gate)
        local group = group_at(lane, gate.name)
        return group and turns.of_group(group, lane, gate) or turns.inner(lane, gate)
    end

    -- How many deliveries of the lane the gate (false: not defined) admits now. What is held for
    -- another lane is not kept from one that precedes it and waits elsewhere.
    function turns.room_of(lane, gate)
        local is_elsewhere = gate and shard.now < gate.held_until and turns.of(lane).waits
            ~= gate.name
        return gates.room_of(gate, lane, is_elsewhere and turns.of_entry(lane, gate) or nil)
    end

    -- How many deliveries of the lane all gates of a key admit now.
    function turns.room(lane, key_of_gates)
        local room = 2 ^ 30
        for _, gate in ipairs(gates.of_key(key_of_gates)) do
            room = min(room, turns.room_of(lane, gate))
        end
        return room
    end

    function turns.leave(lane)
        local found = turns.of(lane)
        local group = found.waits and group_at(lane, found.waits)
        if group then
            local there = groups.at(group, found.waits)
            there.lanes = there.lanes - 1
            groups.touch_at(group, found.waits)
        end
        found.waits = false
    end

    function turns.come(lane, name)
        local gate, found, group = gates.find(name), turns.of(lane), group_at(lane, name)
        local turn, its_turn = turns.inner(lane, gate), group and turns.of_group(group, lane, gate)
        turns.leave(lane)
        if group then
            local there = groups.at(group, name)
            if there.lanes == 0 then
                there.turn = its_turn
            end
            there.lanes = there.lanes + 1
            groups.touch_at(group, name)
        end
        found.turns[name], found.waits = turn, name
    end

    -- The lane is at gates from now on: all of this key. It waits at one that is shut, else at one
    -- without spare.
    function turns.arrive(lane, key_of_gates)
        local found = turns.of(lane)
        found.key = key_of_gates
        local first, tight, is_there = nil, nil, false
        for _, gate in ipairs(gates.of_key(key_of_gates)) do
            if gate then -- else the store lost it
                first, is_there = first or gate.name, is_there or gate.name == found.waits
                tight = tight or (not gates.has_spare(gate, gate.claimed) and gate.name
                    or nil)
            end
        end
        first = tight or first
        if not is_there and first then
            for _, gate in ipairs(gates.of_key(key_of_gates)) do
                if gate and turns.room_of(lane, gate) == 0 then
                    first = gate.name
                    break
                end
            end
            turns.come(lane, first)
        end
    end

    -- The lane leaves its gates: what is held for it there is free again.
    function turns.leave_all(lane)
        local found = turns.of(lane)
        for _, gate in ipairs(gates.of_key(found.key)) do
            if gate and gate.holder == lane.number then
                gates.end_hold(gate)
            end
        end
        turns.leave(lane)
        found.key = ''
    end

    -- Keep permits, or a slot, while the lane waits for another gate: if that opens within a part
    -- of the time of this delivery through this one, so little is lost, or if others can use the
    -- rate meanwhile: then until it is the lane's turn there.
    local function hold_for(lane, gate, wait, need)
        local is_held = shard.now < gate.held_until
        local is_holder = is_held and gate.holder == lane.number
        local is_free = not is_held and gates.keeps_up(gate, need)
        if wait < gates.FOREVER and (is_holder or is_free
            or 5 * wait <= 3 * gates.interval(gate, need)) then
            local for_us = is_free and HELD_FOR or min(3 * wait + LATE, HELD_FOR)
            if is_holder then -- it may need more permits
                need, for_us = max(need, gate.need), max(for_us, gate.held_until - shard.now)
            end
            gates.hold(gate, lane, turns.of_entry(lane, gate), need, for_us)
        end
    end

    -- Of these gates the one that is expected to open last, and in what time.
    local function last_to_open(lane, found, need)
        local last, longest = nil, nil
        for _, gate in ipairs(found) do
            local wait = gates.time_to_open(gate, lane, need)
            if not last or wait > longest then
                last, longest = gate, wait
            end
        end
        return last, longest
    end

    local function others(lane, found)
        local rest = {}
        for _, gate in ipairs(gates.of_key(turns.of(lane).key)) do
            if gate and gate ~= found then
                rest[#rest + 1] = gate
            end
        end
        return rest
    end

    -- The lane, whose turn it is at its gate, goes to another one that does not admit it. Where
    -- it is its turn by `is_turn`, what its next message of that cost needs is held for it.
    function turns.move(lane, blocked, is_turn, cost)
        for _, gate in ipairs(blocked) do
            if turns.room_of(lane, gate) > 0 then -- it is not its turn there
                turns.come(lane, gate.name)
                return
            end
        end
        local last, wait = last_to_open(lane, blocked, cost)
        for _, gate in ipairs(others(lane, last)) do
            if turns.room_of(lane, gate) > 0 or is_turn(lane, gate) then
                hold_for(lane, gate, wait, cost)
            end
        end
        turns.come(lane, last.name)
    end

    -- The lane waits at the gate that has enough permits last, and keeps them if it is its turn.
    function turns.wait_for_permits(lane, short, is_turn, cost)
        local last = last_to_open(lane, short, cost)
        local is_held = shard.now < last.held_until
        if (is_held and last.holder == lane.number)
            or ((not is_held or last.need < cost) and is_turn(lane, last)) then
            gates.hold(last, lane, turns.of_entry(lane, last), cost, HELD_FOR)
        end
        if turns.of(lane).waits then
            local wait = gates.time_to_open(last, lane, cost)
            for _, gate in ipairs(others(lane, last)) do
                hold_for(lane, gate, wait, cost)
            end
            turns.come(lane, last.name)
        end
    end

    -- The entry of a lane at the gate where it waits misses its turn, and goes on behind another.
    function turns.miss(lane, gate, other)
        local name = gate.name
        local group, its_group = group_at(lane, name), group_at(other, name)
        if group and group ~= its_group then
            groups.at(group, name).turn = turns.at(its_group or other, name) + 1
            groups.touch_at(group, name)
        else
            turns.of(lane).turns[name] = turns.at(group and other or its_group or other, name) + 1
        end
    end

    -- The virtual time that an order has reached after a visit: where its last chunk began.
    local function reached(before, taken, weight)
        return fairness.reached(before, before + fairness.stride(taken, weight),
            fairness.stride(fairness.chunk(taken, 2, weight), weight))
    end

    -- So many deliveries of the lane go through the gate.
    function turns.advance(lane, gate, taken, weight)
        local group, before = group_at(lane, gate.name), turns.inner(lane, gate)
        turns.of(lane).turns[gate.name] = before + fairness.stride(taken, weight)
        if group then
            local there = groups.at(group, gate.name)
            there.inner = reached(before, taken, weight)
            before, weight = turns.of_group(group, lane, gate), group.weight
            there.turn = before + fairness.stride(taken, weight)
            groups.touch_at(group, gate.name)
        end
        gate.turn = reached(before, taken, weight)
    end
end)
