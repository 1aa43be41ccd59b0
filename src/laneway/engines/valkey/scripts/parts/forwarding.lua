-- Batches of spools: each is stored once, however often it is repeated.
--
-- forwarded: spool → {batch, time, keys}: which messages of its last batch this shard has taken.
-- A new spool looks at a few others, and forgets those that are too old: so their number stays in
-- proportion to the spools in use, without an index. The field '' has the place of the next look.

local forwarding = part(function(forwarding)
    local FORWARDED = 400 * 86400 * 1000000 -- as engines/base/constants.py
    local LOOKS = 3
    local KEY_BYTES = 16 -- in hexadecimal digits, because packed values have no bytes

    local function forget_old()
        local cursor = call('HGET', keys.forwarded, '') or '0'
        local page = call('HSCAN', keys.forwarded, cursor, 'COUNT', LOOKS)
        local found = page[2]
        for n = 1, #found, 2 do
            if found[n] ~= '' then
                local _, at = values_of(found[n + 1])
                if at < shard.now - FORWARDED then
                    call('HDEL', keys.forwarded, found[n])
                end
            end
        end
        call('HSET', keys.forwarded, '', page[1])
    end

    local function set_of(taken)
        local set = {}
        for first = 1, #taken, KEY_BYTES do
            set[string.sub(taken, first, first + KEY_BYTES - 1)] = true
        end
        return set
    end

    local function write(spool, batch, at, taken)
        call('HSET', keys.forwarded, spool, packed(batch) .. packed(at) .. packed(taken))
    end

    -- The last batch of a spool, its time, and the keys of its messages that were taken, joined;
    -- nil: the spool has sent none.
    local function read(spool)
        local stored = call('HGET', keys.forwarded, spool)
        if stored then
            return values_of(stored)
        end
    end

    -- Remember what another store has taken, unless this shard has taken a later batch.
    function forwarding.remember(spool, batch, at, names)
        local name, taken_at, taken = read(spool)
        if name == batch then
            local is_taken, found = set_of(taken), { taken }
            for _, each in ipairs(names) do
                if not is_taken[each] then
                    found[#found + 1] = each
                end
            end
            write(spool, batch, math.max(at, taken_at), table.concat(found))
        elseif not name or taken_at < at then
            write(spool, batch, at, table.concat(names))
        end
    end

    -- As intake.accept_all, for the messages that were not taken. `names`: the keys of all of them,
    -- see `forwarded_key` in naming.py; a copy has that of its message.
    function forwarding.accept_batch(spool, batch, names, drafts, copied)
        local name, _, before = read(spool)
        if not name then
            forget_old()
        end
        before = name == batch and before or ''
        local taken, is_taken = { before }, set_of(before)
        local left, left_drafts, answers = {}, {}, {}
        local left_copied = copied and { expires = {}, first_left = copied.first_left }
        for n = 1, #drafts do
            if is_taken[names[n]] then
                answers[n] = { 'duplicate' }
            else
                local place = #left + 1
                left[place], left_drafts[place] = n, drafts[n]
                if copied then
                    left_copied[place] = copied[n]
                    left_copied.expires[place] = copied.expires[n]
                end
            end
        end
        if copied and #left < #drafts then
            left_copied.first_left = nil -- others have come meanwhile
        end
        local found = intake.accept_all(left_drafts, true, left_copied)
        for place, n in ipairs(left) do
            local answer = found[place]
            answers[n] = answer
            if (type(answer) ~= 'table' or answer[1] ~= 'refused') and not is_taken[names[n]] then
                taken[#taken + 1], is_taken[names[n]] = names[n], true
            end
        end
        write(spool, batch, shard.now, table.concat(taken))
        return answers
    end
end)
