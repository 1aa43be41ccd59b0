-- Delivering messages. First the visits are decided: how many messages each lane delivers. This
-- reads each lane once, and no messages. Then the messages of all visits are fetched and leased.
-- Lanes that cannot deliver are never read.
--
-- uses: fairness, adaptive, rules, writes, groups, gates, tallies, lanes, plain, emptied,
--   messages, key_limits, ids, settling

local serving = part(function(serving)
    -- messages that the worker cannot start yet are delivered in steps, so that tiers end near
    -- their shares
    local STEP = 16
    local PAGE = 16        -- lanes of a gate or group, or gates, read at once
    local PAGE_LEAST, PAGE_MOST = 8, 64
    -- a gate's entry precedes all lanes of the same virtual time, because its first lane is one of
    -- them
    local HEADS_FIRST = -1
    -- but of many gates with equal ones only so many are opened before one is needed
    local MOST_AHEAD = 64
    -- lanes of a group that a visit passes over because they can deliver nothing: after a group got
    -- a limit, its lanes come to its gate as they are visited
    local MOST_REFUSING = 100
    -- such lanes in all, if they are runnable: after that the next call goes on
    local MOST_REFUSED = 500
    -- lanes that are visited at a gate that this call has shut
    local MOST_SHUT = 16
    local MOST_READ = 250 -- messages that are read at once behind those that keys hold back
    -- lanes without anything for the caller that it passes over in each index, also where others
    -- have used up what a call may pass over: runnable ones, those at a gate
    local ALWAYS_PASSED, ALWAYS_PASSED_AT_GATE = 100, 16
    local WITHOUT, OF_TIER = '\31', '\30' -- as `lease.lua` gets them
    local SEEN = -1 -- the position of an index of which all lanes were seen, in the last calls

    -- A heap of {vt, number, lane, group or source}

    local function before(one, other)
        if one[1] ~= other[1] then
            return one[1] < other[1]
        end
        return one[2] < other[2]
    end

    local function push(heap, entry)
        local n = #heap + 1
        while n > 1 do
            local parent = floor(n / 2)
            if not before(entry, heap[parent]) then
                break
            end
            heap[n], n = heap[parent], parent
        end
        heap[n] = entry
    end

    local function pop(heap)
        local first, last, size = heap[1], heap[#heap], #heap - 1
        heap[size + 1] = nil
        if size == 0 then
            return first
        end
        local n = 1
        while true do
            local child = 2 * n
            if child > size then
                break
            end
            if child < size and before(heap[child + 1], heap[child]) then
                child = child + 1
            end
            if not before(heap[child], last) then
                break
            end
            heap[n], n = heap[child], child
        end
        heap[n] = last
        return first
    end

    local calls -- what this call may still deliver, and what it has done
    local first_lanes = 1 -- how many lanes a visit of a group needs: as in the last page of groups

    -- How many messages the line that is served still needs: the rest is for other tiers.
    local function needed()
        return calls.left - calls.for_others
    end

    -- A source: a sorted set that is read page by page, in the order of scores. Those of lanes are
    -- in their records too, which is faster than reading scores.

    local function names_of(members)
        local names = {}
        for n = 1, #members do
            names[n] = sub(members[n], 8)
        end
        return names
    end

    -- Read the groups among the members of an index, and the lanes that a visit of each needs at
    -- least. They replace their members; the names of lanes replace the others.
    local function read_groups(members, gate)
        local numbers, number_at, firsts, more = {}, {}, {}, {}
        local wanted = gate and 0 or calls.may_pass and 0
            or math.ceil(needed() / calls.chunk)
        local most = min(first_lanes, calls.chunk)
        for n = 1, #members do
            if byte(members[n], 8) == 29 then
                local number = unpack_from('>I7', members[n])
                number_at[n], numbers[#numbers + 1] = number, number
            end
        end
        groups.load(numbers)
        for n = 1, #members do
            local group = number_at[n] and groups.find(number_at[n])
            if group then
                group.member, members[n] = members[n], group
                if #more < wanted and not group.first then
                    local found = names_of(call('ZRANGE', groups.runnable_key(group.number), 0,
                        most - 1))
                    found.most = most
                    group.first, firsts[#firsts + 1] = found, found[1]
                    more[#more + 1] = found
                end
            else -- '': the store lost the group
                members[n] = number_at[n] and '' or sub(members[n], 8)
                firsts[#firsts + 1] = members[n]
            end
        end
        lanes.load(firsts)
        local others, is_one_enough = {}, true
        for n = 1, #more do
            local found = more[n]
            local lane = found[1] and lanes.find(found[1])
            if lane and lane.ready < calls.chunk then
                is_one_enough = false
                for place = 2, #found do
                    others[#others + 1] = found[place]
                end
            end
        end
        lanes.load(others)
        if #more > 0 then
            first_lanes = is_one_enough and 1 or CHUNK
        end
    end

    -- How many members the next page should have: as many as are needed, if they deliver as much
    -- as those before them; twice as many, if these delivered nothing.
    local function next_page(source)
        local wanted, taken = 2 * source.page, source.left - calls.left
        if source.is_runnable and taken > 0 then
            wanted = max(math.ceil(needed() * source.read / taken), min(wanted, PAGE_LEAST))
        end
        return min(wanted, PAGE_MOST)
    end

    local function read_page(source)
        if source.read > 0 then
            source.page = next_page(source)
        end
        local last, found = source.offset + source.page - 1, nil
        if source.of_lanes then
            found = call('ZRANGE', source.name, source.offset, last)
            if shard.groups > 0 then
                read_groups(found, source.gate)
            else
                source.members, found = found, names_of(found)
                source.records, source.is_tried = lanes.read(found), false
            end
        else
            found = call('ZRANGE', source.name, source.offset, last, 'WITHSCORES')
        end
        local count = source.of_lanes and #found or #found / 2
        source.at, source.found, source.offset, source.read, source.is_last = 1, found,
            source.offset + count, source.read + count, count < source.page
    end

    -- How many of the lane's ready messages have at most the rank that the call delivers, less the
    -- `planned` ones that it delivers already.
    local function count_ready(lane, planned)
        local plain_ones = calls.last_rank >= 1 and lane.ready + planned - lane.sorted or 0
        local others = lane.sorted > 0 and call('ZLEXCOUNT', lanes.key_of('z', lane), '-', '('
            .. messages.rank_code(calls.last_rank + 1)) or 0
        return plain_ones + others - planned
    end

    -- Whether a topic or pattern is taken, by the most specific pattern that matches it, each with
    -- `tail` behind it; nil: none matches.
    local function is_taken(topic, tail)
        local only, pattern = calls.only, topic .. tail
        local stem = topic == '*' and '' or match(topic, '^(.*%.)[^.]*$') or ''
        while only[pattern] == nil and stem do
            pattern = stem .. '*' .. tail
            stem = stem ~= '' and (match(stem, '^(.*%.)[^.]*%.$') or '') or nil
        end
        return only[pattern]
    end

    -- Whether the lane's topic is taken; of a bucket, its pattern, and it is if no pattern matches.
    -- Of a subscription's topic (a#s) only patterns with its name match, like "*#s", or with any:
    -- "*#*".
    local function covers(lane)
        if not calls.only then
            return true
        end
        local topic = lanes.topic(lane)
        if not topic then
            return is_taken(lane.rule, '') ~= false
        end
        local cut = string.find(topic, '#', 1, true)
        if not cut then
            return is_taken(topic, '') or false
        end
        local base = sub(topic, 1, cut - 1)
        local taken = is_taken(base, sub(topic, cut))
        if taken == nil then
            taken = is_taken(base, '#*')
        end
        return taken or false
    end

    -- Whether the lane has something for the caller.
    local function takes(lane, source)
        if covers(lane) and (not calls.last_rank or count_ready(lane, 0) > 0) then
            return true
        end
        calls.passed_over, calls.may_pass, source.always = true, calls.may_pass - 1, source.always
            - 1
        return false
    end

    -- The next call with the same filter reads an index from this position.
    local function stop_at(id, position)
        calls.stopped[id] = min(calls.stopped[id] or position, position)
    end

    -- Read no more of a source. The next call goes on at this position of its index.
    local function stop(source, position)
        if not source.is_seen then
            stop_at(source.id, position)
            if source.group then
                stop_at(source.group.listed_in, source.group.position)
            end
        end
        source.at, source.found, source.is_last, source.is_stopped = 1, {}, true, true
    end

    -- Whether a source may pass over no more lanes.
    local function is_used_up(source)
        return (calls.may_pass <= 0 or source.is_seen) and source.always <= 0
    end

    -- A source of lanes in a call with a filter: `begins` has where it begins, by its index. If all
    -- of that was seen it begins at the first lane, and may pass over only a few.
    local function prepare(source, always)
        source.id, source.always = sub(source.name, #PREFIX + 1), always
        local position = calls.begins[source.id] or 0
        source.is_seen = position == SEEN or (source.group
            and calls.begins[source.group.listed_in] == SEEN)
        source.offset, calls.is_read[source.id] = max(position, 0), true
    end

    -- Where the next call with the same filter begins: nowhere, if this one has seen the rest of
    -- all indexes. If it was full, it begins those at the first of which it has seen all.
    local function next_begins()
        if next(calls.stopped) == nil then
            return {}
        end
        local found = {}
        for id, position in pairs(calls.begins) do
            if not calls.is_read[id] or (position == SEEN and calls.left > 0) then
                found[id] = position
            end
        end
        for id in pairs(calls.seen) do
            found[id] = calls.left > 0 and SEEN or nil
        end
        for id, position in pairs(calls.stopped) do
            found[id] = position
        end
        return found
    end

    -- Push the next member of a source to the heap, if there is one.
    local function advance(heap, source)
        if source.at > #source.found then
            if not source.is_last then
                read_page(source)
            end
            if #source.found == 0 or source.at > #source.found then
                if source.id and not source.is_stopped and not source.group then
                    calls.seen[source.id] = true
                end
                return
            end
        end
        local found, at = source.found, source.at
        local position = source.offset - #found + at - 1
        if source.of_lanes and shard.groups > 0 and type(found[at]) == 'table' then
            local group = found[at]
            source.at = at + 1
            if group.position then -- in another index, too
                return advance(heap, source)
            end
            group.position, group.listed_in = position, source.id
            if calls.may_pass then
                source.always = source.always - (source.is_seen and 1 or 0)
                if is_used_up(source) then
                    return stop(source, position)
                end
            end
            calls.ahead = calls.ahead + (source.gate and 1 or 0)
            push(heap, { group.vt, group.number, group, source })
        elseif source.of_lanes then
            local lane = lanes.find(found[at], source.records and source.records[at])
            source.at = at + 1
            if not lane then -- the store lost it; the doctor reports it
                return advance(heap, source)
            elseif calls.may_pass and not takes(lane, source) then
                if is_used_up(source) then
                    return stop(source, position + 1)
                end
                return advance(heap, source)
            end
            calls.ahead = calls.ahead + (source.gate and 1 or 0)
            push(heap, { lane.vt, lane.number, lane, source })
        else
            source.at = at + 2
            push(heap, { tonumber(found[at + 1]), calls.ahead < MOST_AHEAD and HEADS_FIRST
                or math.huge, found[at], source })
        end
    end

    -- `gate`: that of the lanes; false: none. `page`: how many lanes are needed at least, of the
    -- runnable ones; nil: it is another index. Returns the source. The runnable ones are not read
    -- yet: who serves the line may empty the first of them without decoding their records.
    local function begin(heap, name, of_lanes, gate, page)
        local source = { name = name, of_lanes = of_lanes, gate = gate, shut = 0, offset = 0,
            page = page or PAGE, is_runnable = page and true, left = calls.left, read = 0, at = 1,
            found = {} }
        if calls.may_pass and of_lanes then
            prepare(source, page and ALWAYS_PASSED or ALWAYS_PASSED_AT_GATE)
        end
        if not page then
            advance(heap, source)
        end
        return source
    end

    -- Begin to read lanes of a group. `gate`: as `begin`; `first`: the first runnable ones, if they
    -- were read with the group; `at`: which of them is the next.
    local function begin_in_group(heap, name, group, gate, first, at)
        local source = { name = name, of_lanes = true, group = group, gate = gate, shut = 0,
            offset = 0, page = PAGE, left = calls.left, read = 0, at = 1, found = {} }
        if calls.may_pass then
            prepare(source, 0)
        end
        if first then
            source.found, source.offset, source.at, source.is_last, source.page = first, #first, at,
                #first < first.most, calls.chunk
        end
        advance(heap, source)
    end

    -- How many lanes can deliver: exactly, if they are fewer than `most`. Gates that this call has
    -- shut are still among the heads. `open`: to it the gates that count are added.
    local function count(tier_queue, most, open)
        local found, offset = call('ZCARD', tier_queue.runnable), 0
        while found < most do
            local names = call('ZRANGE', tier_queue.heads, offset, offset + PAGE - 1)
            for _, name in ipairs(names) do
                if gates.is_open(name) then
                    found = found + call('ZCARD', gates.lanes_key(name, tier_queue.number))
                    open[name] = true
                end
            end
            offset = offset + PAGE
            if #names < PAGE then
                break
            end
        end
        return found
    end

    -- The lanes of one tier of one pool that can deliver now, by (virtual time, number): its own,
    -- and those at open gates. `room`: how many messages it is read for at first.
    local function line_of(tier_queue, room)
        local heap, open, most = {}, {}, calls.room + calls.others
        local found = count(tier_queue, most, open)
        local entries = min(found, most)
        calls.chunk = entries <= FEW_LANES and CHUNK / 2 or CHUNK
        calls.for_others = calls.left - room
        -- one more than there are shows that these are all
        local runnable = begin(heap, tier_queue.runnable, true, false, max(1, min(math.ceil(room
            / calls.chunk), entries + 1, PAGE_MOST)))
        begin(heap, tier_queue.heads, false)
        return { heap = heap, tier_queue = tier_queue, lanes = found, open = open,
            behind = runnable }
    end

    -- A group counts once for its runnable lanes and once at each gate until its first visit, and
    -- from then on once.
    local function count_once(line, group)
        if next(group.at) and not group.counts_once then
            local listed = group.runnable > 0 and 1 or 0
            for gate in pairs(group.at) do
                listed = listed + (line.open[gate] and 1 or 0)
            end
            line.lanes, group.counts_once = line.lanes - max(listed - 1, 0), true
        end
    end

    local function next_lane(line)
        -- advance only now, because the next page may not be needed
        local behind = line.behind
        if behind then
            line.behind = nil
            local is_shut = behind.gate and not gates.is_open(behind.gate)
            behind.shut = behind.shut + (is_shut and 1 or 0)
            if behind.shut <= MOST_SHUT then
                advance(line.heap, behind)
            end
        end
        while line.heap[1] do
            local entry = pop(line.heap)
            local source = entry[4]
            if not source or source.of_lanes then
                line.behind = source
                calls.ahead = calls.ahead - (source and source.gate and 1 or 0)
                return entry[3]
            end
            advance(line.heap, source)
            if gates.is_open(entry[3]) then
                begin(line.heap, gates.lanes_key(entry[3], line.tier_queue.number), true, entry[3])
            end
        end
    end

    -- The lanes of a group that can deliver now, as far as this call has not visited them.
    local function line_in(group)
        local line = group.line
        if not line then
            line = { heap = {}, tier_queue = tier_queues[group.tier_queue] }
            begin_in_group(line.heap, groups.runnable_key(group.number), group, false,
                group.first, group.next_first)
            if group.back then
                push(line.heap, group.back)
            end
            for gate in pairs(group.at) do
                if gates.is_open(gate) then
                    begin_in_group(line.heap, gates.lanes_key(gate, -group.number), group, gate)
                end
            end
            group.line = line
        end
        return line
    end

    -- Visits

    local function expected_cost(lane, tier_queue)
        return lane.mean > 0 and lane.mean or tier_queue.mean > 0 and tier_queue.mean
            or DEFAULT_MEAN
    end

    -- How far `take` messages advance the lane's virtual time.
    local function stride(lane, tier_queue, policy, take)
        if tier_queue.by_time then
            return fairness.stride_of_work(expected_cost(lane, tier_queue) * take, policy.weight)
        end
        return fairness.stride(take, policy.weight)
    end

    -- Advance the lane's virtual time. Returns the one that its tier queue, or group, has reached.
    local function advance_time(lane, tier_queue, policy, take, is_alone)
        local reached = lane.vt
        lane.vt = reached + stride(lane, tier_queue, policy, take)
        if is_alone then
            reached = fairness.reached(reached, lane.vt, stride(lane, tier_queue, policy,
                fairness.chunk(take, 2, policy.weight)))
        end
        return reached
    end

    -- `permits`: those that the messages use together; `largest`: the most that one uses.
    local function charge(lane, tier_queue, policy, take, permits, largest, is_alone)
        lanes.before_move(lane)
        local reached = advance_time(lane, tier_queue, policy, take, is_alone)
        if lane.tier_queue > 0 then
            tier_queue.vt = reached
        else
            groups.find(-lane.tier_queue).inner_vt = reached
        end
        if policy.rate then
            lane.tat = fairness.take_permits(lanes.tat_of(lane, policy), shard.now, policy.step,
                permits)
            if largest > 1 or lane.owes > 0 then
                lane.owes = largest > 1 and largest or 0
            end
        end
        lane.ready, lane.leased = lane.ready - take, lane.leased + take
        if policy.adapts then
            lane.flow = lane.flow or adaptive.begin(shard.now)
            adaptive.delivered(lane.flow, lane.leased, adaptive.limit(lane.flow, policy))
        end
        tier_queue.delivered = tier_queue.delivered + take
        lanes.count_deliveries(lane, take)
    end

    -- Charge a group for what its lanes delivered. `work`: what that is expected to cost, in a tier
    -- that is fair by time.
    local function charge_group(group, tier_queue, taken, work, is_alone)
        local before, by_time = group.vt, tier_queue.by_time
        group.vt = before + (by_time and fairness.stride_of_work(work, group.weight)
            or fairness.stride(taken, group.weight))
        tier_queue.vt = before
        if is_alone then
            local one_chunk = fairness.chunk(taken, 2, group.weight)
            one_chunk = by_time and fairness.stride_of_work(floor(work * one_chunk / taken),
                group.weight) or fairness.stride(one_chunk, group.weight)
            tier_queue.vt = fairness.reached(before, group.vt, one_chunk)
        end
        groups.touch(group)
    end

    -- What this call knows of a lane that it visited.
    local function given_by(lane)
        local given = calls.given[lane]
        if not given then
            given = { lane = lane, wanted = 0, picked = false, first = 0, count = 0, charge = 0,
                place = 0, line_tail = false, behind_line = false, quick_tail = false,
                other_tail = false,
                quick_slot_tail = false, other_slot_tail = false, packed_name = false,
                is_limited = false, gate = '' }
            calls.given[lane] = given
            calls.order[#calls.order + 1] = given
        end
        return given
    end

    -- defined below: they read messages
    local costs_of, next_of, next_within_limits

    -- How many of the lane's next messages the rates of lane and gates admit by their costs, the
    -- sum of these costs and the largest. What stops the next one waits for its permits: the lane,
    -- or else the gates.
    local function admit(given, policy, gate, most, mids)
        local lane = given.lane
        local clocks = gate and gates.clocks(gate) or {}
        if policy.rate then
            table.insert(clocks, 1, { lanes.tat_of(lane, policy), policy.step, policy.depth })
        end
        if #clocks == 0 then
            return most, most, 1
        end
        local costs = costs_of(mids or next_of(given, most), most)
        local largest_cost = gates.largest_cost(gate or '', policy.largest_cost)
        for n = 1, #costs do
            costs[n] = min(costs[n], largest_cost)
        end
        local count, stopped = fairness.admitted(clocks, shard.now, costs)
        lane.need = 1
        if policy.rate and stopped and stopped[1] then
            lane.need = costs[count + 1]
        elseif stopped then
            gates.hold(gate, costs[count + 1])
        end
        local permits, largest = 0, 1
        for n = 1, count do
            permits, largest = permits + costs[n], max(largest, costs[n])
        end
        return count, permits, largest
    end

    -- Take as many messages from the lane as all limits admit, and charge the lane for them.
    -- `mids`: these, if they are not the lane's first ones. `folded`: only messages of this topic,
    -- in a bucket whose keys have limits.
    local function visit(lane, tier_queue, room, count_of_lanes, mids, folded)
        local policy = lane.policy or lanes.rule(lane)
        local is_limited, gate = policy.limited, policy.gate
        if lane.tier_queue < 0 then
            local group = groups.find(-lane.tier_queue)
            if group and group.is_limited then
                is_limited, gate = true, lanes.gate_of(lane, policy)
            end
        end
        if policy.shared then
            gate = lanes.gate_of(lane, policy)
        end
        local take = min(room, fairness.chunk(room, count_of_lanes, policy.weight),
            lanes.allowance(lane, policy))
        if gate then
            take = min(take, gates.room(gate))
        end
        if is_limited then
            take = min(take, calls.startable)
        end
        if policy.paused or (lane.is_rare and lane.back_off_step > 0
            and lane.back_off_until > shard.now) then
            take = 0
        end
        local given = given_by(lane)
        if calls.last_rank then
            take = min(take, count_ready(lane, given.wanted))
        end
        local slots
        if take > 0 and policy.key_limited then
            mids, slots = next_within_limits(given, policy, take, folded)
            take = #mids
        end
        local permits, largest = take, 1
        if is_limited and take > 0 and lane.need > 0 and (policy.rate or gate) then
            take, permits, largest = admit(given, policy, gate, take, mids)
        end
        if take <= 0 then
            return 0
        end
        if slots then
            local counts = {}
            for n = 1, take do
                local slot = slots[n]
                if slot then
                    counts[slot] = (counts[slot] or 0) + 1
                end
                if folded then
                    table.insert(given.picked, mids[n])
                end
            end
            for slot, each in pairs(counts) do
                key_limits.take(lane, policy, slot, each)
            end
        end
        if is_limited then
            calls.startable = calls.startable - take
        end
        if gate then
            gates.take(gate, take, permits, largest)
        end
        charge(lane, tier_queue, policy, take, permits, largest, count_of_lanes <= 1)
        if policy.shared and lane.ready > 0 then
            local shut_for = gates.shut_for(lane.rule or lane.name)
            lane.throttled = shut_for > 0 and lane.throttled + shut_for or lane.throttled
        end
        calls.left = calls.left - take
        calls.visits[#calls.visits + 1] = { given, take }
        given.is_limited, given.gate = is_limited, gate or ''
        given.wanted = given.wanted + take
        return take
    end

    -- Visit a lane that was not chosen by its virtual time; its group pays, too.
    local function visit_alone(lane, room, mids, folded)
        local tier_queue = tier_queues[lane.tier_queue]
        local taken = visit(lane, tier_queue, room, 1, mids, folded)
        if taken > 0 and lane.tier_queue < 0 then
            charge_group(groups.find(-lane.tier_queue), tier_queue, taken, taken
                * expected_cost(lane, tier_queue), true)
        end
        return taken
    end

    -- Whether the call serves no more lanes.
    local function is_over()
        return calls.withheld or calls.is_halted
    end

    -- Visit a lane of the line. Returns how much was taken, and whether it can deliver more.
    local function serve_lane(lane, tier_queue, room, count_of_lanes)
        if calls.startable <= 0 and lanes.is_limited(lane, lanes.rule(lane)) then
            -- a lane that is passed over would starve behind a worker with a full buffer
            calls.withheld = true
            return 0, true
        end
        local got = visit(lane, tier_queue, room, count_of_lanes)
        if got == 0 and lane.place == RUNNABLE then
            calls.refused = calls.refused + 1
            if calls.refused >= MOST_REFUSED then
                calls.cut, calls.is_halted = true, true
            end
        end
        return got, got > 0 and lane.ready > 0 and lanes.allowance(lane, lane.policy) > 0
    end

    -- Visit the first lanes of a group, as they were read with it, until one has more: until then
    -- their order does not change. Returns how much was taken, the work, how many lanes refused,
    -- and whether the visit is over.
    local function serve_first(group, tier_queue, room, count_of_lanes)
        local first, at = group.first, group.next_first
        local taken, work, refusing = 0, 0, 0
        while taken < room and first[at] and not group.back and not is_over() do
            local lane = lanes.find(first[at])
            at = at + 1
            if lane then -- else the store lost it; the doctor reports it
                local got, has_more = serve_lane(lane, tier_queue, room - taken, count_of_lanes)
                taken, refusing = taken + got, refusing + (got == 0 and 1 or 0)
                if tier_queue.by_time then
                    work = work + got * expected_cost(lane, tier_queue)
                end
                if has_more then
                    group.back = { lane.vt, lane.number, lane }
                end
            end
        end
        group.next_first = at
        return taken, work, refusing, taken >= room or is_over()
    end

    -- Visit lanes of a group, in their order, for as many messages as a lane of the group's weight
    -- would get. Among many lanes and groups a visit of a lane takes as many as without groups.
    local function serve_group(group, tier_queue, room, entries)
        if calls.may_pass and calls.may_pass <= 0 and not group.line then
            if calls.begins[group.listed_in] ~= SEEN then
                stop_at(group.listed_in, group.position)
            end
            return 0, false
        end
        local taken, work, refusing = 0, 0, 0
        local competing = group.runnable + group.at_gate
        local count_of_lanes = competing > 1 and max(competing, entries) or 1
        room = fairness.chunk(room, entries, group.weight)
        if not group.line and group.first and next(group.at) == nil then
            local is_done
            taken, work, refusing, is_done = serve_first(group, tier_queue, room, count_of_lanes)
            if is_done then
                if taken > 0 then
                    charge_group(group, tier_queue, taken, work, entries <= 1)
                end
                return taken, true
            end
        end
        local line = line_in(group)
        while taken < room and refusing < MOST_REFUSING and not is_over() do
            local lane = next_lane(line)
            if not lane then
                break
            end
            local got, has_more = serve_lane(lane, tier_queue, room - taken, count_of_lanes)
            refusing = refusing + (got == 0 and 1 or 0)
            taken = taken + got
            if tier_queue.by_time then
                work = work + got * expected_cost(lane, tier_queue)
            end
            if has_more then
                push(line.heap, { lane.vt, lane.number, lane })
            end
        end
        if taken > 0 then
            charge_group(group, tier_queue, taken, work, entries <= 1)
        end
        return taken, line.heap[1] ~= nil or line.behind ~= nil
    end

    -- Visit lanes of the page that was read from a source, as far as each visit empties its lane.
    -- Returns how much was taken, and whether more than that may be emptied.
    local function empty_in_page(line, source, room, entries)
        local found, members, records, at = source.found, source.members, source.records, source.at
        local order, visits, tier_queue, taken = calls.order, calls.visits, line.tier_queue, 0
        local n, v, is_alone, size, first = #order, #visits, entries <= 1, #found, at
        local next_one, lane = line.heap[1], nil
        while at <= size and taken < room do
            local name, stored = found[at], records[at]
            lane = stored and not lanes.is_known(name) and emptied.find(name, members[at], stored,
                room - taken, entries)
            if not lane or (next_one and (next_one[1] < lane.vt or (next_one[1] == lane.vt
                and next_one[2] < lane.number))) then
                break
            end
            tier_queue.vt = advance_time(lane, tier_queue, lane.policy, lane.ready, is_alone)
            taken, at, n, v = taken + lane.ready, at + 1, n + 1, v + 1
            order[n], visits[v] = lane, { lane, lane.ready }
        end
        source.at, source.is_tried = at, at <= size and not lane -- the others have more, mostly
        line.lanes, calls.left = line.lanes - at + first, calls.left - taken
        tier_queue.delivered, shard.delivered = tier_queue.delivered + taken, shard.delivered
            + taken
        return taken, at > size
    end

    -- Visit the next lanes of the line as far as each visit empties its lane. Returns how much was
    -- taken.
    local function serve_emptied(line, room, entries)
        local source, taken, goes_on = line.behind, 0, true
        while taken < room and goes_on do
            if source.at > #source.found and not source.is_last then
                read_page(source)
            end
            local got
            got, goes_on = empty_in_page(line, source, room - taken, entries)
            taken, goes_on = taken + got, goes_on and not source.is_last
        end
        return taken
    end

    -- Whether the next lanes of the line may be emptied without being decoded.
    local function may_empty(line)
        local behind = line.behind
        return behind and behind.is_runnable and not behind.is_tried and not calls.last_rank
            and not calls.may_pass and shard.groups == 0
    end

    -- Take up to `room` messages from the line; less, if it has no more or if the worker cannot
    -- start the next one yet.
    local function serve(line, room)
        local entries, taken = min(room + calls.others, line.lanes), 0
        calls.for_others = calls.left - room
        while taken < room and not is_over() do
            if may_empty(line) then
                taken = taken + serve_emptied(line, room - taken, entries)
            end
            local entry = taken < room and next_lane(line)
            if not entry then
                break
            end
            local got, has_more
            if shard.groups > 0 and entry.is_group then
                count_once(line, entry)
                got, has_more = serve_group(entry, line.tier_queue, room - taken, entries)
            else
                got, has_more = serve_lane(entry, line.tier_queue, room - taken, entries)
            end
            taken = taken + got
            if got > 0 and has_more then
                push(line.heap, { entry.vt, entry.number, entry })
            elseif not calls.withheld then
                line.lanes = line.lanes - 1
            end
        end
        return taken
    end

    local function has_work(tier_queue)
        return count(tier_queue, 1, {}) > 0
    end

    local function serve_shares(entries, room)
        fairness.split(room, entries)
        local everything = 0
        for _, entry in ipairs(entries) do
            entry.before, entry.taken = entry.carry, 0
        end
        for _, entry in ipairs(entries) do
            entry.carry = entry.kept
            if entry.given > 0 then
                entry.line = entry.line or line_of(entry.tier_queue, entry.given)
                entry.taken = serve(entry.line, entry.given)
                everything = everything + entry.taken
                if is_over() then
                    break
                elseif entry.taken < entry.given then
                    entry.is_empty, entry.carry = true, 0
                end
            end
        end
        if is_over() then
            for _, entry in ipairs(entries) do
                entry.carry = entry.before
            end
            fairness.settle_carry(entries)
            for _, entry in ipairs(entries) do
                entry.carry = entry.kept
            end
        end
        for _, entry in ipairs(entries) do
            entry.tier_queue.carry = entry.carry
        end
        return everything
    end

    -- The tier queue of a tier that the call serves.
    local function served_queue(pool, tier)
        return (not calls.tiers or calls.tiers[tier.name]) and tier_queues.find(pool, tier.name)
    end

    local function serve_pool(pool, room)
        local entries = {}
        for _, tier in ipairs(tiers) do
            local tier_queue = served_queue(pool, tier)
            if tier_queue and tier.strict then
                room = room - serve(line_of(tier_queue, room), room)
                if is_over() then
                    return
                end
            end
        end
        for _, tier in ipairs(tiers) do
            local tier_queue = served_queue(pool, tier)
            if tier_queue and not tier.strict then
                if has_work(tier_queue) then
                    entries[#entries + 1] = { share = tier.share, carry = tier_queue.carry,
                        tier_queue = tier_queue }
                else
                    tier_queue.carry = 0
                end
            end
        end
        while room > 0 and #entries > 0 and not is_over() do
            local step = room
            if #entries > 1 and calls.startable < room then
                step = calls.startable > 0 and calls.startable or min(room, STEP)
            end
            room = room - serve_shares(entries, step)
            local left = {}
            for _, entry in ipairs(entries) do
                if not entry.is_empty then
                    left[#left + 1] = entry
                end
            end
            entries = left
        end
    end

    -- Whether nothing but this lane, which became runnable in this call, can deliver in the pool.
    function serving.is_alone(lane, pool)
        if not lane or lane.place ~= RUNNABLE or lane.tier_queue < 0 or lane.sorted > 0 then
            return false
        end
        local indexes, is_there = {}, false
        for _, tier in ipairs(tiers) do
            local tier_queue = tier_queues.find(pool, tier.name)
            if tier_queue then
                indexes[#indexes + 1], indexes[#indexes + 2] = tier_queue.runnable, tier_queue.heads
                is_there = is_there or tier_queue.number == lane.tier_queue
            end
        end
        return is_there and run('EXISTS', unpack(indexes)) == 0 -- before this call's changes
    end

    -- As `serve_pool`, if the lane is alone.
    local function serve_alone(lane, pool, room)
        local its_queue, taken = tier_queues[lane.tier_queue], 0
        taken = serve_lane(lane, its_queue, room, 1)
        for _, tier in ipairs(tiers) do
            local tier_queue = not tier.strict and tier_queues.find(pool, tier.name)
            if tier_queue and (tier_queue ~= its_queue or (taken < room and not is_over()))
                then
                tier_queue.carry = 0
            end
        end
    end

    -- The first ready messages of one topic in a bucket, less the `picked` ones.
    local function folded_ones(topic, picked, most)
        local mids, seen = {}, {}
        for _, mid in ipairs(picked) do
            seen[mid] = true
        end
        local behind = calls.last_rank and '(r' .. messages.rank_code(calls.last_rank + 1) or '(s'
        for _, member in ipairs(call('ZRANGE', key('t:' .. topic), '[r', behind, 'BYLEX', 'LIMIT',
            0, most + #picked)) do
            local mid = messages.number_in(member)
            if not seen[mid] and #mids < most then
                mids[#mids + 1] = mid
            end
        end
        return mids
    end

    -- Take only the messages of one topic from a bucket.
    local function visit_folded(lane, topic, room)
        local picked = given_by(lane).picked or {}
        given_by(lane).picked = picked
        if lanes.rule(lane).key_limited then
            return visit_alone(lane, room, nil, topic)
        end
        local mids = folded_ones(topic, picked, room)
        local taken = #mids > 0 and visit_alone(lane, #mids, mids) or 0
        for n = 1, taken do
            picked[#picked + 1] = mids[n]
        end
        return taken
    end

    -- Serve topics strictly in the order in which they are named.
    local function serve_topics(topics, pool, room)
        for _, topic in ipairs(topics) do
            local policy = rules.of(topic)
            local found = policy.buckets and { lanes.find(lanes.name_for(policy, topic)) or nil }
                or lanes.of_topic(topic, policy)
            for _, lane in ipairs(found) do
                if room > 0 and tier_queues[lane.tier_queue].pool == pool
                    and lanes.can_deliver(lane) then
                    if calls.startable <= 0 and lanes.is_limited(lane, lanes.rule(lane)) then
                        calls.withheld = true
                        return
                    end
                    room = room - (lane.is_bucket and visit_folded(lane, topic, room)
                        or not lane.is_bucket and visit_alone(lane, room)
                        or 0)
                end
            end
        end
    end

    -- Mix the visits of several tiers evenly, behind those of strict tiers.
    local function mixed(visits)
        local strict, by_tier, queues, counts = {}, {}, {}, {}
        local first, n = visits[1] and tier_queues[visits[1][1].lane.tier_queue], 2
        while visits[n] and tier_queues[visits[n][1].lane.tier_queue] == first do
            n = n + 1
        end
        if n > #visits then -- of one tier queue, as most are
            return visits
        end
        for _, each in ipairs(visits) do
            local tier = tiers.named[tier_queues[each[1].lane.tier_queue].tier]
            if tier.strict then
                strict[#strict + 1] = each
            else
                by_tier[tier.place] = by_tier[tier.place] or {}
                for _ = 1, each[2] do
                    table.insert(by_tier[tier.place], each[1])
                end
            end
        end
        for n = 1, #tiers do
            if by_tier[n] then
                queues[#queues + 1], counts[#counts + 1] = by_tier[n], #by_tier[n]
            end
        end
        if #queues < 2 then
            return visits
        end
        local heads = {}
        for _, queue in ipairs(fairness.interleave(counts)) do
            heads[queue] = (heads[queue] or 0) + 1
            strict[#strict + 1] = { queues[queue][heads[queue]], 1 }
        end
        return strict
    end

    -- Fetching

    -- The numbers of the first messages of a lane that has not only plain ones, in its order; how
    -- many of them are plain, how many are in the sorted set, and whether it has no others.
    -- `listed`: its first plain messages; `stored`: their records.
    local function first_of(lane, wanted, listed, stored)
        -- one more than wanted shows whether there are others
        local sorted = call('ZRANGE', lanes.key_of('z', lane), 0, wanted)
        local found, p, s, size = {}, 1, 1, #sorted
        if not listed[1] then
            local count = min(size, wanted)
            for n = 1, count do
                found[n] = unpack_from('>I7', sorted[n], #sorted[n] - 6)
            end
            return found, 0, count, count == size
        end
        while #found < wanted and (listed[p] or sorted[s]) do
            local takes_plain = listed[p] ~= nil
            if takes_plain and sorted[s] then
                local rank, at = messages.rank_in(sorted[s], 1)
                local position, number = unpack_from('>I7I7', sorted[s], at)
                local since = stored[p] and unpack_from('>I7', stored[p], #stored[p] - 6) or 0
                takes_plain = rank > 1 or (rank == 1 and (position > since or (position == since
                    and number > listed[p])))
            end
            if takes_plain then
                found[#found + 1], p = listed[p], p + 1
            else
                found[#found + 1], s = messages.number_in(sorted[s]), s + 1
            end
        end
        return found, p - 1, s - 1, s > size
    end

    -- Take these first messages out of the lane.
    local function fetch(lane, wanted, listed, stored)
        local found, plain_ones, others, are_all = first_of(lane, wanted, listed, stored)
        if plain_ones > 0 then
            plain.drop(lane, plain_ones)
        end
        if others > 0 then
            if are_all then
                writes.clear(lanes.key_of('z', lane))
            else
                call('ZREMRANGEBYRANK', lanes.key_of('z', lane), 0, others - 1)
            end
            lane.sorted = lane.sorted - others
        end
        return found
    end

    -- The numbers of the lane's next messages, after those that this call takes already.
    function next_of(given, most)
        local lane, wanted = given.lane, given.wanted + most
        local listed = plain.peek(lane, wanted)
        local found = listed
        if lane.sorted > 0 then
            found = first_of(lane, wanted, listed, read_many(keys.m, listed))
        end
        local mids = {}
        for n = given.wanted + 1, #found do
            mids[#mids + 1] = found[n]
        end
        return mids
    end

    -- The slots of the keys of stored messages (false: none), from a position on. Their states are
    -- read at once.
    local function slots_in(lane, records, first)
        local slots, wanted = {}, {}
        for n = first, #records do
            slots[n] = records[n] and key_limits.slot_in(lane, records[n]) or false
            wanted[#wanted + 1] = slots[n] or nil
        end
        key_limits.load(wanted)
        return slots
    end

    -- The numbers of the lane's next messages that their keys admit, at most so many, and the slots
    -- of their keys (false: none). Those before them whose keys are at a limit are parked.
    function next_within_limits(given, policy, most, folded)
        local lane, found, slots, rooms = given.lane, {}, {}, {}
        local size, is_last = most, false
        while #found < most and not is_last do
            local first, wanted = #found + 1, #found + size
            local mids = folded and folded_ones(folded, given.picked, wanted)
                or next_of(given, wanted)
            local records = read_many(keys.m, mids)
            local slots_of = slots_in(lane, records, first)
            for n = first, #mids do
                local mid, stored, slot = mids[n], records[n], slots_of[n]
                if #found == most then
                    break
                elseif calls.last_rank and stored and select(4, messages.key_in(stored))
                    > calls.last_rank then
                    is_last = true
                    break
                end
                local room = slot and (rooms[slot] or key_limits.room(policy, slot))
                if slot then
                    rooms[slot] = room - 1
                end
                if slot and room <= 0 then
                    if calls.parked >= key_limits.MOST then -- the next call goes on
                        calls.cut, is_last = true, true
                        break
                    end
                    key_limits.park(lane, policy, slot, messages.take(mid, stored))
                    calls.parked = calls.parked + 1
                else
                    found[#found + 1], slots[#slots + 1] = mid, slot
                    calls.read[mid], calls.slot_of[mid] = stored, slot
                end
            end
            is_last = is_last or #mids < wanted
            size = MOST_READ
        end
        return found, slots
    end

    -- The costs of the first of these messages, at most so many.
    function costs_of(mids, most)
        local wanted, costs = {}, {}
        for n = 1, min(most, #mids) do
            wanted[n] = mids[n]
        end
        for n, stored in ipairs(read_many(keys.m, wanted)) do
            costs[n] = stored and messages.cost_of(stored) or 1
        end
        return #costs > 0 and costs or { 1 }
    end

    local function fetch_picked(lane, mids)
        for _, mid in ipairs(mids) do
            local record = messages.read(mid)
            call('ZREM', key('z:' .. text(lane.number)), messages.place_of(record))
            lane.sorted = lane.sorted - 1
        end
        return mids
    end

    -- The numbers and records of all messages, lane by lane.
    local function fetch_all()
        local mids = {}
        for n = 1, #calls.order do
            local given = calls.order[n]
            if given.is_emptied then
                emptied.add_numbers(given, mids)
            elseif given.wanted > 0 then
                local lane, taken = given.lane, nil
                if given.picked then
                    taken = fetch_picked(lane, given.picked)
                elseif lane.sorted == 0 then
                    taken = plain.take(lane, given.wanted)
                else
                    local listed = plain.peek(lane, given.wanted)
                    taken = fetch(lane, given.wanted, listed, read_many(keys.m, listed))
                end
                local n = #mids
                given.first, given.count = n, #taken
                for place = 1, #taken do
                    mids[n + place] = taken[place]
                end
            end
        end
        local read = calls.read
        if next(read) == nil then
            return mids, read_many(keys.m, mids)
        end
        local wanted, records = {}, {}
        for n = 1, #mids do
            records[n] = read[mids[n]] or false
            wanted[#wanted + 1] = not records[n] and mids[n] or nil
        end
        local rest, at = read_many(keys.m, wanted), 0
        for n = 1, #mids do
            if not records[n] then
                at = at + 1
                records[n] = rest[at]
            end
        end
        return mids, records
    end

    -- Leases

    local out -- what the call answers and writes

    local function deadline_of(policy)
        return shard.now + min(policy.lease, calls.max_lease)
    end

    -- Numbers and fences, flat, of the leases that end at the same time: they are one event, see
    -- settling.lua.
    local function ends_at(deadline)
        local ends = out.ends[deadline]
        if not ends then
            ends = {}
            out.ends[deadline] = ends
        end
        return ends
    end

    local function uncount(lane, policy)
        lane.leased, lane.delivered = lane.leased - 1, lane.delivered - 1
        shard.delivered = shard.delivered - 1
        gates.free(lanes.gate_of(lane, policy) or '')
    end

    -- Most leases of a lane without the fence, which they share. `quick`: see settling.lua.
    local function tail_of(given, policy, quick)
        local field = quick and 'quick_tail' or 'other_tail'
        local tail = given[field]
        if not tail then
            local charge = given.charge
            -- lanes of a policy share their gates, except those of groups with limits
            local is_shared = charge == 0 and given.gate == (policy.gate or '')
            local rest = is_shared and out.tails[quick][policy]
            if not rest then
                rest = settling.tail(deadline_of(policy), shard.now, charge, false, given.gate,
                    false, false, false, quick)
                out.tails[quick][policy] = is_shared and rest
            end
            tail = packed(given.lane.name) .. rest
            given[field] = tail
        end
        return tail
    end

    -- The same of a message whose ack only frees its serial key. `line`: that key.
    local function tail_with_line(given, policy, line)
        local before, around = given.line_tail, nil
        if not before then
            local charge = given.charge
            local is_shared = charge == 0 and given.gate == (policy.gate or '') -- as in `tail_of`
            around = is_shared and out.around_lines[policy]
            if not around then
                around = { settling.around_line(deadline_of(policy), shard.now, charge,
                    given.gate) }
                out.around_lines[policy] = is_shared and around or nil
            end
            before, given.behind_line = packed(given.lane.name) .. around[1], around[2]
            given.line_tail = before
        end
        return before .. packed(line) .. given.behind_line
    end

    -- The same of a message that has a slot of its key.
    local function tail_with_slot(given, policy, quick, slot)
        local field = quick and 'quick_slot_tail' or 'other_slot_tail'
        local tail = given[field]
        if not tail then
            tail = packed(deadline_of(policy), shard.now, given.charge, false,
                lanes.gate_of(given.lane, policy) or '', false, false, false, quick)
            given[field] = tail
        end
        given.packed_name = given.packed_name or packed(given.lane.name)
        return given.packed_name .. settling.with_slot(tail, slot)
    end

    -- `line`: the serial key that the message holds from now on; false: none.
    local function add_lease(deadline, mid, stored, tail, line)
        local leases, found, ends = out.leases, out.messages, ends_at(deadline)
        local n, m, e, fence = #leases, #found, #ends, shard.fence + 1
        shard.fence, shard.leased = fence, shard.leased + 1
        leases[n + 1], leases[n + 2] = mid, pack(settling.LEASE, 207, fence, tail)
        found[m + 1], found[m + 2] = mid, stored
        ends[e + 1], ends[e + 2] = mid, fence
        if line then
            messages.set_holder(line, mid, true)
        end
    end

    -- The further bodies of the message that was leased last; `before`: that is leased next.
    local function add_bodies(bodies, is_before)
        local n = #out.bodies
        out.bodies[n + 1], out.bodies[n + 2] = #out.messages / 2 - (is_before and 0 or 1), bodies
    end

    local function waited(lane, stored)
        local since = messages.since_of(stored)
        tallies.waited(lane, since, since, 1)
    end

    -- The tail of a message that was not decoded.
    local function tail_of_brief(given, policy, slot, line, has_ids)
        if slot then
            return tail_with_slot(given, policy, not has_ids, slot)
        elseif line and not has_ids then
            return tail_with_line(given, policy, line)
        end
        return tail_of(given, policy, not (line or has_ids))
    end

    -- The slot of a message's key; false: no limits hold for it.
    local function slot_for(lane, mid, stored)
        local slot = calls.slot_of[mid]
        if slot == nil then
            slot = key_limits.slot_in(lane, stored)
        end
        return slot
    end

    -- Deliver a message whose record has to be decoded.
    local function deliver_decoded(given, policy, deadline, mid, stored, slot)
        local lane = given.lane
        local record = messages.take(mid, stored)
        messages.leave(lane, record)
        -- housekeeping has not come to it yet
        if record.expires and record.expires <= shard.now then
            uncount(lane, policy)
            key_limits.free(lane, slot)
            key_limits.leave(lane, record)
            messages.expire(lane, record)
            return
        end
        waited(lane, stored)
        local line = messages.line(record)
        local is_empty = policy.at_most_once
        local bodies = false
        if record.parts > 0 then
            bodies = call('LRANGE', key('b:' .. text(mid)), 0, -1)
        elseif record.mkey and policy.merge == 'all' then
            bodies = {}
        end
        local tail
        if is_empty or (record.suspect and calls.record_start) then
            tail = packed(lane.name) .. settling.tail(deadline, shard.now, given.charge,
                record.suspect and calls.record_start, lanes.gate_of(lane, policy) or '', is_empty,
                is_empty and line, false, false, slot)
        else
            local is_quick = not (line or record.id or record.sticky or record.parts > 0
                or record.joined > 0 or record.mirrored)
            tail = slot and tail_with_slot(given, policy, is_quick, slot) or tail_of(given, policy,
                is_quick)
        end
        add_lease(deadline, mid, stored, tail, line)
        messages.mirror(lane, record, 'l')
        if bodies then
            add_bodies(bodies)
        end
        if is_empty then -- the message is deleted at delivery; its lease holds the slots
            lane.done, shard.done = lane.done + 1, shard.done + 1
            ids.finish(record, true)
            messages.remove(lane, record)
        end
    end

    -- Count the waiting times of so many messages of a lane. `sinces`: since when they were ready;
    -- `first`, `last`: the extremes.
    local function count_waits(lane, sinces, first, last, number)
        if not tallies.waited(lane, first, last, number) then
            for n = 1, number do
                tallies.waited(lane, sinces[n], sinces[n], 1)
            end
        end
    end

    -- Deliver the messages of one visit. Most are not decoded: this is the innermost loop of all.
    local function deliver_visit(given, policy, deadline, mids, records, first, last)
        local leases, found, size = out.leases, out.messages, 0
        local lane, plain_ones, tail, tail_is_quick = given.lane, 0, false, false
        local first_one, last_one, ends = false, false, false
        local rich_ones, sinces, earliest, latest = 0, out.sinces, math.huge, 0
        local is_once, is_key_limited = policy.at_most_once, policy.key_limited
        local is_last = nil
        for place = first, last do
            local mid, stored = mids[place], records[place]
            local kind, tail_here = stored and byte(stored), nil
            -- the lane counted a message that does not exist: the doctor repairs the count
            if not kind then
                lane = emptied.whole(given)
                uncount(lane, policy)
            elseif kind == RICH or is_once then
                local slot = is_key_limited and slot_for(lane, mid, stored)
                local line, has_ids, mkey, since, bytes = nil, nil, nil, nil, nil
                if kind == RICH and not is_once then
                    if is_last == nil then
                        is_last = lanes.waiting(lane) == 0
                    end
                    line, has_ids, mkey, since, bytes = messages.leave_brief(lane, mid,
                        stored, is_last)
                end
                if line == nil then
                    deliver_decoded(given, policy, deadline, mid, stored, slot)
                else
                    tail_here = tail_of_brief(given, policy, slot, line, has_ids)
                    rich_ones, size = rich_ones + 1, size + bytes
                    sinces[rich_ones] = since
                    earliest = since < earliest and since or earliest
                    latest = since > latest and since or latest
                    if line then
                        messages.set_holder(line, mid, true)
                    end
                    if mkey and policy.merge == 'all' then
                        add_bodies({}, true)
                    end
                end
            else
                local is_quick = kind == PLAIN
                local slot = is_key_limited and slot_for(lane, mid, stored)
                if slot then
                    tail, tail_is_quick = tail_with_slot(given, policy, is_quick, slot), nil
                elseif not tail or is_quick ~= tail_is_quick then
                    tail, tail_is_quick = tail_of(given, policy, is_quick), is_quick
                end
                first_one, last_one, tail_here = first_one or stored, stored, tail
                size, plain_ones = size + #stored - 10 - unpack_from('>I2', stored, 2),
                    plain_ones + 1
            end
            if tail_here then
                ends = ends or ends_at(deadline)
                local n, m, e, fence = #leases, #found, #ends, shard.fence + 1
                shard.fence = fence
                leases[n + 1], leases[n + 2] = mid, pack(settling.LEASE, 207, fence, tail_here)
                found[m + 1], found[m + 2] = mid, stored
                ends[e + 1], ends[e + 2] = mid, fence
            end
        end
        lane.bytes = lane.bytes - size
        shard.bytes, shard.waiting, shard.leased = shard.bytes - size, shard.waiting - plain_ones
            - rich_ones, shard.leased + plain_ones + rich_ones
        if rich_ones > 0 then
            count_waits(lane, sinces, earliest, latest, rich_ones)
        end
        local first_since = first_one and unpack_from('>I7', first_one, #first_one - 6)
        local last_since = plain_ones > 1 and unpack_from('>I7', last_one, #last_one - 6)
            or first_since
        if first_one and not tallies.waited(lane, first_since, last_since, plain_ones) then
            for place = first, last do
                if records[place] and byte(records[place]) ~= RICH then
                    waited(lane, records[place])
                end
            end
        end
    end

    local function deliver_all(visits)
        local mids, records = fetch_all()
        emptied.write(calls.order)
        out = { leases = {}, ends = {}, runs = {}, messages = {}, bodies = {}, sinces = {},
            tails = { [true] = {}, [false] = {} }, around_lines = {} }
        for n = 1, #calls.order do
            local given = calls.order[n]
            local lane = given.lane
            local tier_queue = tier_queues[lane.tier_queue]
            given.charge = tier_queue.by_time and expected_cost(lane, tier_queue) or 0
            if given.wanted > 0 and lane.ready >= 32 then -- else nothing is old, see `classify`
                local last = given.count > 0 and records[given.first + given.count]
                lane.head_since = last and byte(last) ~= RICH and unpack_from('>I7', last,
                    #last - 6) or shard.now
            end
        end
        local runs = out.runs
        for number = 1, #visits do
            local each = visits[number]
            local given, before = each[1], #out.messages
            local lane = given.lane
            local policy, place = lane.policy, given.place
            local deadline = deadline_of(policy)
            given.place = place + each[2]
            local there = min(given.place, given.count)
            for _ = max(there, place) + 1, given.place do
                uncount(lane, policy)
            end
            deliver_visit(given, policy, deadline, mids, records, given.first + place + 1,
                given.first + there)
            local n = #runs
            runs[n + 1], runs[n + 2], runs[n + 3] = (#out.messages - before) / 2, deadline,
                given.is_limited and 1 or 0
        end
        messages.end_merging()
        call_many('HSET', keys.l, out.leases, 2)
        for deadline, entries in pairs(out.ends) do
            settling.expect(deadline, entries)
        end
    end

    -- Choose, fetch and lease up to `room` messages. Returns number and record of each, flat; runs
    -- of {how many in a row, when their leases end, whether they are limited}, flat; {position,
    -- further bodies} of messages that have some, flat; the first fence; whether lanes were left
    -- out; whether lanes were passed over, and where the next call begins; whether the call ended
    -- early, because keys at their limits have parked much or many lanes could deliver nothing.
    -- `only`: {patterns, as `lease.lua` gets them, or false, where the lanes' order begins, the
    -- most lanes to pass over, the largest rank or nil}, or nil.
    -- `max_lease`: the longest lease in microseconds, or nil.
    -- `others`: how many messages the other calls of the same lease ask for, or nil: visits take as
    -- many as if one call delivered all. `alone`: {lane: the only one that can deliver, read: its
    -- records, by number}, or nil.
    function serving.lease(room, pool, topics, startable, record_start, only, max_lease, others,
        alone)
        calls = { room = room, others = others or 0, left = room,
            startable = startable, record_start = record_start,
            visits = {}, order = {}, given = {}, withheld = false,
            -- by number, of messages whose keys have limits: their records and slots
            read = alone and alone.read or {}, slot_of = {},
            -- what a visit of weight 1 takes: as many lanes of a group are read with it
            chunk = CHUNK, cut = false, parked = 0,
            -- lanes that wait in the heap behind open gates, and those that could deliver nothing
            ahead = 0, refused = 0, is_halted = false,
            max_lease = max_lease or math.huge }
        calls.passed_over = false
        local carries = {}
        if only then
            calls.begins, calls.may_pass, calls.last_rank = only.begins, only.may_pass,
                only.last_rank
            calls.stopped, calls.seen, calls.is_read = {}, {}, {}
            if only.patterns then
                calls.only = {}
                for _, pattern in ipairs(only.patterns) do
                    local kind = sub(pattern, 1, 1)
                    if kind == OF_TIER then
                        calls.tiers = calls.tiers or {}
                        calls.tiers[sub(pattern, 2)] = true
                    elseif kind == WITHOUT then
                        calls.only[sub(pattern, 2)], calls.is_common = false, true
                    else
                        calls.only[pattern] = true
                    end
                end
            end
            for _, tier_queue in ipairs(tier_queues) do
                carries[tier_queue] = tier_queue.carry
            end
        end
        messages.save() -- housekeeping's changes are read from the store
        local first = last_fence() + 1
        if topics then
            serve_topics(topics, pool, room)
        elseif alone then
            serve_alone(alone.lane, pool, room)
        else
            serve_pool(pool, room)
        end
        deliver_all(topics and calls.visits or mixed(calls.visits))
        for _, given in ipairs(calls.order) do
            if not given.lane.is_emptied then
                lanes.place(given.lane)
            end
        end
        -- a call that passes lanes over does not change the tiers' carries
        for tier_queue, carry in pairs(carries) do
            tier_queue.carry = carry
        end
        -- what a worker leaves for its common slots is no news for others
        local is_left = calls.passed_over and not calls.is_common
        return out.messages, out.runs, out.bodies, first, calls.withheld or is_left,
            calls.passed_over, only and next_begins(), calls.cut
    end

    -- Whether something could be leased in the pool now.
    function serving.has_work(pool, topics)
        if not topics then
            for _, tier_queue in ipairs(tier_queues) do
                if tier_queue.pool == pool and has_work(tier_queue) then
                    return true
                end
            end
            return false
        end
        for _, topic in ipairs(topics) do
            local policy = rules.of(topic)
            local found = policy.buckets and { lanes.find(lanes.name_for(policy, topic)) or nil }
                or lanes.of_topic(topic, policy)
            for _, lane in ipairs(found) do
                local has_some = not lane.is_bucket or call('ZLEXCOUNT', key('t:' .. topic), '[r',
                    '(s') > 0
                if tier_queues[lane.tier_queue].pool == pool and lanes.can_deliver(lane)
                    and has_some then
                    return true
                end
            end
        end
        return false
    end
end)
