-- Hashes and sorted sets as this call sees them: fields that were read once, and changes that are
-- written together. A command for each of them would cost more than all else that is done with
-- most messages and lanes.
--
-- Changes of a key are written when the call ends, or before a command of `call` names the key.

local writes = part(function(writes)
    local members = {} -- by key: the score of each changed member; false: it is removed
    local fields = {}  -- by key: the value of each field that was read or changed; false: none
    local changed = {} -- by key: the fields that were changed

    local function reset()
        if next(held_keys) ~= nil then -- not if everything was written
            held_keys, members, fields, changed = {}, {}, {}, {}
        end
    end

    function writes.set_member(name, member, score)
        local scores = members[name]
        if not scores then
            at_next_begin(reset)
            scores = {}
            members[name], held_keys[name] = scores, true
        end
        scores[member] = score or false
    end

    -- Whether a member was removed and this is not written yet.
    function writes.is_removed(name, member)
        return members[name] ~= nil and members[name][member] == false
    end

    -- The score of a member, or false.
    function writes.score(name, member)
        local score = members[name] and members[name][member]
        if score == nil then
            score = tonumber(run('ZSCORE', name, member) or nil)
        end
        return score or false
    end

    local function write_members(name)
        local scores = members[name]
        local one, score_of_one = next(scores)
        if score_of_one and next(scores, one) == nil then -- as most often
            run('ZADD', name, score_of_one, one)
            return
        end
        local added, gone = {}, {}
        for member, score in pairs(scores) do
            if score then
                local n = #added
                added[n + 1], added[n + 2] = score, member
            else
                gone[#gone + 1] = member
            end
        end
        run_many('ZADD', name, added, 2)
        run_many('ZREM', name, gone, 1)
    end

    local function fields_of(name)
        local values = fields[name]
        if not values then
            at_next_begin(reset)
            values = {}
            fields[name], held_keys[name] = values, true
        end
        return values
    end

    -- The value of a field; false: none.
    function writes.field(name, field)
        local values = fields_of(name)
        local value = values[field]
        if value == nil then
            value = run('HGET', name, field)
            values[field] = value
        end
        return value
    end

    -- Read several fields of one hash at once. Returns the values of all that are known.
    function writes.load_fields(name, wanted)
        local values = wanted[1] and fields_of(name) or {}
        local missing = unknown_in(values, wanted)
        for n, value in ipairs(read_many(name, missing, run)) do
            values[missing[n]] = value
        end
        return values
    end

    -- Change a field; false: delete it.
    function writes.set_field(name, field, value)
        fields_of(name)[field] = value
        local names = changed[name]
        if not names then
            names = {}
            changed[name] = names
        end
        names[field] = true
    end

    -- A small hash whose values have 64 bytes or less is a list, which is slow to search: a call
    -- with many keys would take most of its time for that. One longer value makes it a table for
    -- as long as the hash exists.
    local MANY = 8
    local SPACES = '                                                                '

    -- What readers of a hash ignore behind a value.
    local function padding_of(name)
        if name == keys.merge then
            return SPACES
        end
        return (name == keys.keys or name == keys.key_states) and packed(SPACES)
    end

    local function write_fields(name, names)
        local values, one = fields[name], next(names)
        if next(names, one) == nil then
            if values[one] then
                run('HSET', name, one, values[one])
            else
                run('HDEL', name, one)
            end
            return
        end
        local set, gone = {}, {}
        for field in pairs(names) do
            local value = values[field]
            if value then
                local n = #set
                set[n + 1], set[n + 2] = field, value
            else
                gone[#gone + 1] = field
            end
        end
        if #set >= 2 * MANY then
            local more = padding_of(name)
            if more then
                set[2] = (type(set[2]) == 'number' and text(set[2]) or set[2]) .. more
            end
        end
        run_many('HSET', name, set, 2)
        run_many('HDEL', name, gone, 1)
    end

    -- Write the changes of one key, and forget what was read of it.
    function write_held(name)
        if members[name] then
            write_members(name)
            members[name] = nil
        elseif fields[name] then
            if changed[name] then
                write_fields(name, changed[name])
            end
            fields[name], changed[name] = nil, nil
        end
        held_keys[name] = nil
    end

    function writes.save()
        for name in pairs(members) do
            write_members(name)
        end
        for name, names in pairs(changed) do
            write_fields(name, names)
        end
        reset()
    end
end)
