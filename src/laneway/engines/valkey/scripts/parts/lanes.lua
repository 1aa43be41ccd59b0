-- Lanes: where a topic's messages wait. A lane has a record (hash `lanes`, by name) only while one
-- of its messages waits or is leased, or until its limits have recovered: an idle topic has no key.
--
-- States (`place`), and the index in which a lane of that state is (at most one):
--
--   IDLE      nothing is ready               idle, if it is to be forgotten, by that time
--   RUNNABLE  can deliver now                run:N, by virtual time; in a group run:-N
--   ASLEEP    until a permit, or back-off    asleep, by the time at which it wakes
--   AT_GATE   waits at a gate                gate:N:NAME, by its turn; in a group gate:-N:NAME
--   FULL      as many leases as allowed      none
--   PAUSED    by its policy                  none
--
-- `where` decides the state from scratch after each change ("Placing" in docs/specification.md), so
-- every transition is possible. Members are the lane's number, sortable, and its name. `names` has
-- all names in order.
--
-- `latest`: the lane's last plain messages, 7 bytes each; `listed`: how many are before them in the
-- list `q:N`; `sorted`: how many of its ready messages are in the sorted set `z:N`, see
-- messages.lua.
--
-- `keys`: false, or {when the rates of all keys have recovered, the limits per key under which
-- messages were parked last}, see key_limits.lua.
--
-- `need`: 0 if all messages of the lane cost 1; above 1: what the first one costs, if the rate has
-- stopped it. `owes`: the cost of the last message that was delivered, 0 if it was 1.
--
-- `gate`: the gates that it goes through, see turns.lua.

local IDLE, RUNNABLE, ASLEEP, AT_GATE, FULL, PAUSED = 0, 1, 2, 3, 4, 5
local LINGER, LINGER_BY_TIME = SECOND, 60 * SECOND -- how long an idle lane has a record
-- the assumed cost of a message before one is known
local DEFAULT_MEAN = SECOND
local RATE_WINDOW = 10 * SECOND
local PARTITION, BUCKET = '\31', '\30'

local key_limits -- defined in key_limits.lua, which uses `lanes`

