-- Delivering messages. First the visits are decided: how many messages each lane delivers. This
-- reads each lane once, and no messages. Then the messages of all visits are fetched and leased.
-- Lanes that cannot deliver are never read. leasing.py has an example and shows why it is correct.
--
-- A line is what can deliver in a tier queue, in order: its runnable lanes, its groups, and its
-- open gates by the position of the first lane there. The gates at which the first lane belongs to
-- a group are in the order of that group.

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
    -- such lanes in all, with those that move from one gate to another: after that the next call
    -- goes on
    local MOST_REFUSED = 500
    local MOST_READ = 250 -- messages that are read at once behind those that keys hold back
    -- lanes without anything for the caller that it passes over in each index, also where others
    -- have used up what a call may pass over: runnable ones, those at a gate
    local ALWAYS_PASSED, ALWAYS_PASSED_AT_GATE = 100, 16
    local WITHOUT, OF_TIER = '\31', '\30' -- as `lease.lua` gets them
    local HOLD_PART = 8 -- for this part of an interval a gate is held for what others serve
    local HELD_FOR = 60 * SECOND -- for how long, if the rate can be used meanwhile
    local SEEN = -1 -- the position of an index of which all lanes were seen, in the last calls
    local BY_NAME, NAMES = 100, '' -- lanes that a call reads by name; the key of where it begins

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

    local calls -- what this call may still deliver, and what it has done; nil: it leases nothing

    local function reset()
        calls = nil
    end

    local first_lanes = 1 -- how many lanes a visit of a group needs: as in the last page of groups

    -- How many messages the line that is served still needs: the rest is for other tiers.
    local function needed()
        return calls.left - calls.for_others
    end

    -- A source: a sorted set that is read page by page, in the order of scores. Those of lanes are
    -- in their records too, which is faster than reading scores.

    -- Read the other first lanes of groups, by the names of theirs, if the first one of a group has
    -- too few messages for a visit.
    local function read_other_lanes(names_of_groups)
        local others, is_one_enough = {}, true
        for n = 1, #names_of_groups do
            local found = names_of_groups[n]
            local lane = found[1] and lanes.find(found[1])
            if lane and lane.ready < calls.chunk then
                is_one_enough = false
                for place = 2, #found do
                    others[#others + 1] = found[place]
                end
            end
        end
        lanes.load(others)
        if #names_of_groups > 0 then
            first_lanes = is_one_enough and 1 or CHUNK
        end
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
                    local found = lanes.names_in(call('ZRANGE',
                        groups.runnable_key(group.number), 0, most - 1))
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
        read_other_lanes(more)
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
                found = lanes.names_in(found)
                lanes.load(found)
            end
        else
            found = call('ZRANGE', source.name, source.offset, last, 'WITHSCORES')
        end
        local count = source.of_lanes and #found or #found / 2
        source.at, source.found, source.offset, source.read, source.is_last = 1, found,
            source.offset + count, source.read + count, count < source.page
    end

    -- Whether the call delivers plain messages: their rank is 1.
    local function takes_plain_ones()
        return not calls.last_rank or (calls.first_rank <= 1 and calls.last_rank >= 1)
    end

    -- How many of the lane's ready messages have a rank that the call delivers, less the `planned`
    -- ones that it delivers already.
    local function count_ready(lane, planned)
        local plain_ones = takes_plain_ones() and lane.ready + planned - lane.sorted or 0
        local others = lane.sorted > 0 and call('ZLEXCOUNT', lanes.key_of('z', lane), '['
            .. messages.rank_code(calls.first_rank), '('
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
            return is_taken(lane.policy_name, '') ~= false
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

    local function has_some(lane)
        return covers(lane) and (not calls.last_rank or count_ready(lane, 0) > 0)
    end

    -- Whether the lane has something for the caller.
    local function takes(lane, source)
        if has_some(lane) then
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
        if not source.is_seen and not calls.is_whole then
            stop_at(source.id, position)
            if source.group and source.group.listed_in then
                stop_at(source.group.listed_in, source.group.position)
            end
        end
        source.at, source.found, source.is_last, source.is_stopped = 1, {}, true, true
    end

    -- Whether a source may pass over no more lanes.
    local function is_used_up(source)
        return (calls.may_pass <= 0 or source.is_seen) and source.always <= 0
    end

    -- `page`: how many entries are read first. `always`: how many lanes it may pass over in any
    -- case; nil: it has the heads of gates. `group`: the one to which the lanes belong.
    local function new_source(name, page, always, group)
        local source = { name = name, of_lanes = always ~= nil, offset = 0, page = page,
            left = calls.left, read = 0, at = 1, found = {}, group = group,
            is_last = calls.is_whole }
        -- In a call with a filter `begins` has where it begins, by its index. If all of that was
        -- seen it begins at the first lane, and may pass over only a few.
        if calls.may_pass and always then
            source.id, source.always = sub(name, #PREFIX + 1), always
            local position = calls.begins[source.id] or 0
            source.is_seen = position == SEEN or (group and calls.begins[group.listed_in] == SEEN)
            source.offset, calls.is_read[source.id] = max(position, 0), true
        end
        return source
    end

    -- Where the next call with the same filter begins: nowhere, if this one has seen the rest of
    -- all indexes. If it was full, it begins those at the first of which it has seen all. Also
    -- returns whether lanes are left that the last calls and this one have not seen.
    local function next_begins()
        local found = { [NAMES] = calls.is_whole and '' or nil }
        if not calls.stopped or next(calls.stopped) == nil then
            return found, false
        end
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
        found[NAMES] = calls.next_name or ''
        return found, true
    end

    local advance

    -- Push a group that was read from a source, unless its gates were found first.
    local function advance_to_group(heap, source, group, position)
        local is_pushed = group.position
        group.listed_in, group.position = source.id, position
        if is_pushed then
            return advance(heap, source)
        end
        if calls.may_pass then
            source.always = source.always - (source.is_seen and 1 or 0)
            if is_used_up(source) then
                return stop(source, position)
            end
        end
        group.entry = { group.vt, group.number, group, source }
        push(heap, group.entry)
    end

    -- Push the next member of a source to the heap, if there is one.
    function advance(heap, source)
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
            source.at = at + 1
            return advance_to_group(heap, source, found[at], position)
        elseif source.of_lanes then
            local lane = lanes.find(found[at])
            source.at = at + 1
            if not lane then -- the store lost it; the doctor reports it
                return advance(heap, source)
            elseif calls.may_pass and (calls.offered[lane] or not takes(lane, source)) then
                if is_used_up(source) then
                    return stop(source, position + 1)
                end
                return advance(heap, source)
            end
            push(heap, { lane.vt, lane.number, lane, source })
        else
            source.at = at + 2
            push(heap, { tonumber(found[at + 1]), calls.ahead < MOST_AHEAD and HEADS_FIRST
                or math.huge, found[at], source })
        end
    end

    -- The lanes at a gate, in a tier queue or in a group there, as this call has left them. `heap`
    -- has the next entry of the index, `ahead`, and those that were visited or came to the gate:
    -- {turn, number, entry}. What they are now may differ; then they are further behind, or gone,
    -- or deliver nothing more in this call.
    -- `left`: how many entries may deliver more, less those in the index; `is_live`: whether an
    -- entry may, if this call has changed that.

    local function begin_queue(gate, tier_queue, number, always)
        local source = new_source(gates.lanes_key(gate.name, number), PAGE, always)
        source.gate, source.is_last = gate.name, nil -- the gate may be held for others
        return { is_queue = true, gate = gate, tier_queue = tier_queue, source = source, heap = {},
            ahead = false, in_groups = {}, left = 0, is_live = {}, entry = false, passed_over = {} }
    end

    local function queue_of(gate, tier_queue)
        local id = gate.name .. '\0' .. tier_queue.number
        local queue = calls.queues[id]
        if not queue then
            queue = begin_queue(gate, tier_queue, tier_queue.number, ALWAYS_PASSED_AT_GATE)
            calls.queues[id] = queue
        end
        return queue
    end

    local function queue_in(queue, group)
        queue.in_groups[group] = queue.in_groups[group] or begin_queue(queue.gate,
            queue.tier_queue, -group.number, 0)
        return queue.in_groups[group]
    end

    -- Whether the lane or group still waits there.
    local function is_there(entry, queue)
        if entry.is_group then
            return groups.at(entry, queue.gate.name).lanes > 0
        end
        return lanes.waits_at(entry) == queue.gate.name
    end

    local function push_entry(heap, entry, queue)
        push(heap, { turns.at(entry, queue.gate.name), entry.number, entry })
        return heap
    end

    -- The call does not take a lane of a queue: note it, and its group.
    local function pass_over(queue, lane)
        local group = turns.group_at(lane, queue.gate.name)
        if group then
            queue = queue_of(queue.gate, queue.tier_queue)
            local inside = queue_in(queue, group).passed_over
            push_entry(inside, lane, queue)
            if #inside > 1 then
                return
            end
        end
        push_entry(queue.passed_over, group or lane, queue)
    end

    -- The first lane of a queue that the call does not take; nil: none.
    local function first_passed(queue)
        local heap, name = queue.passed_over, queue.gate.name
        while heap[1] and heap[1][1] ~= turns.at(heap[1][3], name) do
            push_entry(heap, pop(heap)[3], queue)
        end
        local entry = heap[1] and heap[1][3]
        return entry and entry.is_group and first_passed(queue_in(queue, entry)) or entry
    end

    -- Bring the next entry of the index into the heap.
    local function fill(queue)
        local source = queue.source
        while not queue.ahead do
            if source.at > #source.found then
                if source.is_last then
                    if source.id and not source.is_stopped then
                        calls.seen[source.id] = true
                    end
                    return
                end
                read_page(source)
            else
                local at = source.at
                local found, position = source.found[at], source.offset - #source.found + at - 1
                local entry = type(found) == 'table' and found or lanes.find(found)
                source.at = at + 1
                if not entry or not is_there(entry, queue) then
                    -- the store lost it, or it has gone to another gate
                elseif calls.may_pass and not entry.is_group and not takes(entry, source) then
                    pass_over(queue, entry)
                    if is_used_up(source) then
                        stop(source, position + 1)
                    end
                else
                    push_entry(queue.heap, entry, queue)
                    local is_changed = calls.given[entry] or entry.is_group
                        and groups.at(entry, queue.gate.name).is_changed
                    queue.ahead = not is_changed and entry
                end
            end
        end
    end

    local function pop_entry(queue)
        local entry = pop(queue.heap)[3]
        if queue.ahead == entry then
            queue.ahead = false
        end
        return entry
    end

    -- The first lane of a queue that can deliver more in this call; nil: none. It, or its group, is
    -- the first of the heap then.
    local function first_in_order(queue)
        while true do
            fill(queue)
            local top = queue.heap[1]
            if not top then
                return nil
            end
            local entry, lane = top[3], nil
            if not is_there(entry, queue) then
                lane = nil
            elseif entry.is_group then
                lane = first_in_order(queue_in(queue, entry))
            elseif not calls.left_out[entry] then
                lane = entry
            end
            if lane and top[1] == turns.at(entry, queue.gate.name) then
                return lane
            end
            pop_entry(queue)
            if lane then
                push_entry(queue.heap, entry, queue)
            end
        end
    end

    -- The first lane at a gate that can deliver more in this call: that for which the gate is held,
    -- else the first one in order.
    local function first_in(queue)
        local holder = gates.holder_at(queue.gate)
        if holder and not calls.left_out[holder] and tier_queues[holder.tier_queue]
            == queue.tier_queue then
            if not calls.may_pass or has_some(holder) then
                return holder
            end
            calls.left_out[holder] = true
            pass_over(queue, holder)
        end
        return first_in_order(queue)
    end

    -- Whether a lane or group at the gate, other than this one, is before a turn and number.
    local function has_before(queue, turn, number, except)
        local position = { turn, number }
        first_in_order(queue)
        local top = queue.heap[1]
        if top and top[3] == except then
            pop_entry(queue)
            first_in_order(queue)
            local other = queue.heap[1]
            push(queue.heap, top)
            top = other
        end
        return top ~= nil and before(top, position)
    end

    -- Whether a tier queue may get nothing while another one of its pool, of a strict tier, has
    -- work, or the call leases no messages of its tier. Then its lanes are not before those of the
    -- other one at a gate, whatever their turns.
    local function is_passed_over(one, other)
        if one.pool ~= other.pool or one.tier == other.tier then
            return false
        elseif calls.tiers and not calls.tiers[one.tier] then
            return true
        end
        for _, tier in ipairs(tiers) do
            if tier.strict and (tier.name == one.tier or tier.name == other.tier) then
                return tier.name == other.tier
            end
        end
        return false
    end

    -- Whether nothing that waits at the gate and may deliver is before the lane, which waits at
    -- another one.
    local function is_turn(lane, gate)
        local entry, inner = turns.entry(lane, gate.name), turns.inner(lane, gate)
        local turn = turns.of_entry(lane, gate)
        local its_queue = tier_queues[lane.tier_queue]
        for number = 1, #tier_queues do
            local other = tier_queues[number]
            if not is_passed_over(other, its_queue) and has_before(queue_of(gate, other), turn,
                entry.number, entry) then
                return false
            end
        end
        return not entry.is_group or not has_before(queue_in(queue_of(gate,
            tier_queues[entry.tier_queue]), entry), inner, lane.number, lane)
    end

    -- Count whether the lane, or its group, may deliver more at a gate, after a change.
    -- `was_there`: whether it waited there when the call began, if nothing was known of it.
    local function count_at(queue, lane, was_there)
        local entry, is_live = turns.entry(lane, queue.gate.name), nil
        if entry.is_group then
            is_live = first_in_order(queue_in(queue, entry)) ~= nil
        else
            is_live = is_there(lane, queue) and not calls.left_out[lane]
        end
        local was_live = queue.is_live[entry]
        if was_live == nil then
            was_live = was_there
        end
        if is_live ~= was_live then
            queue.left = queue.left + (is_live and 1 or -1)
        end
        queue.is_live[entry] = is_live
    end

    -- Add a lane that may be ahead of where the index is read. Returns its group there.
    local function add_to_queue(queue, lane)
        local group = turns.group_at(lane, queue.gate.name)
        if group then
            push_entry(queue_in(queue, group).heap, lane, queue)
        end
        push_entry(queue.heap, group or lane, queue)
        return group
    end

    -- A lane that waited at a gate has come to the one where it waits now.
    local function has_moved(lane, name)
        local found, tier_queue = turns.of(lane), tier_queues[lane.tier_queue]
        if found.waits == name then
            return
        end
        count_at(queue_of(gates.find(name), tier_queue), lane, true)
        local queue = queue_of(gates.find(found.waits), tier_queue)
        local group = add_to_queue(queue, lane)
        table.insert(calls.came_to, queue)
        count_at(queue, lane, group and groups.at(group, found.waits).lanes > 1)
    end

    -- Lines

    -- Add the names of the gates in heads, at most so many, with those of groups.
    local function add_gates(names, heads, most)
        local offset = 0
        while #names < most do
            local found = call('ZRANGE', heads, offset, offset + PAGE - 1)
            for _, name in ipairs(found) do
                if byte(name, 8) == 29 and byte(name) == 0 then
                    add_gates(names, groups.heads_key(unpack_from('>I7', name)), most)
                else
                    names[#names + 1] = name
                end
            end
            offset = offset + PAGE
            if #found < PAGE then
                return
            end
        end
    end

    -- How many lanes and groups compete in a tier queue, as far as they may deliver more: exactly,
    -- if they are fewer than `most`. A group counts once with its runnable lanes, and once at each
    -- open gate. `known`: what is known of it in this call.
    local function count(tier_queue, most, known)
        known.runnable = known.runnable or call('ZCARD', tier_queue.runnable)
        local found = known.runnable
        if found >= most then
            return found
        end
        if not known.names then
            known.names, known.sizes = {}, {}
            add_gates(known.names, tier_queue.heads, most)
        end
        local is_counted = {}
        local function add(name)
            local gate = not is_counted[name] and gates.find(name)
            is_counted[name] = true
            if gate and found < most and gates.is_open(gate, tier_queue.number) then
                known.sizes[name] = known.sizes[name] or call('ZCARD', gates.lanes_key(name,
                    tier_queue.number))
                local queue = calls and calls.queues[name .. '\0' .. tier_queue.number]
                found = found + known.sizes[name] + (queue and queue.left or 0)
            end
        end
        for _, name in ipairs(known.names) do
            add(name)
        end
        for _, queue in ipairs(calls and calls.came_to or {}) do
            if queue.tier_queue == tier_queue then
                add(queue.gate.name)
            end
        end
        return found
    end

    local function push_group(line, group)
        group.position = group.position or 0
        if not group.entry then
            calls.ahead, group.entry = calls.ahead + 1, { group.vt, group.number, group }
            push(line.heap, group.entry)
        end
    end

    -- Order among the lanes of a gate in several tier queues

    local function precedes(one, other, gate)
        local is_held = shard.now < gate.held_until
        local is_holder, is_other = is_held and gate.holder == one.number, is_held and gate.holder
            == other.number
        if is_holder ~= is_other then
            return is_holder
        end
        local entry, its = turns.entry(one, gate.name), turns.entry(other, gate.name)
        if entry == its then
            entry, its = one, other
        end
        return before({ turns.at(entry, gate.name), entry.number }, { turns.at(its, gate.name),
            its.number })
    end

    -- Bring the next entry of the index into the heap of a line. Only when it is needed, because
    -- the next page may not be.
    local function advance_line(line)
        local behind = line.behind
        if behind then
            line.behind = nil
            advance(line.heap, behind)
        end
    end

    -- The runnable lanes of a group, as far as this call has not visited them. The first ones were
    -- read with it.
    local function line_in(group)
        if not group.line then
            local source = new_source(groups.runnable_key(group.number), PAGE, 0, group)
            local first = group.first
            if first then
                source.found, source.offset, source.is_last, source.page = first, #first,
                    #first < first.most, calls.chunk
            end
            group.line = { heap = {} }
            advance(group.line.heap, source)
        end
        return group.line
    end

    -- Whether the group has runnable lanes that can deliver more; they are in its line then.
    local function has_runnable(group)
        local line = group.runnable > 0 and not group.is_refusing and line_in(group)
        if line then
            advance_line(line)
        end
        return line and line.heap[1] ~= nil
    end

    -- Whether the last slot of a gate is kept for its first lane: its tier is owed a part of a
    -- delivery, or has reached the lane in its order, or no lane competes with it for the slots of
    -- workers. Otherwise its tier may not serve it soon.
    local function is_due(lane, entry)
        local tier_queue = entry.tier_queue
        if entry.kept >= OWED or not calls.has_runnable then
            return true
        elseif lane.tier_queue > 0 then
            return lane.vt < tier_queue.vt
        end
        local group = lanes.group(lane)
        return group.vt < tier_queue.vt or lane.vt < group.inner_vt
    end

    -- Whether a lane of another tier precedes the lane at a gate, and can be served in this call,
    -- or needs the last that the gate admits.
    local function goes_before(queue, lane, entry)
        local gate, other = queue.gate, first_in(queue_of(queue.gate, entry.tier_queue))
        return other and precedes(other, lane, gate) and (entry.left > 0
            or gates.room_of(gate, lane) == 1 and (not gate.concurrency or is_due(other, entry)))
    end

    -- Whether a lane that this call does not serve, of another pool or for other workers, precedes
    -- the first one that it serves at a gate: for a part of the time of one delivery the gate is
    -- held for it, or for long if others can use the rate meanwhile. If no worker takes it then, it
    -- misses its turn. Nothing is held where the gate admits more than `room`, what this call
    -- takes at most.
    local function waits_for_others(queue, lane, room)
        local gate, first = queue.gate, nil
        if gates.room_of(gate, lane) > room then
            return false
        end
        local function note(other)
            if other and precedes(other, lane, gate)
                and (not first or precedes(other, first, gate)) then
                first = other
            end
        end
        for _, tier_queue in ipairs(tier_queues) do
            local is_of_others = tier_queue.pool ~= queue.tier_queue.pool
            if is_of_others or calls.may_pass then
                local other = queue_of(gate, tier_queue)
                local its_first = first_in(other)
                note(is_of_others and its_first)
                note(not is_passed_over(tier_queue, queue.tier_queue) and first_passed(other))
            end
        end
        if not first or shard.now < gate.held_until then
            return false
        elseif gate.holder == first.number then
            gates.end_hold(gate)
            lanes.before_turn(first)
            turns.miss(first, gate, lane)
            table.insert(calls.missed, first)
            return false
        end
        local for_us = gates.keeps_up(gate, 1) and HELD_FOR
            or floor(max(gates.interval(gate, 1), gate.mean) / HOLD_PART)
        if for_us > 0 then
            gates.hold(gate, first, turns.of_entry(first, gate), 1, for_us)
            pools_to_notify[tier_queues[first.tier_queue].pool] = true
        end
        return gates.room_of(gate, lane) == 0
    end

    -- The first lane at a gate that admits it; nil: none, or it is the turn of another tier that
    -- this call serves, too.
    local function first_at(line, queue)
        local lane = first_in(queue)
        if not lane or gates.room_of(queue.gate, lane) == 0 then
            return nil
        end
        for _, entry in ipairs(calls.yields and calls.entries or {}) do
            if entry.tier_queue ~= queue.tier_queue and goes_before(queue, lane, entry) then
                calls.has_yielded, line.yielding[queue] = true, true
                return nil
            end
        end
        return lane
    end

    -- Put the gate into the order of its tier queue, or of the group of its first lane, if it can
    -- deliver.
    local function list_gate(line, queue)
        local lane = first_at(line, queue)
        queue.entry = lane and { lane.vt, lane.number, queue, false, lane, calls.visited } or false
        if lane and lane.tier_queue < 0 then
            local group = lanes.group(lane)
            group.gates = group.gates or {}
            push(group.gates, queue.entry)
            push_group(line, group)
        elseif lane then
            calls.ahead = calls.ahead + 1
            push(line.heap, queue.entry)
        end
    end

    -- The same of a gate that was read from an index of heads.
    local function list_head(line, name)
        local gate = gates.find(name)
        if gate then -- else the store lost it
            list_gate(line, queue_of(gate, line.tier_queue))
        end
    end

    -- What can deliver in one tier of one pool, by (virtual time, number), with the lanes that were
    -- read by name. `room`: for how many messages it is read at first.
    local function begin_line(tier_queue, room)
        local heap, known, most = {}, {}, calls.room + calls.others
        local entries = min(count(tier_queue, most, known), most)
        calls.chunk = entries <= FEW_LANES and CHUNK / 2 or CHUNK
        calls.for_others = calls.left - room
        -- one more than there are shows that these are all
        local page = max(1, min(math.ceil(room / calls.chunk), entries + 1, PAGE_MOST))
        local runnable = new_source(tier_queue.runnable, page, ALWAYS_PASSED)
        runnable.is_runnable = true
        advance(heap, new_source(tier_queue.heads, PAGE))
        local line = { heap = heap, tier_queue = tier_queue, known = known, behind = runnable,
            yielding = {}, groups = {} }
        for lane in pairs(calls.offered) do
            if tier_queues[lane.tier_queue] ~= tier_queue then
                -- another line has it
            elseif lane.place == AT_GATE then
                local queue = queue_of(gates.find(turns.of(lane).waits), tier_queue)
                add_to_queue(queue, lane)
                list_gate(line, queue)
            elseif lane.tier_queue < 0 then
                local group = lanes.group(lane)
                push(line_in(group).heap, { lane.vt, lane.number, lane })
                push_group(line, group)
            else
                push(line.heap, { lane.vt, lane.number, lane })
            end
        end
        return line
    end

    -- Read a page of the lanes in these ranges of names, and offer those that can deliver to the
    -- caller. If the page has all, the call reads no others: the last calls have passed over them.
    local function read_by_name(ranges)
        local first, left = calls.begins[NAMES], BY_NAME
        local from = first
        for _, range in ipairs(ranges) do
            if left > 0 and from < range[2] then
                from = from > range[1] and from or range[1]
                local found = call('ZRANGE', keys.names, '[' .. from, '(' .. range[2], 'BYLEX',
                    'LIMIT', 0, left)
                for _, lane in ipairs(lanes.existing(found)) do
                    calls.offered[lane] = has_some(lane) and (lane.place == RUNNABLE
                        or lane.place == AT_GATE) or nil
                end
                left = left - #found
                from = found[1] and found[#found] .. '\1' or range[2] -- before others
            end
        end
        calls.next_name = left > 0 and '' or from
        if first == '' and left > 0 then
            calls.is_whole, calls.passed_over = ranges[1][1] ~= '', true
            calls.may_pass = calls.is_whole and 0 or BY_NAME
        end
    end

    -- The first lane of a gate that was taken from a heap; nil: it was put back.
    local function lane_of(line, entry)
        local queue = entry[3]
        if queue.entry ~= entry then
            return nil
        elseif entry[6] == calls.visited then -- nothing has changed since
            return entry[5]
        end
        local lane = first_at(line, queue)
        if lane and lane.vt == entry[1] and lane.number == entry[2] then
            return lane
        end
        list_gate(line, queue)
    end

    -- The next of the line: a lane, a group, or a gate and the first lane there.
    local function next_of_line(line)
        local heap = line.heap
        advance_line(line)
        while heap[1] do
            local entry = pop(heap)
            local source, found = entry[4], entry[3]
            if source and not source.of_lanes then
                advance(heap, source)
                if byte(found, 8) == 29 and byte(found) == 0 then
                    local group = groups.find((unpack_from('>I7', found)))
                    if group and not group.position then
                        push_group(line, group)
                    end
                else
                    list_head(line, found)
                end
            elseif found.is_queue then
                calls.ahead = calls.ahead - 1
                local lane = lane_of(line, entry)
                if lane then
                    return found, lane
                end
            else
                line.behind = source
                if found.is_group and shard.groups > 0 then
                    calls.ahead, found.entry = calls.ahead - (source and 0 or 1), false
                end
                return found
            end
        end
    end

    -- The first gate in the order of a group, and the first lane there; nil: none.
    local function first_gate(line, group)
        if group.has_heads and not group.are_heads_read then
            group.are_heads_read, group.gates = true, group.gates or {} -- `list_gate` adds some
            advance(group.gates, new_source(groups.heads_key(group.number), PAGE))
        end
        local heap = group.gates
        while heap and heap[1] do
            local entry = pop(heap)
            if entry[4] then
                advance(heap, entry[4])
                list_head(line, entry[3])
            else
                local lane = lane_of(line, entry)
                if lane then
                    push(heap, entry)
                    return entry[3], lane
                end
            end
        end
    end

    -- Visits

    local function expected_cost(lane, tier_queue)
        return lane.mean > 0 and lane.mean or tier_queue.mean > 0 and tier_queue.mean
            or DEFAULT_MEAN
    end

    -- How far a virtual time advances by so many messages. `work`: what they are expected to cost,
    -- which decides in a tier that is fair by time.
    local function stride(tier_queue, weight, taken, work)
        if tier_queue.by_time then
            return fairness.stride_of_work(work, weight)
        end
        return fairness.stride(taken, weight)
    end

    -- How far a lane that waited at a gate may be behind its tier: a delivery of weight 1.
    local function credit(lane, tier_queue)
        return stride(tier_queue, 1, 1, expected_cost(lane, tier_queue))
    end

    -- Advance the virtual time of a lane or group by what it delivered. Returns the one that its
    -- order has reached.
    local function advance_time(entry, tier_queue, weight, taken, work, is_alone)
        local before = entry.vt
        entry.vt = before + stride(tier_queue, weight, taken, work)
        if not is_alone then
            return before
        end
        local one_chunk = fairness.chunk(taken, 2, weight)
        return fairness.reached(before, entry.vt, stride(tier_queue, weight, one_chunk, floor(work
            * one_chunk / taken)))
    end

    -- `permits`: those that the messages use together; `largest`: the most that one uses.
    local function charge(lane, tier_queue, policy, take, permits, largest, is_alone)
        lanes.before_move(lane)
        local group = lane.tier_queue < 0 and groups.find(-lane.tier_queue)
        local least = 0
        if lane.place == AT_GATE then
            least = group and group.inner_vt or tier_queue.vt
            lane.vt = max(lane.vt, least - credit(lane, tier_queue))
        end
        local reached = max(least, advance_time(lane, tier_queue, policy.weight, take, take
            * expected_cost(lane, tier_queue), is_alone))
        if group then
            group.inner_vt = reached
        else
            tier_queue.vt = reached
        end
        if policy.rate then
            local tat = lanes.tat_of(lane, policy)
            lane.admitted = fairness.next_permit(tat, 0, policy.step, policy.depth, 1)
            lane.tat = fairness.take_permits(tat, shard.now, policy.step, permits)
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
        tier_queue.vt = advance_time(group, tier_queue, group.weight, taken, work, is_alone)
        groups.touch(group)
    end

    -- What this call knows of a lane that it visited.
    local function given_by(lane)
        local given = calls.given[lane]
        if not given then
            given = { lane = lane, wanted = 0, picked = false, first = 0, count = 0, charge = 0,
                place = 0, packed_name = false, is_limited = false, gate = '' }
            calls.given[lane], calls.order[#calls.order + 1] = given, given
        end
        return given
    end

    -- defined below: they read messages
    local costs_of, next_of, next_within_limits

    -- How many of the lane's next messages the rates of lane and gates admit by their costs, the
    -- sum of these costs and the largest. What stops the first one waits for its permits: the lane,
    -- or else a gate.
    local function admit(given, policy, gate, most, mids)
        local lane, clocks, rated = given.lane, {}, {}
        if gate then
            clocks, rated = gates.clocks(gate)
        end
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
        elseif stopped and count == 0 then
            local short, before_gates = {}, policy.rate and 1 or 0
            for n, each in ipairs(rated) do
                if stopped[n + before_gates] then
                    short[#short + 1] = each
                end
            end
            local waited_at = lanes.waits_at(lane)
            lanes.before_turn(lane)
            turns.wait_for_permits(lane, short, is_turn, costs[1])
            if waited_at then
                has_moved(lane, waited_at)
            end
        end
        local permits, largest = 0, 1
        for n = 1, count do
            permits, largest = permits + costs[n], max(largest, costs[n])
        end
        return count, permits, largest
    end

    -- How many deliveries of the lane the gates of a key admit; 0 if one of them does not, or has
    -- others before it. Then the lane goes to wait there, if it was its turn where it waits.
    -- `in_order`: whether it is visited for that.
    local function room_at_gates(given, policy, key_of_gates, mids, in_order)
        local lane = given.lane
        local here, blocked, is_open_here, least = lanes.waits_at(lane), nil, true, math.huge
        for _, gate in ipairs(gates.of_key(key_of_gates)) do
            local room = turns.room_of(lane, gate)
            if not gate then -- the store lost it
                return 0
            elseif room == 0 or (in_order and gate.name ~= here and not gates.has_spare(gate, 0)
                and not is_turn(lane, gate)) then
                blocked = blocked or {}
                blocked[#blocked + 1] = gate
                is_open_here = is_open_here and gate.name ~= here
            end
            least = min(least, room)
        end
        if blocked and here and in_order and is_open_here then
            lanes.before_turn(lane)
            local cost = 1
            if lane.need > 0 then
                cost = min(costs_of(mids or next_of(given, 1), 1)[1],
                    (gates.largest_cost(key_of_gates, policy.largest_cost)))
            end
            turns.move(lane, blocked, is_turn, cost)
            has_moved(lane, here)
        end
        return blocked and 0 or least
    end

    -- Take these slots of keys. `folded`, `mids`: of these messages of a bucket, which are picked.
    local function take_slots(given, policy, slots, take, folded, mids)
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
            key_limits.take(given.lane, policy, slot, each)
        end
    end

    -- How many messages of the lane, at most `take`, all limits admit, the permits that these use
    -- together, and those of the largest. Their slots of keys are taken. Arguments as of `visit`.
    local function admitted(given, policy, gate, take, mids, folded, in_order)
        local lane, slots = given.lane, nil
        take = min(take, lanes.allowance(lane, policy))
        if policy.paused or (lane.is_rare and lane.back_off_until > shard.now) then
            take = 0
        end
        if calls.last_rank then
            take = min(take, count_ready(lane, given.wanted))
        end
        if gate and take > 0 then
            take = min(take, room_at_gates(given, policy, gate, mids, in_order))
        end
        if take > 0 and policy.key_limited then
            mids, slots = next_within_limits(given, policy, take, folded)
            take = #mids
        end
        local permits, largest = take, 1
        if take > 0 and lane.need > 0 and (policy.rate or gate) then
            take, permits, largest = admit(given, policy, gate, take, mids)
        end
        if take > 0 and slots then
            take_slots(given, policy, slots, take, folded, mids)
        end
        return take, permits, largest
    end

    -- Take as many messages from the lane as all limits admit, and charge the lane for them.
    -- `mids`: these, if they are not the lane's first ones. `folded`: only messages of this topic,
    -- in a bucket whose keys have limits. `in_order`: only if it is the lane's turn at its gates.
    local function visit(lane, tier_queue, room, count_of_lanes, mids, folded, in_order)
        local policy, given = lane.policy or lanes.policy_of(lane), given_by(lane)
        local is_limited, gate = lanes.is_limited(lane, policy), lanes.gate_of(lane, policy)
        local most = fairness.chunk(room, count_of_lanes, policy.weight)
        if is_limited then
            most = min(most, calls.startable)
        end
        local take, permits, largest = admitted(given, policy, gate, most, mids, folded, in_order)
        if take <= 0 then
            return 0
        end
        if is_limited then
            calls.startable = calls.startable - take
        end
        if gate then
            lanes.before_turn(lane)
            for _, each in ipairs(gates.of_key(gate)) do
                gates.take(each, lane, take, permits, largest)
                turns.advance(lane, each, take, policy.weight)
            end
        end
        charge(lane, tier_queue, policy, take, permits, largest, count_of_lanes <= 1)
        if policy.shared and lane.ready > 0 then
            local permit = gates.next_permit(lane.policy_name or lane.name)
            if permit > shard.now or lane.held_until > 0 then
                lanes.hold(lane, permit)
            end
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
        if calls.startable <= 0 and lanes.is_limited(lane, lanes.policy_of(lane)) then
            -- a lane that is passed over would starve behind a worker with a full buffer
            calls.withheld = true
            return 0, true
        end
        local got = visit(lane, tier_queue, room, count_of_lanes, nil, nil, true)
        calls.visited, calls.is_refused[lane] = calls.visited + 1, got == 0
        if got == 0 then
            calls.refused = calls.refused + 1
            if calls.refused >= MOST_REFUSED then
                calls.cut, calls.is_halted = true, true
            end
        end
        local has_more = got > 0 and lane.ready > 0 and lanes.allowance(lane, lane.policy) > 0
        if not has_more and lane.place == AT_GATE then
            calls.left_out[lane] = true
        end
        return got, has_more
    end

    -- Visit the first lane at a gate. If others do not admit it, it goes to one of them. Returns
    -- how much was taken.
    local function serve_gate(line, queue, lane, room, entries)
        if waits_for_others(queue, lane, room) then
            list_gate(line, queue)
            return 0
        end
        local tier_queue, group = line.tier_queue, lanes.group(lane)
        if group then
            room = fairness.chunk(room, entries, group.weight)
        end
        local got = serve_lane(lane, tier_queue, room, entries)
        if got > 0 and group then
            local before = tier_queue.vt
            group.vt = max(group.vt, before - credit(lane, tier_queue))
            charge_group(group, tier_queue, got, got * expected_cost(lane, tier_queue),
                entries <= 1)
            tier_queue.vt = max(tier_queue.vt, before)
        end
        local found = turns.of(lane)
        if not calls.withheld and found.waits ~= queue.gate.name then
            local moves = (calls.moves[lane] or 0) + 1
            calls.moves[lane] = moves
            if moves <= 2 * #gates.of_key(found.key) then
                calls.left_out[lane] = nil
            end
            for _, gate in ipairs(gates.of_key(found.key)) do
                if gate and (gate.name == found.waits or not gate.is_open) then
                    list_gate(line, queue_of(gate, tier_queue)) -- less may be held there
                end
            end
        end
        count_at(queue_of(gates.find(found.waits), tier_queue), lane, true)
        list_gate(line, queue)
        return got
    end

    -- Visit runnable lanes of a group, in their order, for as many messages as a lane of the
    -- group's weight would get. Among many lanes and groups a visit of a lane takes as many as
    -- without groups. Returns how much was taken, and whether the group has more.
    local function serve_runnable(group, tier_queue, room, entries)
        if calls.may_pass and calls.may_pass <= 0 and not group.line then
            if group.listed_in and calls.begins[group.listed_in] ~= SEEN then
                stop_at(group.listed_in, group.position)
            end
            return 0, false
        end
        local taken, work, refusing = 0, 0, 0
        local count_of_lanes = group.runnable > 1 and max(group.runnable, entries) or 1
        room = fairness.chunk(room, entries, group.weight)
        while taken < room and refusing < MOST_REFUSING and not is_over() and has_runnable(group) do
            local line = group.line
            local entry = pop(line.heap)
            local lane = entry[3]
            line.behind = entry[4]
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
        group.is_refusing = taken == 0
        local line = group.line
        return taken, taken > 0 and line and (line.heap[1] ~= nil or line.behind ~= nil)
    end

    -- Visit a group: its runnable lanes, or the gate with its first lane. It is put back if it has
    -- more. Returns how much was taken.
    local function serve_group(line, group, room, entries)
        group.entry, line.groups[group] = true, true -- nobody else puts it back
        local queue, lane, got, has_more = nil, nil, nil, nil
        if group.gates or group.has_heads then
            queue, lane = first_gate(line, group)
        end
        if lane and (not has_runnable(group) or before({ lane.vt, lane.number },
            group.line.heap[1])) then
            got = serve_gate(line, queue, lane, room, entries)
            has_more = has_runnable(group)
        else
            got, has_more = serve_runnable(group, line.tier_queue, room, entries)
        end
        group.entry = false
        if has_more or (group.gates and group.gates[1]) then
            push_group(line, group)
        end
        return got
    end

    -- Count no more the groups whose runnable lanes deliver nothing more.
    local function count_groups(line)
        for group in pairs(line.groups) do
            if not has_runnable(group) then
                line.groups[group] = nil
                line.known.runnable = line.known.runnable - (group.runnable > 0 and 1 or 0)
            end
        end
    end

    -- Take up to `room` messages from the line; less, if it has no more or if the worker cannot
    -- start the next one yet.
    local function serve(line, room)
        local most, taken = room + calls.others, 0
        count_groups(line)
        local entries = min(count(line.tier_queue, most, line.known), most)
        calls.for_others = calls.left - room
        calls.visited = calls.visited + 1 -- others may have been served
        local yielding = line.yielding -- look again at the gates where it was another tier's turn
        line.yielding = {}
        for queue in pairs(yielding) do
            list_gate(line, queue)
        end
        while taken < room and not is_over() do
            local found, lane = next_of_line(line)
            if not found then
                break
            elseif lane then
                taken = taken + serve_gate(line, found, lane, room - taken, entries)
            elseif shard.groups > 0 and found.is_group then
                taken = taken + serve_group(line, found, room - taken, entries)
            else
                local got, has_more = serve_lane(found, line.tier_queue, room - taken, entries)
                taken = taken + got
                if has_more then
                    push(line.heap, { found.vt, found.number, found })
                else
                    line.known.runnable = line.known.runnable - 1
                end
            end
        end
        return taken
    end

    -- Serve each entry the part that it was given; returns what they took. Entries that cannot use
    -- their part are no longer `working`, and are marked if it is the turn of others at a gate.
    local function serve_parts(entries)
        local everything = 0
        for _, entry in ipairs(calls.entries) do
            entry.left = 0
        end
        for _, entry in ipairs(entries) do
            entry.left = entry.given
        end
        for _, entry in ipairs(entries) do
            if entry.given > 0 then
                entry.line = entry.line or begin_line(entry.tier_queue, entry.given)
                calls.has_yielded = false
                local taken = serve(entry.line, entry.given)
                entry.left = entry.given - taken
                everything = everything + taken
                entry.taken = taken > 0 and (entry.taken or 0) + taken or entry.taken
                entry.waits = entry.waits and taken == 0
                if is_over() then
                    break
                elseif taken < entry.given then
                    entry.is_empty, entry.has_yielded = true, calls.has_yielded
                    entry.waits = entry.waits or calls.has_yielded
                end
            end
        end
        return everything
    end

    -- The tier queue of a tier that the call serves.
    local function served_queue(pool, tier)
        return (not calls.tiers or calls.tiers[tier.name]) and tier_queues.find(pool, tier.name)
    end

    -- Those of the entries that are in a set, in their order.
    local function chosen(entries, set)
        local found = {}
        for _, entry in ipairs(entries) do
            found[#found + 1] = set[entry] and entry or nil
        end
        return found
    end

    -- Serve tiers by their shares; `active`: those with work. One that lets others go first at a
    -- gate, and is not served after that, waits for the gate, not for the slots of workers, and
    -- keeps no larger claim to them.
    local function serve_by_shares(entries, active, room)
        local yielded = {}
        while room > 0 and (#active > 0 or next(yielded) ~= nil) and not is_over() do
            if #active == 0 then -- nobody took what they left
                active, yielded, calls.yields = chosen(entries, yielded), {}, false
            end
            local step = room
            if #active > 1 and calls.startable < room then
                step = calls.startable > 0 and calls.startable or min(room, STEP)
            end
            fairness.set_carries(entries)
            fairness.split(step, active)
            local taken, left = serve_parts(active), {}
            room = room - taken
            if taken > 0 then -- it may be their turn now
                left, yielded = yielded, {}
            end
            for _, entry in ipairs(active) do
                if not entry.is_empty or (taken > 0 and entry.has_yielded) then
                    left[entry] = true
                elseif entry.has_yielded then
                    yielded[entry] = true
                end
                entry.is_empty = false
            end
            active = chosen(entries, left)
        end
        for _, entry in ipairs(entries) do
            entry.working = false
        end
        for _, entry in ipairs(active) do
            entry.working = not entry.waits
        end
        fairness.set_carries(entries)
        -- a call that passes lanes over does not change the tiers' carries
        for _, entry in ipairs(calls.may_pass and {} or entries) do
            entry.tier_queue.carry = entry.kept
        end
    end

    -- Serve strict tiers first, then the others by their shares. What a tier cannot use is divided
    -- among the others.
    local function serve_pool(pool, room)
        for _, tier in ipairs(tiers) do
            local tier_queue = served_queue(pool, tier)
            if tier_queue and tier.strict then
                room = room - serve(begin_line(tier_queue, room), room)
                if is_over() then
                    return
                end
            end
        end
        local entries, active = calls.entries, {}
        for _, tier in ipairs(tiers) do
            local tier_queue = served_queue(pool, tier)
            if tier_queue and not tier.strict then
                local entry = { share = tier.share, carry = tier_queue.carry, left = 0,
                    tier_queue = tier_queue, working = true }
                entries[#entries + 1] = entry
                local known = {}
                if count(tier_queue, 1, known) > 0 then
                    active[#active + 1] = entry
                end
                calls.has_runnable = calls.has_runnable or known.runnable > 0
            end
        end
        serve_by_shares(entries, active, room)
    end

    -- The first ready messages of one topic in a bucket, less the `picked` ones.
    local function folded_ones(topic, picked, most)
        local mids, seen = {}, {}
        for _, mid in ipairs(picked) do
            seen[mid] = true
        end
        local from, behind = '[r', '(s'
        if calls.last_rank then
            from = from .. messages.rank_code(calls.first_rank)
            behind = '(r' .. messages.rank_code(calls.last_rank + 1)
        end
        for _, member in ipairs(call('ZRANGE', key('t:' .. topic), from, behind, 'BYLEX', 'LIMIT',
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
        if lanes.policy_of(lane).key_limited then
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
            for _, lane in ipairs(lanes.of_topic(topic, policies.of(topic))) do
                if room > 0 and tier_queues[lane.tier_queue].pool == pool
                    and lanes.can_deliver(lane) then
                    if calls.startable <= 0 and lanes.is_limited(lane, lanes.policy_of(lane)) then
                        calls.withheld = true
                        return
                    end
                    room = room - (lane.is_bucket and visit_folded(lane, topic, room)
                        or visit_alone(lane, room))
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

    -- The numbers of the first messages of a lane, in its order; how many of them are plain, and
    -- how many are in the sorted set.
    local function first_of(lane, wanted)
        local listed = plain.peek(lane, wanted)
        if lane.sorted == 0 then
            return listed, #listed, 0
        end
        local in_set, stored, sorted = lanes.key_of('z', lane), read_many(keys.m, listed), nil
        if calls.last_rank then -- its first ones may have a smaller rank than the call delivers
            sorted = call('ZRANGE', in_set, '[' .. messages.rank_code(calls.first_rank), '+',
                'BYLEX', 'LIMIT', 0, wanted)
            listed = takes_plain_ones() and listed or {}
        else
            sorted = call('ZRANGE', in_set, 0, wanted - 1)
        end
        local found, p, s = {}, 1, 1
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
        return found, p - 1, s - 1
    end

    -- Take the first messages out of a lane that has not only plain ones, and append their numbers
    -- to a list.
    local function fetch(lane, wanted, mids)
        local found, plain_ones, others = first_of(lane, wanted)
        plain.drop(lane, plain_ones)
        if others > 0 then
            local in_set = lanes.key_of('z', lane)
            local before = calls.last_rank
                and call('ZLEXCOUNT', in_set, '-', '(' .. messages.rank_code(calls.first_rank)) or 0
            call('ZREMRANGEBYRANK', in_set, before, before + others - 1)
            lane.sorted = lane.sorted - others
        end
        for n = 1, #found do
            mids[#mids + 1] = found[n]
        end
    end

    -- The numbers of the lane's next messages, after those that this call takes already.
    function next_of(given, most)
        local found, mids = first_of(given.lane, given.wanted + most), {}
        for n = given.wanted + 1, #found do
            mids[#mids + 1] = found[n]
        end
        return mids
    end

    -- The slots of the keys of stored messages (false: none), from a position on. Their states are
    -- read at once.
    local function slots_in(lane, mids, records, first)
        local slots, wanted = {}, {}
        for n = first, #records do
            slots[n] = records[n] and key_limits.slot_for(lane, messages.take(mids[n], records[n]))
                or false
            wanted[#wanted + 1] = slots[n] or nil
        end
        writes.load_fields(keys.key_states, wanted)
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
            local slots_of = slots_in(lane, mids, records, first)
            for n = first, #mids do
                local mid, stored, slot = mids[n], records[n], slots_of[n]
                if #found == most then
                    break
                elseif calls.last_rank and stored and messages.take(mid, stored).rank
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
            costs[n] = stored and messages.cost_in(messages.take(wanted[n], stored).headers) or 1
        end
        return #costs > 0 and costs or { 1 }
    end

    -- The numbers and records of all messages, lane by lane.
    local function fetch_all()
        local mids = {}
        for _, given in ipairs(calls.order) do
            if given.wanted > 0 then
                local lane = given.lane
                given.first = #mids
                if given.picked then
                    for _, mid in ipairs(given.picked) do
                        call('ZREM', lanes.key_of('z', lane), messages.place_of(messages.read(mid)))
                        lane.sorted, mids[#mids + 1] = lane.sorted - 1, mid
                    end
                elseif lane.sorted == 0 then
                    plain.take(lane, given.wanted, mids)
                else
                    fetch(lane, given.wanted, mids)
                end
                given.count = #mids - given.first
            end
        end
        return mids, read_many(keys.m, mids)
    end

    -- Leases

    local out -- what the call answers and writes

    local function deadline_of(policy)
        return shard.now + min(policy.lease, calls.max_lease)
    end

    local function uncount(lane, policy)
        lane.leased, lane.delivered = lane.leased - 1, lane.delivered - 1
        shard.delivered = shard.delivered - 1
        gates.free(lanes.gate_of(lane, policy) or '')
    end

    -- What is behind the fence of a lease. `quick`, `line`, `slot`: see settling.lua; false: none.
    local function tail_of(given, policy, quick, line, slot)
        local rest, is_shared = nil, false
        if not (line or slot) then
            -- lanes of a policy share their gates, except those of groups with limits
            is_shared = given.charge == 0 and given.gate == (policy.gate or '')
            rest = is_shared and out.tails[quick][policy]
        end
        if not rest then
            rest = settling.tail(deadline_of(policy), shard.now, given.charge, false, given.gate,
                false, line, false, quick, calls.holder, slot)
            if is_shared then
                out.tails[quick][policy] = rest
            end
        end
        given.packed_name = given.packed_name or packed(given.lane.name)
        return given.packed_name .. rest
    end

    -- `line`: the serial key that the message holds from now on; false: none.
    local function add_lease(deadline, mid, stored, tail, line)
        -- leases that end at the same time are one event, see settling.lua
        local leases, found, ends = out.leases, out.messages, out.ends[deadline] or {}
        out.ends[deadline] = ends
        local n, m, e, fence = #leases, #found, #ends, shard.fence + 1
        shard.fence, shard.leased = fence, shard.leased + 1
        leases[n + 1], leases[n + 2] = mid, pack(settling.LEASE, 207, fence, tail)
        found[m + 1], found[m + 2] = mid, stored
        ends[e + 1], ends[e + 2] = mid, fence
        if line then
            messages.set_holder(line, mid, true)
        end
    end

    -- What is behind the fence of a message's lease. An ack needs no more of most messages than
    -- their serial key.
    local function tail_for(given, policy, deadline, record, line, slot)
        local lane, is_once = given.lane, policy.at_most_once
        local is_recorded = record.suspect and calls.record_start
        if is_once or is_recorded then
            return packed(lane.name) .. settling.tail(deadline, shard.now, given.charge,
                is_recorded, lanes.gate_of(lane, policy) or '', is_once, is_once and line, false,
                false, calls.holder, slot)
        end
        local has_more = record.id or record.sticky or record.parts > 0 or record.joined > 0
            or record.mirrored
        return tail_of(given, policy, not (line or has_more), not (slot or has_more) and line, slot)
    end

    -- Deliver a message that is not plain, or that is deleted at its delivery.
    local function deliver_record(given, policy, deadline, record, stored, slot)
        local lane, mid = given.lane, record.mid
        messages.leave(lane, record)
        -- housekeeping has not come to it yet
        if record.expires and record.expires <= shard.now then
            uncount(lane, policy)
            key_limits.free(lane, slot)
            key_limits.leave(lane, record)
            messages.expire(lane, record)
            return
        end
        tallies.waited(lane, record.since, record.since)
        local line = messages.line(record)
        add_lease(deadline, mid, stored, tail_for(given, policy, deadline, record, line, slot),
            line)
        messages.mirror(lane, record, 'l')
        local bodies = record.parts > 0 and call('LRANGE', key('b:' .. text(mid)), 0, -1)
            or record.mkey and policy.merge == 'all' and {}
        if bodies then
            local n = #out.bodies
            out.bodies[n + 1], out.bodies[n + 2] = #out.messages / 2 - 1, bodies
        end
        if policy.at_most_once then -- it is deleted now; its lease holds the slots
            lane.done, shard.done = lane.done + 1, shard.done + 1
            ids.finish(record, true)
            messages.keep_finished(record)
            messages.remove(lane, record)
        end
    end

    -- Deliver the messages of one visit. Plain ones are not decoded: this is the innermost loop.
    local function deliver_visit(given, policy, deadline, mids, records, first, last)
        local lane, size, plain_ones = given.lane, 0, 0
        local tail, tail_is_quick, first_since = nil, nil, nil
        local is_once, is_key_limited = policy.at_most_once, policy.key_limited
        for place = first, last do
            local mid, stored = mids[place], records[place]
            local kind = stored and byte(stored)
            local slot = kind and is_key_limited
                and key_limits.slot_for(lane, messages.take(mid, stored))
            -- the lane counted a message that does not exist: the doctor repairs the count
            if not kind then
                uncount(lane, policy)
            elseif kind == RICH or is_once then
                deliver_record(given, policy, deadline, messages.take(mid, stored), stored, slot)
            else
                local is_quick = kind == PLAIN
                if slot then
                    tail, tail_is_quick = tail_of(given, policy, is_quick, false, slot), nil
                elseif is_quick ~= tail_is_quick then
                    tail, tail_is_quick = tail_of(given, policy, is_quick, false), is_quick
                end
                size = size + #stored - 10 - unpack_from('>I2', stored, 2)
                plain_ones = plain_ones + 1
                local since = unpack_from('>I7', stored, #stored - 6)
                first_since = first_since or since
                tallies.waited(lane, since, first_since)
                add_lease(deadline, mid, stored, tail, false)
            end
        end
        lane.bytes, shard.bytes = lane.bytes - size, shard.bytes - size
        shard.waiting = shard.waiting - plain_ones
    end

    -- Read at once which messages have the merge keys of those that are delivered.
    local function load_merging(mids, records)
        local wanted = {}
        for _, given in ipairs(calls.order) do
            local count = given.lane.policy.merge and given.count or 0
            for place = given.first + 1, given.first + count do
                local stored = records[place]
                local record = stored and byte(stored) == RICH
                    and messages.take(mids[place], stored)
                if record and record.mkey then
                    wanted[#wanted + 1] = record.topic .. '\0' .. record.mkey
                end
            end
        end
        writes.load_fields(keys.merge, wanted)
    end

    local function deliver_all(visits)
        local mids, records = fetch_all()
        load_merging(mids, records)
        out = { leases = {}, ends = {}, runs = {}, messages = {}, bodies = {},
            tails = { [true] = {}, [false] = {} } }
        for _, given in ipairs(calls.order) do
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
        call_many('HSET', keys.l, out.leases, 2)
        for deadline, entries in pairs(out.ends) do
            settling.expect(deadline, entries)
        end
    end

    -- Choose what is delivered: the visits, in the order of their deliveries.
    local function choose(topics, pool, room)
        if topics then
            serve_topics(topics, pool, room)
            return calls.visits
        end
        serve_pool(pool, room)
        return mixed(calls.visits)
    end

    -- Serve only what the filter of the call names.
    local function set_filter(only)
        calls.begins, calls.may_pass = only.begins, only.may_pass
        calls.first_rank, calls.last_rank = only.first_rank, only.last_rank
        calls.stopped, calls.seen, calls.is_read = {}, {}, {}
        calls.only = only.patterns and {}
        for _, pattern in ipairs(only.patterns or {}) do
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
        if calls.begins[NAMES] and only.ranges and only.ranges[1] then
            read_by_name(only.ranges)
        end
    end

    -- Choose, fetch and lease up to `room` messages. Returns number and record of each, flat; runs
    -- of {how many in a row, when their leases end, whether they are limited}, flat; {position,
    -- further bodies} of messages that have some, flat; the first fence; whether lanes were left
    -- out; whether lanes were passed over; whether the call ended early, because keys at their
    -- limits have parked much or many lanes could deliver nothing; what `next_begins` returns.
    -- `only`: {patterns, as `lease.lua` gets them, or false, where the lanes' order begins, the
    -- most lanes to pass over, the largest and the smallest rank or nil, ranges of names that all
    -- its lanes have or nil}, or nil.
    -- `max_lease`: the longest lease in microseconds, or nil.
    -- `others`: how many messages the other calls of the same lease ask for, or nil: visits take as
    -- many as if one call delivered all. `holder`: who holds the leases; nil: a worker.
    function serving.lease(room, pool, topics, startable, record_start, only, max_lease, others,
        holder)
        calls = { room = room, others = others or 0, left = room,
            startable = startable, record_start = record_start,
            visits = {}, order = {}, given = {}, withheld = false,
            -- what a visit of weight 1 takes: as many lanes of a group are read with it
            chunk = CHUNK, cut = false, parked = 0,
            -- lanes that wait in the heap behind open gates, and those that could deliver nothing
            ahead = 0, refused = 0, visited = 0, is_halted = false,
            -- by gate and tier queue, see `queue_of`; those that lanes have come to; lanes at gates
            -- that deliver nothing more; how often lanes have moved
            queues = {}, offered = {}, came_to = {}, left_out = {}, moves = {}, is_refused = {},
            -- the tier queues with shares, what they are owed, and how many messages of their parts
            -- are left; whether lanes of theirs wait only for the slots of workers
            entries = {}, has_runnable = false, missed = {}, yields = true, has_yielded = false,
            passed_over = false, max_lease = max_lease or math.huge, holder = holder or '' }
        at_next_begin(reset)
        if only then
            set_filter(only)
        end
        gates.save()
        messages.save() -- housekeeping's changes are read from the store
        local first = last_fence() + 1
        deliver_all(choose(topics, pool, room))
        lanes.place_all(calls.missed)
        for _, given in ipairs(calls.order) do
            lanes.place(given.lane, true, calls.is_refused[given.lane])
        end
        messages.save()
        gates.save()
        -- what a worker leaves for its common slots is no news for others
        local is_left = calls.passed_over and not calls.is_common
        return out.messages, out.runs, out.bodies, first, calls.withheld or is_left,
            calls.passed_over, calls.cut, next_begins()
    end

    -- Whether something could be leased in the pool now.
    function serving.has_work(pool, topics)
        if not topics then
            for _, tier_queue in ipairs(tier_queues) do
                if tier_queue.pool == pool and count(tier_queue, 1, {}) > 0 then
                    return true
                end
            end
            return false
        end
        for _, topic in ipairs(topics) do
            for _, lane in ipairs(lanes.of_topic(topic, policies.of(topic))) do
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
