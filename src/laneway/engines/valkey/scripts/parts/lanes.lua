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
--
-- uses: fairness, adaptive, rules, writes, groups, gates, turns, crc, tallies, key_limits

local IDLE, RUNNABLE, ASLEEP, AT_GATE, FULL, PAUSED = 0, 1, 2, 3, 4, 5
local LINGER, LINGER_BY_TIME = SECOND, 60 * SECOND -- how long an idle lane has a record
-- the assumed cost of a message before one is known
local DEFAULT_MEAN = SECOND
local RATE_WINDOW = 10 * SECOND
local PARTITION, BUCKET = '\31', '\30'

local key_limits -- defined in key_limits.lua, which uses `lanes`

local LANE_HEAD = '<I2I4I2I2Bi8i4i4i4i4i8i8I2c0'

lanes = part(function(lanes)
    local known, changed, watched
    local left_topics -- of which a partition was forgotten

    at_begin(function()
        known, changed, watched, left_topics = {}, {}, {}, {}
    end)

    -- A record has a fixed width as far as possible, and a lane is a table of the 32 fields that
    -- need no larger one: decoding costs more than everything that is then done with a lane. Fields
    -- that few lanes have are behind the record, and in no table before they are set. It begins
    -- with the size classes and the fields that an arriving plain message changes, see
    -- lane_heads.lua. `was` is what `tallies` has counted of the lane.
    local SERVED = 'I2i8i8i8i4i8i8i8i4i4' -- from the tier queue to `before`
    local RECORD = LANE_HEAD .. SERVED .. 'i4I2c0'
    lanes.RECORD, lanes.SERVED = RECORD, SERVED
    -- Where these begin, for parts that read a record without decoding it: the place, `published`,
    -- the size of `latest`, and the tier queue if `latest` is empty.
    local AT = { place = 11, published = 44, latest = 52, queue = 54 }
    -- From the tier queue on: how many bytes to the end of `done`, of SERVED, and of the record.
    local BYTES = { done = 46, served = 62, rest = 68 }
    lanes.AT, lanes.BYTES = AT, BYTES
    local NO_CLASSES = '\0\0\0\0\0\0\0\0\0\0' -- big, old, busy, slow
    local RARE = { 'retried', 'died', 'merged', 'expired', 'removed', 'throttled', 'back_off_until',
        'back_off_step', 'back_off_fence', 'mean', 'watched_until', 'need', 'owes' }
    -- MessagePack's mark of a list of so many, the flow and the keys
    local RARE_MARK = '\159'
    lanes.RARE_MARK = RARE_MARK
    local USUAL = { is_bucket = false, rule = false, is_rare = false, flow = false, arrived = false,
        keys = false }
    for n = 1, #RARE do
        USUAL[RARE[n]] = 0
    end
    local LANE = {
        __index = USUAL,
        __newindex = function(lane, field, value)
            if not lane.is_rare then
                rawset(lane, 'is_rare', true)
                tallies.begin_rare(lane, lane.was)
            end
            rawset(lane, field, value)
        end,
    }

    -- Partitions and buckets: the topic or pattern that the lane's policy is resolved for.
    local function identify(lane)
        local name = lane.name
        local cut = string.find(name, PARTITION, 1, true)
        if cut then
            lane.is_bucket = byte(name) == 30
            lane.rule = sub(name, lane.is_bucket and 2 or 1, cut - 1)
        end
    end

    -- False: a bucket, which has many topics.
    function lanes.topic(lane)
        return not lane.is_bucket and (lane.rule or lane.name)
    end

    -- Tables of lanes are used again in later calls, because creating them is slow. Those of lanes
    -- with rare fields are larger.
    local POOL = 512
    local pool, taken = {}, 0
    local rare_pool, rare_taken = {}, 0

    at_begin(function()
        taken, rare_taken = 0, 0
    end)

    local function usual_table()
        taken = taken + 1
        local lane = pool[taken]
        if not lane or lane.is_rare then
            lane = setmetatable({
                name = '', number = 0, tier_queue = 0, place = IDLE, wake = 0, vt = 0, gate = '',
                    tat = 0, ready = 0, delayed = 0, parked = 0, leased = 0,
                bytes = 0, published = 0, delivered = 0, done = 0, seen = 0, lately = 0, before = 0,
                    listed = 0, sorted = 0, latest = '', big = 0,
                old = 0, busy = 0, slow = 0, policy = false, is_changed = false,
                    index = false, score = 0, head_since = false, was = { 0, 0, 0, 0 },
            }, LANE)
            if taken <= POOL then
                pool[taken] = lane
            end
        end
        return lane
    end

    local function rare_table()
        rare_taken = rare_taken + 1
        local lane = rare_pool[rare_taken]
        if not lane then
            lane = usual_table()
            pool[taken], taken = nil, taken - 1
            if rare_taken <= POOL then
                rare_pool[rare_taken] = lane
            end
        end
        lane.is_bucket, lane.rule, lane.flow, lane.keys = false, false, false, false
        return lane
    end

    -- Set the fields that are not stored.
    local function begin_call(lane, name)
        lane.name, lane.policy, lane.is_changed, lane.index, lane.head_since = name, false, false,
            false, false
        identify(lane)
    end

    local function decode(name, stored)
        local big, old, busy, slow, place, number, ready, delayed, parked, listed, bytes, published,
            latest, tier_queue, wake, vt, tat, leased, delivered, done, seen, lately, before,
            sorted, gate, rest = unpack_from(RECORD, stored)
        if tier_queue >= IN_GROUP then
            tier_queue, rest = -unpack_from('>I7', stored, rest), rest + 7
        end
        local is_rare = rest <= #stored
        local lane = is_rare and rare_table() or usual_table()
        lane.big, lane.old, lane.busy, lane.slow, lane.place, lane.number, lane.ready, lane.delayed,
            lane.parked, lane.listed, lane.bytes, lane.published,
            lane.latest, lane.tier_queue, lane.wake, lane.vt, lane.tat, lane.leased, lane.delivered,
                lane.done, lane.seen, lane.lately, lane.before, lane.sorted,
            lane.gate = big, old, busy, slow, place, number, ready, delayed,
            parked, listed, bytes, published,
            latest, tier_queue, wake, vt, tat, leased, delivered,
                done, seen, lately, before, sorted,
            gate
        local was = lane.was
        was[1], was[2], was[3], was[4] = published, delivered, done, ready + delayed + parked
        begin_call(lane, name)
        if is_rare then
            -- the values of a list, without a table
            local flow, limited_keys
            lane.retried, lane.died, lane.merged, lane.expired, lane.removed, lane.throttled,
                lane.back_off_until, lane.back_off_step, lane.back_off_fence, lane.mean,
                lane.watched_until, lane.need, lane.owes, flow, limited_keys =
                    values_of(sub(stored, rest + 1))
            lane.flow = flow and adaptive.decode(flow) or false
            lane.keys = limited_keys or false
            tallies.begin_rare(lane, was)
        end
        return lane
    end

    -- A list of `RARE`, the flow and the keys as MessagePack; "": all are 0.
    local function rare_of(lane)
        local retried, died, merged, expired, removed, throttled, back_off_until, back_off_step,
            back_off_fence, mean, watched_until, need, owes = lane.retried, lane.died, lane.merged,
            lane.expired, lane.removed, lane.throttled, lane.back_off_until, lane.back_off_step,
            lane.back_off_fence, lane.mean, lane.watched_until, lane.need, lane.owes
        if retried + died + merged + expired + removed + throttled + back_off_until + back_off_step
            + back_off_fence + mean + watched_until + need + owes == 0
            and not lane.flow and not lane.keys then
            return ''
        end
        return RARE_MARK .. packed(retried, died, merged, expired, removed, throttled,
            back_off_until, back_off_step, back_off_fence, mean, watched_until, need, owes,
            lane.flow and adaptive.encode(lane.flow), lane.keys)
    end

    local function encode(lane)
        local gate = turns.record(lane)
        local stored = pack(RECORD, lane.big, lane.old, lane.busy, lane.slow, lane.place,
            lane.number, lane.ready, lane.delayed, lane.parked, lane.listed,
            lane.bytes, lane.published, #lane.latest, lane.latest, lane.tier_queue > 0
                and lane.tier_queue or IN_GROUP + tier_queues[lane.tier_queue].number, lane.wake,
                lane.vt, lane.tat, lane.leased, lane.delivered, lane.done, lane.seen,
            lane.lately, lane.before, lane.sorted, #gate, gate)
        if lane.tier_queue < 0 then
            stored = stored .. sortable(-lane.tier_queue)
        end
        return lane.is_rare and stored .. rare_of(lane) or stored
    end

    -- `stored`: its record, if it was read already; false: there is none.
    function lanes.find(name, stored)
        local lane = known[name]
        if lane == nil then
            if stored == nil then
                stored = call('HGET', keys.lanes, name)
            end
            lane = stored and decode(name, stored)
            known[name] = lane
        end
        return lane
    end

    function lanes.is_known(name)
        return known[name] ~= nil
    end

    -- Use a record that was read already; false: there is none.
    function lanes.learn(name, stored)
        known[name] = stored and decode(name, stored)
        return known[name]
    end

    -- Read at once what the lanes of these names need, which are read.
    function lanes.load_rules(names)
        rules.load(names)
        if shard.groups > 0 then
            local numbers = {}
            for n = 1, #names do
                local lane = known[names[n]]
                if lane and lane.tier_queue < 0 then
                    numbers[#numbers + 1] = -lane.tier_queue
                end
            end
            groups.load(numbers)
        end
    end

    -- The records of these lanes, in order; false: there is none.
    function lanes.read(names)
        rules.load(names)
        return read_many(keys.lanes, names)
    end

    -- Read several at once.
    function lanes.load(names)
        local wanted = {}
        for n = 1, #names do
            local name = names[n]
            if known[name] == nil then
                wanted[#wanted + 1] = name
                known[name] = false
            end
        end
        local found = read_many(keys.lanes, wanted)
        for n = 1, #found do
            known[wanted[n]] = found[n] and decode(wanted[n], found[n])
        end
        lanes.load_rules(wanted)
    end

    function lanes.rule(lane)
        local policy = lane.policy
        if not policy then
            policy = rules.of_lane(lane.rule or lane.name)
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
            found = (found and found .. '\31' or '') .. TOPIC_GATE .. (lane.rule or lane.name)
        end
        if group and group.is_limited then
            found = (found and found .. '\31' or '') .. GROUP .. group.name
        end
        return found
    end

    -- The gate that the partitions of the lane's topic share; copies are where their messages are.
    -- `was_empty`: the number of partitions may be another one.
    local function shared_gate(lane, policy, was_empty)
        local topic = lane.rule or lane.name
        local gate = gates.of_topic(topic, policy.shared)
        if not gate or (was_empty and shard.shards > 1) then
            local base = string.match(topic, '^[^#]*')
            local partitions, shards = rules.of(base).partitions, shard.shards
            local first = (shard.index - crc32(base)) % shards
            gate = gates.share(topic, policy.shared, max(0, math.ceil((partitions - first)
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

    -- Policies have changed in this call.
    function lanes.rules_changed()
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
        local name = policy.group and groups.name_for(policy.group, lane.rule or lane.name)
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
            shard.lanes = shard.lanes + 1
            lane = usual_table()
            lane.place, lane.wake, lane.tat, lane.ready, lane.delayed, lane.parked,
                lane.leased, lane.bytes, lane.published,
                lane.delivered, lane.done, lane.seen, lane.lately, lane.before, lane.listed,
                    lane.sorted, lane.big, lane.old, lane.busy, lane.slow,
                lane.gate, lane.latest = IDLE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                    shard.now, 0, 0, 0, 0, 0, 0, 0, 0, '', ''
            local was = lane.was
            was[1], was[2], was[3], was[4] = 0, 0, 0, 0
            begin_call(lane, name)
            local policy = lanes.rule(lane)
            enter(lane, policy)
            shard.lanes_created = shard.lanes_created + 1
            lane.number = shard.lanes_created
            known[name] = lane
            writes.set_member(keys.names, name, 0)
            lanes.touch(lane)
        end
        return lane
    end

    local NAMES = 4096
    -- keys of lanes' sorted sets by kind and number, because joining a number to a string is slow
    local names, count, prefix = {}, 0, nil

    -- The key z:N, a:N or o:N.
    function lanes.key_of(kind, lane)
        local name = prefix == PREFIX and names[kind][lane.number]
        if not name then
            if prefix ~= PREFIX or count >= NAMES then
                names, count, prefix = { z = {}, a = {}, o = {} }, 0, PREFIX
            end
            name = key(kind .. ':' .. text(lane.number))
            names[kind][lane.number], count = name, count + 1
        end
        return name
    end

    -- Whether its rate or a back-off delivers nothing until a later time.
    function lanes.sleeps(lane)
        return lane.place == ASLEEP and lane.wake > shard.now
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

    -- How many messages wait in each of these lanes, and of how many bytes; false: it was read
    -- already, and may have changed. Nothing else of the others is decoded.
    function lanes.counts_of(names)
        local found, bytes_in = read_many(keys.lanes, names), {}
        for n = 1, #names do
            if known[names[n]] ~= nil then
                found[n] = false
            elseif found[n] then
                local _, _, _, _, _, _, ready, delayed, parked, _, bytes = unpack_from(LANE_HEAD,
                    found[n])
                found[n], bytes_in[n] = ready + delayed + parked, bytes
            else
                found[n], bytes_in[n] = 0, 0
            end
        end
        return found, bytes_in
    end

    -- The lanes of a topic that is in no bucket.
    function lanes.of_topic(topic, policy)
        local found = {}
        if policy.partitions == 1 then
            found[1] = lanes.find(topic) or nil
            return found
        end
        for n = 0, policy.partitions - 1 do
            found[#found + 1] = lanes.find(topic .. PARTITION .. text(n)) or nil
        end
        return found
    end

    -- Placing

    local NOWHERE = ''
    -- Of lanes that were at gates: the tier queue's number, where they waited, all of the gates.
    local left

    at_begin(function()
        left = {}
    end)

    local function index_of(lane)
        local place, number = lane.place, lane.tier_queue
        if place == RUNNABLE then
            return number > 0 and tier_queues[number].runnable or groups.runnable_key(-number),
                lane.vt
        elseif place == AT_GATE then
            local found = turns.of(lane)
            return gates.lanes_key(found.waits, turns.queue_at(lane, found.waits)),
                found.turns[found.waits]
        elseif place == ASLEEP then
            return keys.asleep, lane.wake
        elseif place == IDLE and lane.wake > 0 then
            return keys.idle, lane.wake
        end
        return NOWHERE, 0
    end

    local STAYS = '\0' -- as an index: it waits at a gate, and its turn there does not change

    -- Call before a change of place, wake, tier queue or virtual time: remembers the index.
    function lanes.before_move(lane)
        if not lane.index and lane.place == AT_GATE then
            lane.index, lane.score = STAYS, lane.vt
        elseif not lane.index then
            lane.index, lane.score = index_of(lane)
        end
    end

    -- Call before the gate where it waits changes, or its turn there.
    function lanes.before_turn(lane)
        lanes.before_move(lane)
        if lane.index == STAYS then
            local found = turns.of(lane)
            lane.index, lane.score = index_of(lane)
            left[lane] = { tier_queues[lane.tier_queue].number, found.waits, found.key }
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
        local before, now = left[lane], lane.place == AT_GATE and turns.of(lane)
        left[lane] = nil
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
            local member = pack('>I7c0', lane.number, lane.name)
            if before ~= NOWHERE and before ~= index then
                writes.set_member(before, member, false)
            end
            if index ~= NOWHERE then
                writes.set_member(index, member, score)
            end
        end
        if left[lane] or lane.place == AT_GATE then
            move_at_gates(lane)
        end
        lane.index = false
    end

    local function forgotten_at(lane, policy, tier_queue)
        local shared = policy.shared and shared_gate(lane, policy)
        local at = lane.place == IDLE and lane.wake > 0 and lane.wake
            or shard.now + ((lane.is_rare and lane.flow or shared and shared.flow) and FLOW_KEPT
                or tier_queue.by_time and LINGER_BY_TIME or LINGER)
        if policy.rate then
            at = max(at, math.ceil(lane.tat / TICKS))
        end
        if shared then
            at = max(at, math.ceil(shared.tat / TICKS))
        end
        if not lane.is_rare then
            return at
        elseif lane.back_off_step > 0 then
            at = max(at, lane.back_off_until)
        end
        return lane.keys and max(at, lane.keys[1]) or at
    end

    -- How many leases it may have; false: no limit. One while the topic probes its destination.
    local function concurrency_of(lane, policy)
        if lane.back_off_step > 0 then
            return 1
        end
        return policy.adapts and adaptive.limit(lane.flow, policy) or policy.concurrency
    end

    -- The rule "Placing" of docs/specification.md. Returns place and wake (0: none).
    local function where(lane, policy, tier_queue)
        local now, is_rare = shard.now, lane.is_rare
        if policy.shared then
            shared_gate(lane, policy, lane.place == IDLE and lane.leased == 0)
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
            if is_rare and lane.need > 0 then
                lane.need = (lane.leased > 0 or lane.delayed > 0 or lane.parked > 0) and 1 or 0
            end
            if lane.leased > 0 or lane.delayed > 0 or lane.parked > 0 then
                return IDLE, 0
            end
            return IDLE, forgotten_at(lane, policy, tier_queue)
        end
        if is_rare and lane.back_off_step > 0 and lane.back_off_until > now then
            return ASLEEP, lane.back_off_until
        end
        local concurrency = (policy.limited or is_rare) and concurrency_of(lane, policy)
        if concurrency and lane.leased >= concurrency then
            return FULL, 0
        end
        if is_used then
            local permit = fairness.next_permit(lane.tat, now, policy.step, policy.depth,
                max(lane.need, 1))
            if permit > now then
                if lane.place ~= ASLEEP or lane.wake ~= permit then
                    lane.throttled = lane.throttled + fairness.held_back(now, lane.place == ASLEEP
                        and lane.wake or 0, permit)
                end
                return ASLEEP, permit
            end
        end
        local gate = policy.gate
        if lane.tier_queue < 0 or policy.shared then
            gate = lanes.gate_of(lane, policy)
        end
        return gate and AT_GATE or RUNNABLE, 0
    end

    local function can_deliver_at(place)
        return place == RUNNABLE or place == AT_GATE
    end

    local function is_elsewhere(lane, policy)
        local tier_queue, is_in_group = tier_queues[lane.tier_queue], lane.tier_queue < 0
        local group = is_in_group and groups.find(-lane.tier_queue)
        if is_in_group and not group then
            return true
        end
        if tier_queue.pool ~= policy.pool or tier_queue.tier ~= tier_of(policy) then
            return true
        elseif not group and not policy.group then
            return false
        end
        return groups.name_for(policy.group, lane.rule or lane.name) ~= (group and group.name
            or false)
    end

    local function leave_group(lane)
        local group = lanes.group(lane)
        if group then
            groups.count(group, lane.place == RUNNABLE, lane.place == AT_GATE, -1)
            groups.add_lanes(group, -1)
        end
    end

    -- A lane of a group gets another place. A group that wakes earns no credit either.
    local function place_in_group(lane, place, tier_queue)
        local group = groups.find(-lane.tier_queue)
        if can_deliver_at(place) and not can_deliver_at(lane.place) then
            if groups.competing(group) == 0 then
                group.vt = max(group.vt, tier_queue.vt)
            end
            lane.vt = max(lane.vt, group.inner_vt)
        end
        groups.count(group, lane.place == RUNNABLE, lane.place == AT_GATE, -1)
        groups.count(group, place == RUNNABLE, place == AT_GATE, 1)
    end

    local PLACE_AT, LATEST_AT = AT.place, AT.latest
    local COUNTS_BYTES, REST_BYTES = BYTES.done, BYTES.rest
    local stem, queue, cell = '', 0, nil -- of the lane before

    at_begin(function()
        cell = nil
    end)

    -- What is behind the record of a lane of which nothing is rare but counts: its mark, how many
    -- were retried, died, merged, expired and were removed, in a byte each, and this.
    local NOTHING_ELSE = '\0\0\0\0\0\0\0\0\194\194'
    local RARE_BYTES = 6 + #NOTHING_ELSE

    -- Whether a record has nothing rare, or only counts. `size`: that of one without.
    function lanes.is_usual(stored, size)
        return #stored == size or (#stored == size + RARE_BYTES and sub(stored, -#NOTHING_ELSE)
            == NOTHING_ELSE and sub(stored, size + 1, size + 1) == RARE_MARK)
    end

    -- The record of a lane after so many plain acks, without decoding all of it, which costs more
    -- than all that they change. Nil, and nothing is changed, if more than counts may change than
    -- that the lane is idle from now on; as `lanes.place`, `lanes.save` and `lanes.forgotten_at`.
    -- `name`: of no partition. `frees_keys`: the acks free serial keys, for which messages may be
    -- parked. `ends_more`: what the acks end besides, by gates and `dedupe`, the caller ends.
    function lanes.after_acks(name, stored, count, policy, frees_keys, ends_more)
        local place, number, ready, delayed, parked = unpack_from('<Bi8i4i4i4', stored, PLACE_AT)
        local at = LATEST_AT + 2 + unpack_from('<I2', stored, LATEST_AT)
        local its_queue, wake, vt, tat, leased, delivered, done, _, lately = unpack_from(
            '<I2i8i8i8i4i8i8i8i4', stored, at)
        local tier_queue, gate_bytes = tier_queues[its_queue], unpack_from('<I2', stored, at
            + REST_BYTES - 2)
        if (place ~= IDLE and place ~= RUNNABLE) or (place == IDLE and (wake > 0 or ready > 0))
            or not lanes.is_usual(stored, at + REST_BYTES - 1 + gate_bytes)
            or sub(stored, 1, #NO_CLASSES) ~= NO_CLASSES
            or ready >= 32 or delayed >= 32 or lately >= 32 or its_queue >= IN_GROUP
            or (frees_keys and parked > 0) or policy.shared or policy.paused or policy.group
            or (not ends_more and (policy.dedupe or policy.gate))
            or tier_queue.pool ~= policy.pool or tier_queue.tier ~= tier_of(policy) then
            return nil
        end
        leased, done = leased - count, done + count
        if place == IDLE then
            if policy.rate and not fairness.recovered(tat, shard.now) then
                tat = fairness.rebase(tat, shard.now, policy.step, policy.depth, 0)
            end
            if leased == 0 and delayed == 0 and parked == 0 then
                wake = shard.now + (tier_queue.by_time and LINGER_BY_TIME or LINGER)
                if policy.rate then
                    wake = max(wake, math.ceil(tat / TICKS))
                end
                writes.set_member(keys.idle, pack('>I7c0', number, name), wake)
            end
        end
        if not cell or its_queue ~= queue or stem ~= stem_of(name) then
            stem, queue = stem_of(name), its_queue
            cell = tallies.cell(stem, queue)
        end
        cell.done = cell.done + count
        return sub(stored, 1, at + 1) .. pack('<i8i8i8i4i8i8', wake, vt, tat, leased, delivered,
            done) .. sub(stored, at + COUNTS_BYTES)
    end

    local function leave_gates(lane)
        if lane.place == AT_GATE then
            lanes.before_turn(lane)
            turns.leave_all(lane)
        end
    end

    -- Move the lane to the place where it belongs now.
    function lanes.place(lane)
        local policy = lane.policy or lanes.rule(lane)
        lanes.before_move(lane)
        -- in another tier queue or group it begins like a lane that wakes
        if is_elsewhere(lane, policy) then
            leave_gates(lane)
            leave_group(lane)
            enter(lane, policy)
            lane.place, lane.wake, lane.gate = IDLE, 0, ''
        end
        local limits = lane.parked > 0 and lane.keys and lane.keys[2] or ''
        if limits ~= '' and limits ~= policy.key_limits then
            key_limits.limits_changed(lane, policy)
        end
        local tier_queue = tier_queues[lane.tier_queue]
        local place, wake = where(lane, policy, tier_queue)
        if lane.tier_queue < 0 and place ~= lane.place then
            place_in_group(lane, place, tier_queue)
        end
        local gate = place == AT_GATE and lanes.gate_of(lane, policy) or ''
        if can_deliver_at(place) and lane.place ~= place then
            if not can_deliver_at(lane.place) and lane.tier_queue > 0 then
                lane.vt = max(lane.vt, tier_queue.vt) -- sleeping earns no credit
            end
            if gate == '' or gates.room(gate, lane) > 0 then
                pools_to_notify[tier_queue.pool] = true
            end
        end
        if place ~= AT_GATE then
            leave_gates(lane)
        elseif lane.place ~= AT_GATE or not turns.is_at(lane, gate) then
            lanes.before_turn(lane)
            turns.arrive(lane, gate)
        end
        lane.place, lane.wake = place, wake
        move(lane)
        lanes.touch(lane)
    end

    function lanes.can_deliver(lane)
        return lane.place == RUNNABLE or (lane.place == AT_GATE and gates.room(turns.of(lane).key,
            lane) > 0)
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

    -- `lately`, `before` and `seen` of a lane, after so many deliveries.
    function lanes.lately(taken, lately, before, seen, now)
        local elapsed = now - seen
        if elapsed >= RATE_WINDOW then
            return taken, elapsed < 2 * RATE_WINDOW and lately or 0, now
        end
        return lately + taken, before, seen
    end

    function lanes.count_deliveries(lane, taken)
        lane.lately, lane.before, lane.seen = lanes.lately(taken, lane.lately, lane.before,
            lane.seen, shard.now)
        lane.delivered = lane.delivered + taken
        shard.delivered = shard.delivered + taken
    end

    local function remove_all(names)
        call_many('HDEL', keys.lanes, names, 1)
        call_many('ZREM', keys.names, names, 1)
        shard.lanes = shard.lanes - #names
        for _, name in ipairs(names) do
            local cut = string.find(name, PARTITION, 1, true)
            if cut and byte(name) ~= 30 then
                left_topics[sub(name, 1, cut - 1)] = true
            end
        end
    end

    -- Perhaps the topic has no partition any longer.
    function lanes.topic_left(topic)
        left_topics[topic] = true
    end

    -- At the end of a call: forget what the partitions of topics share with the last of them.
    function lanes.end_topics()
        for topic in pairs(left_topics) do
            if #lanes.names_between(topic .. PARTITION, topic .. ' ', 1) == 0 then
                gates.end_topic(topic)
            end
        end
        left_topics = {}
    end

    local function forget_all(gone)
        local names = {}
        for n, lane in ipairs(gone) do
            names[n] = lane.name
            if lane.big + lane.old + lane.busy + lane.slow > 0 then
                lanes.classify(lane, true)
            end
            if lane.is_rare and lane.watched_until > 0 then
                watched[#watched + 1] = lane.name
            end
            tallies.count(lane)
            if lanes.group(lane) then
                groups.add_lanes(lanes.group(lane), -1)
            end
            known[lane.name], lane.is_changed = false, false
        end
        remove_all(names)
    end

    -- Delete the lane with its counters.
    function lanes.forget(lane)
        lanes.before_move(lane)
        if lanes.group(lane) then
            groups.count(lanes.group(lane), lane.place == RUNNABLE, lane.place == AT_GATE, -1)
        end
        leave_gates(lane)
        lane.place, lane.wake = FULL, 0 -- in no index
        move(lane)
        forget_all({ lane })
    end

    local function load_members(members)
        local names, found = {}, {}
        for n, member in ipairs(members) do
            names[n] = sub(member, 8)
        end
        lanes.load(names)
        for n, name in ipairs(names) do
            found[n] = lanes.find(name)
        end
        return found
    end

    -- The number of a lane's group, without decoding its record; nil: it has none. Lanes without
    -- messages have it at the same place.
    local function group_in(stored)
        return unpack_from('<I2', stored, AT.queue) >= IN_GROUP and unpack_from('>I7', stored,
            AT.queue + BYTES.rest + unpack_from('<I2', stored, AT.queue + BYTES.rest - 2)) or nil
    end

    local function leave_groups(left_groups)
        local numbers = {}
        for number in pairs(left_groups) do
            numbers[#numbers + 1] = number
        end
        groups.load(numbers)
        for number, count in pairs(left_groups) do
            local group = groups.find(number)
            if group then
                groups.add_lanes(group, -count)
            end
        end
    end

    -- Lanes in no top list, which most are, are deleted without being decoded.
    function lanes.forget_idle(most)
        local members = call('ZRANGE', keys.idle, '-inf', shard.now, 'BYSCORE', 'LIMIT', 0, most)
        if #members == 0 then
            return
        end
        local names, quiet, others, left_groups = {}, {}, {}, {}
        for n, member in ipairs(members) do
            names[n] = sub(member, 8)
        end
        for n, stored in ipairs(read_many(keys.lanes, names)) do
            if not known[names[n]] and stored and sub(stored, 1, #NO_CLASSES) == NO_CLASSES then
                quiet[#quiet + 1], known[names[n]] = names[n], false
                local group = shard.groups > 0 and group_in(stored)
                if group then
                    left_groups[group] = (left_groups[group] or 0) + 1
                end
            else
                if known[names[n]] == nil then
                    lanes.learn(names[n], stored)
                end
                others[#others + 1] = known[names[n]] or nil
            end
        end
        remove_all(quiet)
        leave_groups(left_groups)
        forget_all(others)
        call_many('ZREM', keys.idle, members, 1)
    end

    function lanes.wake(most)
        local due = load_members(call('ZRANGE', keys.asleep, '-inf', shard.now, 'BYSCORE', 'LIMIT',
            0, most))
        for _, lane in ipairs(due) do
            lanes.place(lane)
        end
        return #due == most
    end

    function lanes.next_wake()
        local asleep, idle = call('ZRANGE', keys.asleep, 0, 0, 'WITHSCORES')[2], call('ZRANGE',
            keys.idle, 0, 0, 'WITHSCORES')[2]
        return tonumber(asleep), tonumber(idle)
    end

    -- The lanes' names between two names, in order.
    function lanes.names_between(after, before, most)
        return call('ZRANGE', keys.names, '(' .. after, '(' .. before, 'BYLEX', 'LIMIT', 0, most)
    end

    -- Top lists are sorted by size classes, which change rarely; few lanes are large enough for
    -- one.

    local function set_class(lane, name, class)
        if lane[name] ~= class then
            lane[name] = class
            writes.set_member(keys['top:' .. name], lane.name, class > 0 and class)
        end
    end

    function lanes.classify(lane, is_gone)
        set_class(lane, 'big', is_gone and 0 or fairness.size_class(lanes.waiting(lane)))
        if is_gone or lane.ready < 32 then
            set_class(lane, 'old', 0)
        elseif lane.old == 0 or lane.head_since then
            set_class(lane, 'old', floor((lane.head_since or shard.now) / 8388608))
        end
        set_class(lane, 'busy', is_gone and 0 or fairness.size_class(max(lane.before,
            lane.lately)))
        if lane.is_rare or lane.slow > 0 then
            set_class(lane, 'slow', is_gone and 0
                or fairness.size_class(floor(lane.throttled / 10000)))
        end
    end

    -- Notify watchers of a change of the lane, see watch.lua.
    local function watch(lane)
        watched[#watched + 1] = lane.name
        if shard.now > lane.watched_until then
            lane.watched_until = 0
        end
    end

    function lanes.take_watched()
        local taken = watched
        watched = {}
        return taken
    end

    function lanes.save()
        local written = {}
        for n = 1, #changed do
            local lane = changed[n]
            if lane.is_changed then -- and not deleted since
                local is_rare, at = lane.is_rare, #written
                lane.is_changed = false
                if is_rare and lane.watched_until > 0 then
                    watch(lane)
                end
                if lane.ready >= 32 or lane.big > 0 or lane.old > 0 or lane.busy > 0
                    or lane.lately >= 32 or lane.delayed >= 32 or lane.slow > 0
                    or (is_rare and lane.throttled > 0) then
                    lanes.classify(lane)
                end
                tallies.count(lane)
                written[at + 1], written[at + 2] = lane.name, encode(lane)
            end
        end
        call_many('HSET', keys.lanes, written, 2)
        changed = {}
    end
end)
