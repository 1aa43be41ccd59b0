-- Groups: lanes of a tier queue that compete as one. Example: group_queues.py. A group is an
-- entry of the same indexes as lanes: in `run:P` of its tier queue P while it has runnable lanes,
-- and in `heads:P` while one of its lanes is the first at an open gate, by its own virtual time
-- `vt`; these gates are in `heads:-N` for the group's number N. It is in `gate:P:NAME` by its turn
-- there while it has lanes that wait at that gate. Its lanes are in `run:-N` and `gate:-N:NAME`,
-- and have -N as their tier queue. A group has a record (hash `group_queues`, by number) as long as
-- it has lanes; `group_numbers` has the numbers by tier queue and name.
--
-- `inner_vt`: the virtual time of the lane that was served last in it; `size`, `runnable`: how many
-- lanes it has, and how many of them are. `group_turns:N` has for each gate that its lanes have
-- waited at: the group's turn, that of its lane served last, how many lanes wait there.

local GROUP = '\29' -- before the names of groups where they are beside lanes
local TOPIC_GATE = '\28' -- before the name of a topic in that of the gate that its partitions share

local groups = part(function(groups)
    local known, changed = {}, {}
    local changed_turns = {} -- gates at which the state of a group has changed: {group, name}
    local linked = {} -- numbers of lanes in groups, as keys of `tier_queues`

    local function reset()
        for n = 1, #linked do
            rawset(tier_queues, linked[n], nil)
        end
        known, changed, changed_turns, linked = {}, {}, {}, {}
    end

    -- By template: literals and numbers of parts of topics in turn.
    local KINDS = 1000
    local templates, kinds = {}, 0

    local function pieces_of(template)
        local pieces, at = {}, 1
        while true do
            local first, last, number = find_in(template, '{(%d+)}', at)
            pieces[#pieces + 1] = sub(template, at, (first or 0) - 1)
            if not first then
                return pieces
            end
            pieces[#pieces + 1] = tonumber(number)
            at = last + 1
        end
    end

    local function part_of(topic, number)
        for each in string.gmatch(match(topic, '^[^#]*') .. '.', '([^.]*)%.') do
            if number == 0 then
                return each
            end
            number = number - 1
        end
    end

    -- The group of a topic; false: none. The same as `topic_groups.group_of`.
    function groups.name_for(template, topic)
        local pieces = templates[template]
        if not pieces then
            if kinds >= KINDS then
                templates, kinds = {}, 0
            end
            pieces = pieces_of(template)
            templates[template], kinds = pieces, kinds + 1
        end
        local name = pieces[1]
        for n = 2, #pieces, 2 do
            local found = part_of(topic, pieces[n])
            if not found or found == '' or found == '*' then
                return false
            end
            name = name .. found .. pieces[n + 1]
        end
        return name
    end

    local function new(number, name, tier_queue, vt)
        return { number = number, name = name, tier_queue = tier_queue, vt = vt, inner_vt = 0,
            size = 0, runnable = 0, weight = 1, has_heads = false, is_limited = false,
            is_group = true, listed_at = false, heads_at = false, turns = {},
            -- of this call: how it is listed beside lanes, its index; what serving.lua has done
            member = false, position = false, listed_in = false, first =
                false, line = false, gates = false, are_heads_read = false, entry = false }
    end

    local function decode(number, stored)
        local name, tier_queue, vt, inner_vt, size, runnable, weight, has_heads, is_limited
            = values_of(stored)
        local group = new(number, name, tier_queue, vt)
        group.inner_vt, group.size, group.runnable, group.weight, group.has_heads,
            group.is_limited = inner_vt, size, runnable, weight, has_heads, is_limited
        group.listed_at, group.heads_at = runnable > 0 and vt, has_heads and vt
        return group
    end

    function groups.load(numbers)
        at_next_begin(reset)
        local wanted = unknown_in(known, numbers)
        for n, stored in ipairs(read_many(keys.group_queues, wanted)) do
            known[wanted[n]] = stored and decode(wanted[n], stored)
        end
    end

    -- The group of a number; nil: the store lost it.
    function groups.find(number)
        if known[number] == nil then
            groups.load({ number })
        end
        return known[number] or nil
    end

    -- The number of a lane in a group names the tier queue of that group.
    function TIER_QUEUES.__index(_, number)
        if type(number) == 'number' and number < 0 then
            local group = groups.find(-number)
            local found = rawget(tier_queues, group and group.tier_queue or 1)
            if group then
                rawset(tier_queues, number, found)
                linked[#linked + 1] = number
            end
            return found
        end
    end

    local function field_of(group)
        return group.tier_queue .. ':' .. group.name
    end

    function groups.touch(group)
        changed[group] = true
    end

    -- The limits in force: those of a gate as a whole, each setting of a group by itself.
    function groups.settings(name, code, operator)
        if not (code and operator) or string.byte(name) ~= 29 then
            return operator or code or { false, false, false, false }
        end
        local rated = operator[1] and operator or code
        return { rated[1], rated[2], operator[3] or code[3], operator[4] or code[4] }
    end

    local function apply(group, code, operator)
        local settings = groups.settings(GROUP, code, operator)
        group.weight = settings[4] or 1
        group.is_limited = (settings[1] or settings[3]) and true or false
    end

    -- The settings of the groups of this name were changed.
    function groups.set_up(name, code, operator)
        for number = 1, #tier_queues do
            local found = writes.field(keys.group_numbers, number .. ':' .. name)
            local group = found and groups.find(tonumber(found))
            if group then
                apply(group, code, operator)
                changed[group] = true
            end
        end
    end

    -- The group of a name in a tier queue, made if it does not exist. It is numbered like a lane.
    function groups.of(tier_queue, name)
        local number = writes.field(keys.group_numbers, tier_queue.number .. ':' .. name)
        local group = number and groups.find(tonumber(number))
        if not group then
            shard.lanes_created, shard.groups = shard.lanes_created + 1, shard.groups + 1
            group = new(shard.lanes_created, name, tier_queue.number, tier_queue.vt)
            local settings = call('HGET', keys.gates, GROUP .. name)
            if settings then
                apply(group, values_of(settings))
            end
            at_next_begin(reset)
            known[group.number] = group
            writes.set_field(keys.group_numbers, field_of(group), text(group.number))
        end
        return group
    end

    -- How it is listed beside lanes.
    function groups.member(group)
        if not group.member then
            group.member = sortable(group.number) .. GROUP .. group.name
        end
        return group.member
    end

    function groups.runnable_key(number)
        return key('run:-' .. text(number))
    end

    -- Lanes joined the group; negative: they left. A group without lanes is forgotten.
    function groups.add_lanes(group, count)
        group.size = group.size + count
        changed[group] = true
        if group.size <= 0 then
            writes.set_field(keys.group_numbers, field_of(group), false)
            known[group.number] = false
            shard.groups = shard.groups - 1
        end
    end

    -- A lane of the group became runnable, or is no longer.
    function groups.count(group, was_runnable, is_runnable)
        if is_runnable ~= was_runnable then
            group.runnable = group.runnable + (is_runnable and 1 or -1)
        end
        changed[group] = true
    end

    local function turns_key(group)
        return key('group_turns:' .. text(group.number))
    end

    -- The group's state at a gate: its own turn, that of its lane served last, and how many of its
    -- lanes wait there.
    function groups.at(group, gate)
        local found = group.turns[gate]
        if not found then
            local stored = call('HGET', turns_key(group), gate)
            local turn, inner, count = 0, 0, 0
            if stored then
                turn, inner, count = values_of(stored)
            end
            found = { turn = turn, inner = inner, lanes = count, is_changed = false }
            group.turns[gate] = found
        end
        return found
    end

    function groups.touch_at(group, gate)
        local found = groups.at(group, gate)
        if not found.is_changed then
            found.is_changed = true
            changed_turns[#changed_turns + 1] = { group, gate }
        end
    end

    -- Write what has changed of groups at gates. `moved(gate, tier_queue)` is called for each gate
    -- where the order changes.
    function groups.save_turns(moved)
        for n = 1, #changed_turns do
            local group, gate = changed_turns[n][1], changed_turns[n][2]
            local found, is_gone = group.turns[gate], group.size <= 0
            found.is_changed = false
            writes.set_member(key('gate:' .. group.tier_queue .. ':' .. gate), groups.member(group),
                not is_gone and found.lanes > 0 and found.turn)
            moved(gate, group.tier_queue)
            if not is_gone then
                call('HSET', turns_key(group), gate, packed(found.turn, found.inner, found.lanes))
            end
        end
        if changed_turns[1] then
            changed_turns = {}
        end
    end

    -- The gates at which the first lane is one of this group: by its virtual time in the group.
    function groups.heads_key(number)
        return key('heads:-' .. text(number))
    end

    -- One of these gates changed.
    function groups.head_moved(group)
        group.has_heads = call('EXISTS', groups.heads_key(group.number)) == 1
        changed[group] = true
    end

    -- Write what changed, after the heads of gates.
    function groups.save()
        if next(changed) == nil then
            return
        end
        for group in pairs(changed) do
            local member, is_gone = groups.member(group), group.size <= 0
            local tier_queue = tier_queues[group.tier_queue]
            local listed_at = not is_gone and group.runnable > 0 and group.vt
            local heads_at = not is_gone and group.has_heads and group.vt
            if listed_at ~= group.listed_at then
                writes.set_member(tier_queue.runnable, member, listed_at)
                group.listed_at = listed_at
            end
            if heads_at ~= group.heads_at then
                writes.set_member(tier_queue.heads, member, heads_at)
                group.heads_at = heads_at
            end
            if is_gone then
                call('UNLINK', turns_key(group), groups.heads_key(group.number))
            end
            writes.set_field(keys.group_queues, group.number, not is_gone and packed(group.name,
                group.tier_queue, group.vt, group.inner_vt, group.size, group.runnable,
                group.weight, group.has_heads, group.is_limited))
        end
        changed = {}
    end
end)