lanes = part(function(lanes)
    local known, changed, watched = {}, {}, {}
    local written = {} -- names and records of `save`, flat
    local left_topics = {} -- a list and a set: topics of which a partition was forgotten
    local taken = 0 -- of the tables below

    local function reset()
        known, taken = {}, 0
        if changed[1] or watched[1] or left_topics[1] then
            changed, written, watched, left_topics = {}, {}, {}, {}
        end
    end

    -- A record has a head of fixed width with what most calls change, then `latest`. The rest,
    -- which few lanes have, has their classes in top lists, the clock of their rate and the number
    -- of their group (0: none), in fixed width, too; then, as MessagePack, by name those rare
    -- fields that are not as usual (false: none), and the lane's gates, see turns.lua. A lane to
    -- which a rare field was given `is_rare`.
    -- `was` is what `tallies` has counted of the lane.
    local HEAD = '<Bi8i4i4i4i4i4i8i8i8i8I2i8i8i8i4i4i4I2c0'
    local REST = '<I2I4I2I2i8i8'
    local NEW = ('\0'):rep(101) -- the record of a lane before anything is set
    local USUAL = { big = 0, old = 0, busy = 0, slow = 0, tat = 0, gate = '', retried = 0, died = 0,
        merged = 0, expired = 0, removed = 0, throttled = 0, back_off_until = 0, back_off_step = 0,
        back_off_fence = 0, mean = 0, watched_until = 0, need = 0, owes = 0, held_since = 0,
        held_until = 0, flow = false, keys = false }
    -- a lane that has only these of them is not rare; `admitted` is not stored
    local COMMON = { big = true, old = true, busy = true, slow = true, tat = true, gate = true,
        admitted = true }
    local NO_RARE, NO_RARE_MARK = '\194', 194 -- MessagePack's false

    -- False: a bucket, which has many topics.
    function lanes.topic(lane)
        return not lane.is_bucket and (lane.policy_name or lane.name)
    end

    local LANE = { __index = USUAL }

    -- Called for a field that the lane does not have.
    function LANE.__newindex(lane, field, value)
        lane.has_rest = true
        if not (lane.is_rare or COMMON[field]) then
            lane.is_rare = true
            tallies.begin_rare(lane, lane.was)
        end
        rawset(lane, field, value)
    end

    -- Tables of lanes are used again in later calls, because creating them is slow; those with rare
    -- fields are not.
    local POOL = 512
    local pool = {}

    local function new_table()
        local lane = setmetatable({
            name = '', number = 0, tier_queue = 0, place = IDLE, wake = 0, vt = 0, ready = 0,
            delayed = 0, parked = 0, leased = 0, bytes = 0, published = 0, delivered = 0, done = 0,
            seen = 0, lately = 0, before = 0, sorted = 0, listed = 0, latest = '', has_rest = false,
            is_rare = false,
            policy = false, is_changed = false, policy_name = false, is_bucket = false,
            arrived = false, index = false, score = 0, left = false, head_since = false,
            was = { 0, 0, 0, 0 },
        }, LANE)
        pool[taken] = taken <= POOL and lane or nil
        return lane
    end

    -- Set the fields that are not rare, without a call for each.
    local function set_common(lane, has_rest, big, old, busy, slow, tat, gate)
        setmetatable(lane, nil)
        lane.has_rest, lane.big, lane.old, lane.busy, lane.slow, lane.tat, lane.gate, lane.admitted
            = has_rest, big, old, busy, slow, tat, gate, nil
        setmetatable(lane, LANE)
    end

    local function decode_rest(lane, stored, at)
        local big, old, busy, slow, tat, group, behind = unpack_from(REST, stored, at)
        local rare = byte(stored, behind) ~= NO_RARE_MARK
        if rare then
            behind, rare = unpack_limit(stored, 1, behind - 1)
        end
        local gate = behind > 0 and sub(stored, behind + 1) or '' -- -1: nothing follows
        set_common(lane, true, big, old, busy, slow, tat, gate)
        if group > 0 then
            lane.tier_queue = -group
        end
        if rare then
            lane.is_rare = true
            for field, value in pairs(rare) do
                lane[field] = value
            end
            lane.flow = lane.flow and named(adaptive.FIELDS, lane.flow)
            tallies.begin_rare(lane, lane.was)
        end
    end

    local function decode(name, stored)
        local place, number, ready, delayed, parked, leased, listed, bytes, published, delivered,
            done, tier_queue, wake, vt, seen, lately, before, sorted, latest, rest = unpack_from(
            HEAD, stored)
        taken = taken + 1
        local lane = pool[taken]
        if not lane or lane.is_rare then
            lane = new_table()
        elseif lane.has_rest then -- an earlier call has used it for another lane
            set_common(lane, false)
        end
        lane.place, lane.number, lane.ready, lane.delayed, lane.parked, lane.leased, lane.listed,
            lane.bytes, lane.published, lane.delivered, lane.done, lane.tier_queue, lane.wake,
            lane.vt, lane.seen, lane.lately, lane.before, lane.sorted, lane.latest, lane.name,
            lane.policy, lane.is_changed, lane.index, lane.left, lane.head_since = place, number,
            ready, delayed, parked, leased, listed, bytes, published, delivered, done, tier_queue,
            wake, vt, seen, lately, before, sorted, latest, name, false, false, false, false, false
        local was, cut = lane.was, find_in(name, PARTITION, 1, true)
        was[1], was[2], was[3], was[4] = published, delivered, done, ready + delayed + parked
        if cut then -- the topic or pattern that the lane's policy is resolved for
            local is_bucket = byte(name) == 30
            lane.is_bucket, lane.policy_name = is_bucket, sub(name, is_bucket and 2 or 1, cut - 1)
        elseif lane.policy_name then
            lane.policy_name, lane.is_bucket = false, false
        end
        if rest <= #stored then
            decode_rest(lane, stored, rest)
        end
        return lane
    end

    local function rare_of(lane)
        local rare = unusual_in(lane, USUAL)
        rare.big, rare.old, rare.busy, rare.slow, rare.tat, rare.gate = nil
        rare.flow = rare.flow and values_in(adaptive.FIELDS, rare.flow)
        return next(rare) ~= nil and packed(rare) or NO_RARE
    end

    local function encode(lane)
        local tier_queue, latest, group = lane.tier_queue, lane.latest, 0
        if tier_queue < 0 then
            tier_queue, group = tier_queues[tier_queue].number, -tier_queue
        end
        local head = pack(HEAD, lane.place, lane.number, lane.ready, lane.delayed, lane.parked,
            lane.leased, lane.listed, lane.bytes, lane.published, lane.delivered, lane.done,
            tier_queue, lane.wake, lane.vt, lane.seen, lane.lately, lane.before, lane.sorted,
            #latest, latest)
        if not lane.has_rest and group == 0 then
            return head
        end
        return head .. pack(REST, lane.big, lane.old, lane.busy, lane.slow, lane.tat, group)
            .. (lane.is_rare and rare_of(lane) or NO_RARE) .. turns.record(lane)
    end

    -- False: there is none.
    function lanes.find(name)
        local lane = known[name]
        if lane == nil then
            at_next_begin(reset)
            local stored = call('HGET', keys.lanes, name)
            lane = stored and decode(name, stored)
            known[name] = lane
        end
        return lane
    end

    -- Read several at once, with their groups.
    function lanes.load(names)
        if not names[2] then -- what is read for one needs no lists
            return names[1] and lanes.find(names[1])
        end
        at_next_begin(reset)
        local wanted = unknown_in(known, names)
        local found, numbers = read_many(keys.lanes, wanted), {}
        for n = 1, #found do
            local lane = found[n] and decode(wanted[n], found[n])
            known[wanted[n]] = lane
            if lane and lane.tier_queue < 0 then
                numbers[#numbers + 1] = -lane.tier_queue
            end
        end
        policies.load(wanted)
        groups.load(numbers)
    end

    -- The lanes with these names, without those that the store lost.
    function lanes.existing(names)
        local found = {}
        lanes.load(names)
        for n = 1, #names do
            found[#found + 1] = lanes.find(names[n]) or nil
        end
        return found
    end

    function lanes.policy_of(lane)
        local policy = lane.policy
        if not policy then
            policy = policies.of_lane(lane.policy_name or lane.name)
            lane.policy = policy
        end
        return policy
    end

    -- The lane's group in its tier queue; nil: it has none.
    function lanes.group(lane)
        return lane.tier_queue < 0 and groups.find(-lane.tier_queue) or nil
    end

    -- The key of the lane's gates, see gates.lua; false: it has none. What the partitions of its
    -- topic share is one, and a group with limits.
    function lanes.gate_of(lane, policy)
        local found, group = policy.gate, lane.tier_queue < 0 and groups.find(-lane.tier_queue)
        if policy.shared then
            found = (found and found .. '\31' or '') .. TOPIC_GATE
                .. (lane.policy_name or lane.name)
        end
        if group and group.is_limited then
            found = (found and found .. '\31' or '') .. GROUP .. group.name
        end
        return found
    end

    -- The gate with these limits that the topic's partitions share; copies are where their messages
    -- are. `was_empty`: the number of partitions may be another one.
    function lanes.shared_gate(topic, limits, was_empty)
        local gate = gates.of_topic(topic, limits)
        if not gate or (was_empty and shard.shards > 1) then
            local base = string.match(topic, '^[^#]*')
            local partitions, shards = policies.of(base).partitions, shard.shards
            local first = (shard.index - crc32(base)) % shards
            gate = gates.share(topic, limits, max(0, math.ceil((partitions - first)
                / shards)), partitions, first)
        end
        return gate
    end

    -- Whether the lane or its group has a rate, a concurrency or a gate.
    function lanes.is_limited(lane, policy)
        local group = lane.tier_queue < 0 and lanes.group(lane)
        return policy.limited or (group and group.is_limited) or false
    end

    -- The lane's clock under its policy's rate, which may have changed.
    function lanes.tat_of(lane, policy)
        return fairness.rebase(lane.tat, shard.now, policy.step, policy.depth, lane.owes)
    end

    -- A message of the lane has these headers (false: none): it may cost more than 1.
    function lanes.expect_costs(lane, headers)
        if headers and headers['laneway-cost'] and lane.need == 0 then
            lane.need = 1
        end
    end

    function lanes.policies_changed()
        for _, lane in pairs(known) do
            if lane then
                lane.policy = false
            end
        end
    end

    function lanes.touch(lane)
        if not lane.is_changed then
            lane.is_changed = true
            changed[#changed + 1] = lane
        end
    end

    -- Put an idle lane into the tier queue, or the group in it, of its policy.
    local function enter(lane, policy)
        local tier_queue = tier_queues.of(policy.pool, tier_of(policy))
        local name = policy.group and groups.name_for(policy.group, lane.policy_name or lane.name)
        lane.tier_queue, lane.vt = tier_queue.number, tier_queue.vt
        if name then
            local group = groups.of(tier_queue, name)
            groups.add_lanes(group, 1)
            lane.tier_queue, lane.vt = -group.number, group.inner_vt
        end
    end

    function lanes.make(name)
        local lane = lanes.find(name)
        if not lane then
            shard.lanes, shard.lanes_created = shard.lanes + 1, shard.lanes_created + 1
            lane = decode(name, NEW)
            lane.number, lane.seen, known[name] = shard.lanes_created, shard.now, lane
            enter(lane, lanes.policy_of(lane))
            writes.set_member(keys.names, name, 0)
            lanes.touch(lane)
        end
        return lane
    end

    local NAMES = 4096
    -- keys of lanes by kind and number, because joining a number to a string is slow
    local names, count, prefix = {}, 0, nil

    -- The key q:N, z:N, a:N or o:N.
    function lanes.key_of(kind, lane)
        local name = prefix == PREFIX and names[kind][lane.number]
        if not name then
            if prefix ~= PREFIX or count >= NAMES then
                names, count, prefix = { q = {}, z = {}, a = {}, o = {} }, 0, PREFIX
            end
            name = key(kind .. ':' .. text(lane.number))
            names[kind][lane.number], count = name, count + 1
        end
        return name
    end

    function lanes.waiting(lane)
        return lane.ready + lane.delayed + lane.parked
    end

    -- The name of a message's lane. `spread`: the number that selects the partition; false: the
    -- message's own number does.
    function lanes.name_for(policy, topic, spread, number)
        if policy.buckets then
            return BUCKET .. policy.bucket_name .. PARTITION
                .. text(topic_spread(topic) % policy.buckets)
        end
        if policy.partitions > 1 then
            return topic .. PARTITION .. text((spread or number) % policy.partitions)
        end
        return topic
    end

    -- The lanes of a topic; if it is in a bucket, the bucket's lane.
    function lanes.of_topic(topic, policy)
        local found = {}
        for n = 0, policy.partitions - 1 do
            found[#found + 1] = lanes.find(lanes.name_for(policy, topic, n)) or nil
        end
        return found
    end

    -- Placing

    local NOWHERE = ''

    local function index_of(lane)
        local place, number = lane.place, lane.tier_queue
        if place == RUNNABLE then
            return number > 0 and tier_queues[number].runnable or groups.runnable_key(-number),
                lane.vt
        elseif place == AT_GATE then
            local found = turns.of(lane)
            local its_queue = turns.group_at(lane, found.waits) and number
                or tier_queues[number].number
            return gates.lanes_key(found.waits, its_queue), found.turns[found.waits]
        elseif place == ASLEEP then
            return keys.asleep, lane.wake
        elseif place == IDLE and lane.wake > 0 then
            return keys.idle, lane.wake
        end
        return NOWHERE, 0
    end

    local STAYS = '\0' -- as an index: it waits at a gate, and its turn there does not change

    -- The lane in indexes.
    function lanes.member(lane)
        return pack('>I7c0', lane.number, lane.name)
    end

    -- Call before a change of place, wake, tier queue or virtual time: remembers the index.
    function lanes.before_move(lane)
        if not lane.index and lane.place == AT_GATE then
            lane.index, lane.score = STAYS, lane.vt
        elseif not lane.index then
            lane.index, lane.score = index_of(lane)
        end
    end

    -- Call before the gate where it waits changes, or its turn there. `left`: the tier queue's
    -- number, where it waited, all of its gates.
    function lanes.before_turn(lane)
        lanes.before_move(lane)
        if lane.index == STAYS then
            local found = turns.of(lane)
            lane.index, lane.score = index_of(lane)
            lane.left = { tier_queues[lane.tier_queue].number, found.waits, found.key }
        end
    end

    -- Count the lane at the gates of a key at which it does not wait.
    local function count_elsewhere(key_of_gates, waits, more)
        if find_in(key_of_gates, '\31', 1, true) then
            for _, gate in ipairs(gates.of_key(key_of_gates)) do
                if gate and gate.name ~= waits then
                    gates.count_elsewhere(gate.name, more)
                end
            end
        end
    end

    local function move_at_gates(lane)
        local before, now = lane.left, lane.place == AT_GATE and turns.of(lane)
        lane.left = false
        if before then
            gates.moved(before[2], before[1])
        end
        if now then
            gates.moved(now.waits, tier_queues[lane.tier_queue].number)
        end
        if not (before and now and before[2] == now.waits and before[3] == now.key) then
            if before then
                count_elsewhere(before[3], before[2], -1)
            end
            if now then
                count_elsewhere(now.key, now.waits, 1)
            end
        end
    end

    local function move(lane)
        if lane.index == STAYS then
            if lane.vt ~= lane.score then
                gates.moved(turns.of(lane).waits, tier_queues[lane.tier_queue].number)
            end
            lane.index = false
            return
        end
        local index, score = index_of(lane)
        local before = lane.index
        if before ~= index or (index ~= NOWHERE and score ~= lane.score) then
            local member = lanes.member(lane)
            if before ~= NOWHERE and before ~= index then
                writes.set_member(before, member, false)
            end
            if index ~= NOWHERE then
                writes.set_member(index, member, score)
            end
        end
        if lane.left or lane.place == AT_GATE then
            move_at_gates(lane)
        end
        lane.index = false
    end

    local function forgotten_at(lane, policy, tier_queue)
        local shared = policy.shared and lanes.shared_gate(lane.policy_name or lane.name,
            policy.shared)
        local at = lane.place == IDLE and lane.wake > 0 and lane.wake
            or shard.now + ((lane.is_rare and lane.flow or shared and shared.flow) and FLOW_KEPT
                or tier_queue.by_time and LINGER_BY_TIME or LINGER)
        if policy.rate then
            at = max(at, math.ceil(lane.tat / TICKS))
        end
        if shared then
            at = max(at, math.ceil(shared.tat / TICKS))
        end
        if lane.is_rare then
            at = max(at, lane.back_off_until, lane.keys and lane.keys[1] or 0)
        end
        return at
    end

    -- How many leases it may have; false: no limit. One while the topic probes its destination.
    local function concurrency_of(lane, policy)
        if lane.back_off_step > 0 then
            return 1
        end
        return policy.adapts and adaptive.limit(lane.flow, policy) or policy.concurrency
    end

    -- Count for how long a rate held the lane back until now; it does so until then.
    function lanes.hold(lane, stop)
        local now = shard.now
        lane.throttled = lane.throttled + max(0, min(now, lane.held_until) - lane.held_since)
        lane.held_since, lane.held_until = stop > now and now or 0, stop > now and stop or 0
    end

    -- Whether a rate may hold the lane back at its new place: its own, or its topic's.
    local function is_held(lane, policy, place)
        if place == ASLEEP then
            return lane.back_off_until <= shard.now
        end
        return place == AT_GATE and policy.shared
    end

    local function can_deliver_at(place)
        return place == RUNNABLE or place == AT_GATE
    end

    -- Where its own limits keep a lane that has ready messages, and when it wakes (0: not by the
    -- clock); nil: nowhere. `is_used`: whether its rate has not recovered.
    local function kept_at(lane, policy, is_used)
        local now = shard.now
        if lane.is_rare and lane.back_off_until > now then
            return ASLEEP, lane.back_off_until
        end
        local concurrency = (policy.limited or lane.is_rare) and concurrency_of(lane, policy)
        if concurrency and lane.leased >= concurrency then
            return FULL, 0
        end
        if is_used then
            local permit = fairness.next_permit(lane.tat, now, policy.step, policy.depth,
                max(lane.need, 1))
            if permit > now then
                if permit ~= lane.held_until then
                    lanes.hold(lane, permit)
                end
                return ASLEEP, permit
            end
        end
    end

    local SMALL_WEIGHT = 0.25 -- as in Python
    -- Whether the tier serves the lane, or its group, so late that a gate whose first lane it is
    -- would have to wait for it: it stays in the order of its tier.
    local function is_far_ahead(lane, policy, tier_queue, key)
        local group = lanes.group(lane)
        if (group or policy).weight > SMALL_WEIGHT or policy.shared or tier_queue.by_time
            or (group or lane).vt - tier_queue.vt < fairness.stride(1, SMALL_WEIGHT) then
            return false
        end
        for _, gate in ipairs(gates.of_key(key)) do
            if not gate or gate.grant then -- grants move to waiting lanes
                return false
            end
        end
        return true
    end

    -- The rule "Placing" of docs/specification.md. Returns place and wake (0: none).
    local function where(lane, policy, tier_queue, was_visited, was_refused)
        local now, is_rare = shard.now, lane.is_rare
        if policy.shared then
            lanes.shared_gate(lane.policy_name or lane.name, policy.shared, lane.place == IDLE
                and lane.leased == 0)
        end
        local is_used = policy.rate and not fairness.recovered(lane.tat, now)
        if is_used then
            lane.tat = lanes.tat_of(lane, policy)
        elseif is_rare and lane.owes > 0 and fairness.recovered(lane.tat, now) then
            lane.owes = 0
        end
        if policy.paused and lanes.waiting(lane) > 0 then
            return PAUSED, 0
        elseif lane.ready == 0 then
            local has_some = lane.leased > 0 or lane.delayed > 0 or lane.parked > 0
            if is_rare and lane.need > 0 then
                lane.need = has_some and 1 or 0
            end
            return IDLE, has_some and 0 or forgotten_at(lane, policy, tier_queue)
        end
        local place, wake = kept_at(lane, policy, is_used)
        if place then
            return place, wake
        end
        local gate = lanes.gate_of(lane, policy)
        if gate and not was_visited and can_deliver_at(lane.place) then
            return lane.place, 0
        end
        local waits = gate and not gates.claim(gate)
            and (was_refused or not is_far_ahead(lane, policy, tier_queue, gate))
        return waits and AT_GATE or RUNNABLE, 0
    end

    local function is_elsewhere(lane, policy)
        local tier_queue, name = tier_queues[lane.tier_queue], false
        if lane.tier_queue < 0 then
            local group = groups.find(-lane.tier_queue)
            name = group and group.name -- nil: the store lost it
        end
        local its = policy.group and groups.name_for(policy.group, lane.policy_name or lane.name)
        return name ~= (its or false) or tier_queue.pool ~= policy.pool
            or tier_queue.tier ~= tier_of(policy)
    end

    -- A lane gets another place. Neither sleeping nor waiting at a gate earns credit.
    local function change_place(lane, place, tier_queue)
        local group = lane.tier_queue < 0 and groups.find(-lane.tier_queue)
        if place == RUNNABLE or (place == AT_GATE and lane.place ~= RUNNABLE) then
            if group and group.runnable == 0 then
                group.vt = max(group.vt, tier_queue.vt)
            end
            lane.vt = max(lane.vt, group and group.inner_vt or tier_queue.vt)
        end
        if group then
            groups.count(group, lane.place == RUNNABLE, place == RUNNABLE)
        end
    end

    local function leave_gates(lane)
        if lane.place == AT_GATE then
            lanes.before_turn(lane)
            turns.leave_all(lane)
        end
    end

    -- The lane comes to a gate, stays at one, or leaves it. `gate`: the key of its gates; "": none.
    local function place_at_gate(lane, gate)
        if gate == '' then
            leave_gates(lane)
        elseif lane.place ~= AT_GATE or not turns.of(lane).waits or turns.of(lane).key ~= gate then
            lanes.before_turn(lane)
            turns.arrive(lane, gate)
        end
    end

    -- Move the lane to the place where it belongs now. `was_visited`: by the lease that ends.
    function lanes.place(lane, was_visited, was_refused)
        local policy = lane.policy or lanes.policy_of(lane)
        lanes.before_move(lane)
        -- in another tier queue or group it begins like a lane that wakes
        if is_elsewhere(lane, policy) then
            leave_gates(lane)
            local group = lanes.group(lane)
            if group then
                groups.count(group, lane.place == RUNNABLE, false)
                groups.add_lanes(group, -1)
            end
            enter(lane, policy)
            lane.place, lane.wake, lane.gate = IDLE, 0, ''
        end
        if lane.parked > 0 and lane.keys and lane.keys[2] ~= ''
            and lane.keys[2] ~= policy.key_limits then
            lane.keys[2] = policy.key_limits
            key_limits.look_at_keys(lane)
        end
        local tier_queue = tier_queues[lane.tier_queue]
        local place, wake = where(lane, policy, tier_queue, was_visited, was_refused)
        if lane.is_rare and lane.held_until > 0 and not is_held(lane, policy, place) then
            lanes.hold(lane, 0)
        end
        local gate = place == AT_GATE and lanes.gate_of(lane, policy) or ''
        if place ~= lane.place then
            change_place(lane, place, tier_queue)
            if can_deliver_at(place) and (gate == '' or turns.room(lane, gate) > 0) then
                pools_to_notify[tier_queue.pool] = true
            end
        end
        if gate ~= '' or lane.place == AT_GATE then
            place_at_gate(lane, gate)
        end
        lane.place, lane.wake = place, wake
        move(lane)
        lanes.touch(lane)
    end

    function lanes.can_deliver(lane)
        return lane.place == RUNNABLE or (lane.place == AT_GATE and turns.room(lane,
            turns.of(lane).key) > 0)
    end

    -- The name of the gate where the lane waits; nil: at none.
    function lanes.waits_at(lane)
        return lane.place == AT_GATE and turns.of(lane).waits or nil
    end

    -- How many of its ready messages the lane's own limits admit.
    function lanes.allowance(lane, policy)
        local allowed = lane.ready
        if not policy.limited and not lane.is_rare then
            return allowed
        end
        local concurrency = concurrency_of(lane, policy)
        if concurrency then
            allowed = min(allowed, concurrency - lane.leased)
        end
        if policy.rate and allowed > 0 then
            local tat = lanes.tat_of(lane, policy)
            allowed = min(allowed, fairness.permits(tat, shard.now, policy.step, policy.depth))
            if lane.need > 1 and not fairness.admits(tat, shard.now, policy.step, policy.depth,
                lane.need) then
                allowed = 0
            end
        end
        return max(allowed, 0)
    end

    function lanes.count_deliveries(lane, taken)
        local elapsed = shard.now - lane.seen
        if elapsed >= RATE_WINDOW then
            lane.before = elapsed < 2 * RATE_WINDOW and lane.lately or 0
            lane.lately, lane.seen = 0, shard.now
        end
        lane.lately = lane.lately + taken
        lane.delivered = lane.delivered + taken
        shard.delivered = shard.delivered + taken
    end

    -- Top lists are sorted by size classes, which change rarely; few lanes are large enough for
    -- one.

    local function set_class(lane, name, class)
        if lane[name] ~= class then
            lane[name] = class
            writes.set_member(keys['top:' .. name], lane.name, class > 0 and class)
        end
    end

    local function classify(lane, is_gone)
        local is_listed = lane.has_rest and (lane.big + lane.old + lane.busy + lane.slow > 0
            or (lane.is_rare and lane.throttled + lane.held_until > 0))
        local waiting = lanes.waiting(lane)
        if not is_listed and lane.lately < 32 and waiting < 32 then
            return
        end
        set_class(lane, 'big', is_gone and 0 or fairness.size_class(waiting))
        if is_gone or lane.ready < 32 then
            set_class(lane, 'old', 0)
        elseif lane.old == 0 or lane.head_since then
            set_class(lane, 'old', floor((lane.head_since or shard.now) / 8388608))
        end
        set_class(lane, 'busy', is_gone and 0 or fairness.size_class(max(lane.before,
            lane.lately)))
        if lane.is_rare or lane.slow > 0 then
            set_class(lane, 'slow', is_gone and 0 or fairness.size_class(floor((lane.throttled
                + lane.held_until - lane.held_since) / 10000)))
        end
    end

    -- Perhaps the topic has no partition any longer.
    function lanes.topic_left(topic)
        if not left_topics[topic] then
            at_next_begin(reset)
            left_topics[#left_topics + 1], left_topics[topic] = topic, true
        end
    end

    -- At the end of a call: forget what the partitions of topics share with the last of them.
    function lanes.end_topics()
        for n = 1, #left_topics do
            local topic = left_topics[n]
            if #lanes.names_between(topic .. PARTITION, topic .. ' ', 1) == 0 then
                gates.end_topic(topic)
            end
        end
    end

    local function forget_all(gone)
        local names = {}
        for n, lane in ipairs(gone) do
            names[n] = lane.name
            classify(lane, true)
            if lane.is_rare and lane.watched_until > 0 then
                watched[#watched + 1] = lane.name
            end
            tallies.count(lane)
            if lanes.group(lane) then
                groups.add_lanes(lanes.group(lane), -1)
            end
            known[lane.name], lane.is_changed = false, false
            if lane.policy_name and not lane.is_bucket then
                lanes.topic_left(lane.policy_name)
            end
        end
        call_many('HDEL', keys.lanes, names, 1)
        call_many('ZREM', keys.names, names, 1)
        shard.lanes = shard.lanes - #names
    end

    -- Delete the lane with its counters.
    function lanes.forget(lane)
        lanes.before_move(lane)
        if lanes.group(lane) then
            groups.count(lanes.group(lane), lane.place == RUNNABLE, false)
        end
        leave_gates(lane)
        lane.place, lane.wake = FULL, 0 -- in no index
        move(lane)
        forget_all({ lane })
    end

    -- The names in members of an index.
    function lanes.names_in(members)
        local names = {}
        for n = 1, #members do
            names[n] = sub(members[n], 8)
        end
        return names
    end

    function lanes.forget_idle(most)
        local members = call('ZRANGE', keys.idle, '-inf', shard.now, 'BYSCORE', 'LIMIT', 0, most)
        forget_all(lanes.existing(lanes.names_in(members)))
        call_many('ZREM', keys.idle, members, 1)
    end

    -- Returns how many there are.
    function lanes.place_all(found)
        for n = 1, #found do
            lanes.place(found[n])
        end
        return #found
    end

    function lanes.wake(most)
        local due, half = call('ZRANGE', keys.asleep, '-inf', shard.now, 'BYSCORE', 'LIMIT', 0,
            most), floor(most / 2)
        if #due == most and half > 0 then -- the latest ones do not wait until a flood is handled
            for n, member in ipairs(call('ZRANGE', keys.asleep, shard.now, '-inf', 'BYSCORE', 'REV',
                'LIMIT', 0, half)) do
                due[most - half + n] = member
            end
        end
        return lanes.place_all(lanes.existing(lanes.names_in(due))) == most
    end

    -- The lanes' names between two names, in order.
    function lanes.names_between(after, before, most)
        return call('ZRANGE', keys.names, '(' .. after, '(' .. before, 'BYLEX', 'LIMIT', 0, most)
    end

    -- Returns the names of the watched lanes that have changed.
    function lanes.save()
        for n = 1, #changed do
            local lane = changed[n]
            if lane.is_changed then -- and not deleted since
                local at = #written
                lane.is_changed = false
                if lane.is_rare and lane.watched_until > 0 then -- see watch_lanes.lua
                    watched[#watched + 1] = lane.name
                    if shard.now > lane.watched_until then
                        lane.watched_until = 0
                    end
                end
                classify(lane)
                tallies.count(lane)
                written[at + 1], written[at + 2] = lane.name, encode(lane)
            end
        end
        call_many('HSET', keys.lanes, written, 2)
        clear(changed)
        clear(written)
        return watched
    end
end)
