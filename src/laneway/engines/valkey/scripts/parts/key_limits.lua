-- Limits per key inside a topic: key_concurrency and key_rate. The same as
-- engines/shared/key_limits.py, which has an example and shows why the limits hold.
--
--   key_states  slot → how many leases and parked messages its key has, the clock of its rate, when
--               it wakes (0: not by the clock), and the lane's name
--   key_wakes   slots by the time at which they wake; and names of lanes with the limits changed,
--               whose keys after a slot have still to be looked at: \2, the name, \0, the slot
--   p:SLOT      the messages that the limits of a key have parked, in order
--   y:N         lane N: the slots with such messages
--
-- A slot is the name of a key here and in leases: SLOT, the lane's number, ":" and the topic if it
-- is in a bucket, \0, and the key.

key_limits = part(function(key_limits)
    local SLOT = '\1'
    -- Others wait for the server meanwhile, and a message takes about 20 microseconds:
    key_limits.MOST = 200 -- messages that a call parks at most
    local LOOKED_AT = 100 -- keys that a call looks at, and messages that it makes ready
    local REST = '\2'

    local function slot_of(lane, topic, key_of)
        return SLOT .. text(lane.number) .. (lane.is_bucket and ':' .. topic or '') .. '\0'
            .. key_of
    end

    -- The slot of a message's key; false: no limits hold for it. A serial one has none.
    function key_limits.slot_for(lane, record)
        return record.serial == NO and record.key and slot_of(lane, record.topic, record.key)
            or false
    end

    -- The slot at the end of a text; nil: there is none.
    function key_limits.slot_at(text_of_lease)
        local at = string.find(text_of_lease, SLOT, 1, true)
        return at and sub(text_of_lease, at)
    end

    local function lane_number(slot)
        return tonumber(string.match(slot, '^' .. SLOT .. '(%d+)'))
    end

    local known = {} -- by slot: the state as this call sees it; false: none

    local function reset()
        known = {}
    end

    local function read(slot)
        local state = known[slot]
        if state == nil then
            at_next_begin(reset)
            local stored = writes.field(keys.key_states, slot)
            if stored then
                local leased, parked, tat, wake, name = values_of(stored)
                state = { leased = leased, parked = parked, tat = tat, wake = wake, name = name,
                    was_parked = parked > 0, was_wake = wake }
            end
            known[slot] = state or false
        end
        return state
    end

    local function new()
        return { leased = 0, parked = 0, tat = 0, wake = 0, was_parked = false, was_wake = 0 }
    end
    local UNUSED = new() -- is not changed

    -- As `fairness.rebase`.
    local function clock(policy, state)
        return min(state.tat, shard.now * TICKS + policy.key_depth)
    end

    local function room_of(policy, state)
        local room = math.huge
        if policy.key_concurrency then
            room = policy.key_concurrency - state.leased
        end
        if policy.key_rate and room > 0 then
            room = min(room, fairness.permits(clock(policy, state), shard.now, policy.key_step,
                policy.key_depth))
        end
        return max(room, 0)
    end

    local function slots_key(lane)
        return key('y:' .. text(lane.number))
    end

    -- Set the clock of a key and when it wakes, and write it; delete it if it says nothing. A time
    -- to wake that has come stays until `wake_one` looks at what is parked.
    local function save_state(lane, policy, slot, state)
        local before = state.wake
        state.wake, state.tat = 0, policy.key_rate and clock(policy, state) or 0
        local is_used = not fairness.recovered(state.tat, shard.now)
        local permit = policy.key_rate and state.parked > 0 and fairness.next_permit(state.tat,
            shard.now, policy.key_step, policy.key_depth, 1)
        if permit and permit > shard.now then
            state.wake = permit
        elseif state.parked > 0 and before > 0 then
            state.wake = before
        elseif state.leased == 0 and is_used then
            state.wake = math.ceil(state.tat / TICKS)
        end
        if state.wake ~= state.was_wake then
            writes.set_member(keys.key_wakes, slot, state.wake > 0 and state.wake)
        end
        if (state.parked > 0) ~= state.was_parked then
            writes.set_member(slots_key(lane), slot, state.parked > 0 and 0)
        end
        local says_something = state.leased > 0 or state.parked > 0 or is_used
        state.name, state.was_parked, state.was_wake = lane.name, state.parked > 0, state.wake
        known[slot] = says_something and state
        writes.set_field(keys.key_states, slot, says_something and packed(state.leased,
            state.parked, state.tat, state.wake, lane.name))
    end

    -- How many messages of the key may be delivered now.
    function key_limits.room(policy, slot)
        return room_of(policy, read(slot) or UNUSED)
    end

    function key_limits.park(lane, policy, slot, record)
        local state = read(slot) or new()
        messages.park_ready(lane, record, key('p:' .. slot))
        state.parked = state.parked + 1
        save_state(lane, policy, slot, state)
        lane.keys = lane.keys or { 0, '' }
        lane.keys[2] = policy.key_limits
        lanes.touch(lane)
    end

    -- So many messages of the key are delivered.
    function key_limits.take(lane, policy, slot, count)
        local state = read(slot) or new()
        state.leased = state.leased + count
        if policy.key_rate then
            state.tat = fairness.take_permits(clock(policy, state), shard.now, policy.key_step,
                count)
            lane.keys = lane.keys or { 0, '' }
            lane.keys[1] = max(lane.keys[1], math.ceil(state.tat / TICKS))
            lanes.touch(lane)
        end
        save_state(lane, policy, slot, state)
    end

    -- The first messages that the key's limits parked become ready.
    local function bring_forward(lane, slot, state, count)
        count = min(count, state.parked)
        if count <= 0 then
            return
        end
        local name, mids = key('p:' .. slot), {}
        for n, member in ipairs(call('ZRANGE', name, 0, count - 1)) do
            mids[n] = messages.number_in(member)
        end
        messages.load(mids)
        for _, mid in ipairs(mids) do
            local record = messages.read(mid)
            if record then
                messages.unpark_ready(lane, record, name)
            end
        end
        -- fewer: the store lost some; the doctor reports it
        state.parked = #mids < count and 0 or state.parked - #mids
        lanes.touch(lane)
    end

    -- A lease ended that has this slot: the first message that the key's limits parked becomes
    -- ready.
    function key_limits.free(lane, slot)
        local state = slot and read(slot)
        if not state then
            return
        end
        local policy = lanes.policy_of(lane)
        state.leased = max(state.leased - 1, 0)
        if state.parked > 0 then
            bring_forward(lane, slot, state, min(room_of(policy, state), 1))
        end
        save_state(lane, policy, slot, state)
    end

    -- The delivery never began: return its permit, which it took `since` ago.
    function key_limits.give_back(lane, slot, since)
        local state, policy = slot and read(slot), lanes.policy_of(lane)
        if state and policy.key_rate then
            state.tat = fairness.return_permits(state.tat, policy.key_step, 1, since)
            bring_forward(lane, slot, state, min(room_of(policy, state), 1))
            save_state(lane, policy, slot, state)
        end
    end

    function key_limits.unpark(lane, record)
        local slot = slot_of(lane, record.topic, record.key or '')
        messages.end_parking(lane, record, key('p:' .. slot))
        local state = read(slot)
        if state then
            state.parked = max(state.parked - 1, 0)
            save_state(lane, lanes.policy_of(lane), slot, state)
        end
    end

    -- A message stopped waiting, or is delayed now, without a delivery. If it was ready, the next
    -- one of its key becomes ready in its place.
    function key_limits.leave(lane, record)
        if lane.parked == 0 or record.serial ~= NO or not record.key or record.state ~= READY then
            return
        end
        local slot = slot_of(lane, record.topic, record.key)
        local state = read(slot)
        if state then
            bring_forward(lane, slot, state, 1)
            save_state(lane, lanes.policy_of(lane), slot, state)
        end
    end

    -- Returns how many messages, at most `most`, became ready.
    local function wake_one(lane, slot, most)
        local state = read(slot)
        if not state then
            return 0
        end
        local policy, before = lanes.policy_of(lane), state.parked
        local room = room_of(policy, state)
        bring_forward(lane, slot, state, min(room, most))
        state.wake = room > most and shard.now or 0 -- there may be more
        state.was_wake = nil -- repairs add wakes that no state has
        save_state(lane, policy, slot, state)
        return before - state.parked
    end

    -- Look at the lane's keys with parked messages, from the first or behind a slot; the rest at
    -- the next calls.
    function key_limits.look_at_keys(lane, after)
        local slots = call('ZRANGE', slots_key(lane), after and '(' .. after or '-', '+', 'BYLEX',
            'LIMIT', 0, LOOKED_AT)
        local left, last = LOOKED_AT, #slots == LOOKED_AT and slots[LOOKED_AT]
        writes.load_fields(keys.key_states, slots)
        for n, slot in ipairs(slots) do
            left = left - wake_one(lane, slot, left)
            if left <= 0 and n < #slots then
                last = slot
                break
            end
        end
        if last then
            call('ZADD', keys.key_wakes, shard.now, REST .. lane.name .. '\0' .. last)
        end
    end

    local function look_at_rest(member)
        call('ZREM', keys.key_wakes, member)
        local name, slot = match(member, '^.(.-)%z(.*)$')
        local lane = lanes.find(name)
        if lane and lane.number == lane_number(slot) then
            key_limits.look_at_keys(lane, slot)
            if lane.place == IDLE then
                lanes.place(lane)
            end
        end
    end

    local function forget(slot)
        known[slot] = false
        writes.set_field(keys.key_states, slot, false)
        writes.set_member(keys.key_wakes, slot, false)
    end

    -- Keys whose time has come: as many of their parked messages as they admit become ready.
    function key_limits.wake(most)
        local due, slots, names = call('ZRANGE', keys.key_wakes, '-inf', shard.now, 'BYSCORE',
            'LIMIT', 0, most), {}, {}
        writes.load_fields(keys.key_states, due)
        local rest
        for _, slot in ipairs(due) do
            local is_rest = byte(slot) == 2
            rest = rest or (is_rest and slot)
            local state = not is_rest and read(slot)
            if state and state.leased == 0 and state.parked == 0
                and fairness.recovered(state.tat, shard.now) then
                -- its lane, which does not change, need not be read
                forget(slot)
            elseif not is_rest then
                slots[#slots + 1], names[#names + 1] = slot, state and state.name or ''
            end
        end
        lanes.load(names)
        if rest then
            look_at_rest(rest) -- of one lane in a call
        end
        local left = LOOKED_AT
        for n, slot in ipairs(slots) do
            local lane = lanes.find(names[n])
            if left <= 0 then
                break -- the others are still due
            elseif lane and lane.number == lane_number(slot) then
                left = left - wake_one(lane, slot, left)
                if lane.place == IDLE then
                    lanes.place(lane)
                end
            else -- its lane was deleted
                forget(slot)
            end
        end
    end

    -- For the doctor: compare the states with these leases by slot, and with what is parked.
    -- Returns how many are wrong. `repairs`: count again, and look at what is parked soon.
    function key_limits.check(leases, repairs)
        local wrong, seen, stored = 0, {}, call('HGETALL', keys.key_states)
        for n = 1, #stored, 2 do
            seen[stored[n]] = true
        end
        for slot in pairs(leases) do
            if not seen[slot] then
                stored[#stored + 1], stored[#stored + 2] = slot, false
            end
        end
        for n = 1, #stored, 2 do
            local slot = stored[n]
            local leased, parked, tat, _, name = 0, 0, 0, 0, leases[slot] and leases[slot].lane
            if stored[n + 1] then
                leased, parked, tat, _, name = values_of(stored[n + 1])
            end
            local count, waiting = leases[slot] and leases[slot].count or 0, call('ZCARD', key('p:'
                .. slot))
            if leased ~= count or parked ~= waiting then
                wrong = wrong + 1
                if repairs then
                    call('HSET', keys.key_states, slot, packed(count, waiting, tat, shard.now,
                        name))
                    call('ZADD', keys.key_wakes, shard.now, slot)
                    if waiting > 0 then
                        call('ZADD', key('y:' .. text(lane_number(slot))), 0, slot)
                    end
                end
            end
        end
        known = {}
        return wrong
    end
end)
