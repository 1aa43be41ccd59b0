-- Messages that settlements publish. Each has a sticky id: its own, or one of its parent's.

local publishing = part(function(publishing)
    local ENDS = { ack = true, dead = true }
    local VALUES = 5 -- of each message in `packed_places`
    local BEFORE = 6 -- arguments before the messages
    local drafts, copied -- all messages and copies, see copies.lua
    local parents    -- by position of a draft: that of its settlement, if this may succeed
    local first_left -- the position from which copies may be left; nil: all are put

    -- Read the heads of the drafts, and which of them are copies. Returns an answer for the client
    -- if it has to know other policies.
    local function read_drafts(client, places)
        local version, known, has_limits = unpack(values_of(client))
        if version ~= shard.version then
            return { 'stale', shard.version }
        end
        has_limits = has_limits or shard.max_backlog or shard.max_backlog_bytes
        if has_limits then
            undo.begin()
        end
        for n = 1, #places / VALUES do
            local draft = putting.read(ARGV[BEFORE + n])
            local is_copy, copies_of, is_stored = unpack(places, VALUES * n - 2, VALUES * n)
            drafts[n] = draft
            if is_copy then
                copied.expires[n] = copies_of or nil
            elseif copies_of then
                copied[n] = { copies_of, is_stored, draft.size, has_limits }
            end
        end
        local unknown = policies.unknown_to(known, drafts)
        return unknown and { 'own', unpack(unknown) }
    end

    -- Read what these settlements publish, see settle.lua. Returns an answer for the client if that
    -- is impossible.
    function publishing.read(mids, settlements, client, packed_places)
        drafts, copied, parents, first_left = {}, { expires = {} }, {}, nil
        if client == '' then
            return nil
        end
        local places = values_of(packed_places)
        local outdated = read_drafts(client, places)
        if outdated then
            return outdated
        end
        local stays_encoded, leases = false, settling.read(mids)
        first_left, stays_encoded = left_copies.first(drafts, copied)
        local ids_of, counted, name = {}, {}, nil
        for n, draft in ipairs(drafts) do
            local at, is_too_large, is_copy = unpack(places, VALUES * n - 4, VALUES * n - 2)
            local settlement, lease = settlements[at], leases[at]
            if lease and lease.fence == settlement[2] and not lease.gone and ENDS[settlement[3]]
                then
                if is_too_large then
                    return { 'too large', n - 1 }
                end
                parents[n], settlement.reports_end = at, true
                ids_of[at] = ids_of[at] or (lease.empty and generated_id(mids[at])
                    or id_of(messages.read(mids[at]))) .. ':'
                if not is_copy then
                    counted[at] = (counted[at] or -1) + 1
                    name = draft.id or ids_of[at] .. text(counted[at])
                    copied.name = name
                end
                if not (stays_encoded and n >= first_left) then
                    left_copies.decode(draft, name)
                end
                local refusal = putting.refusal(draft, n - 1)
                if refusal then
                    return refusal
                end
            end
        end
    end

    -- Put the messages of settlements with these answers. Returns an answer for the client if one
    -- is refused: everything is undone.
    function publishing.put(answers)
        local chosen, its_copied, has_copies = {}, { expires = {}, name = copied.name }, false
        for n, draft in ipairs(drafts) do
            local answer = answers[parents[n]]
            if answer == 'acked' or answer == 'died' then
                local place = #chosen + 1
                chosen[place], its_copied[place] = draft, copied[n]
                its_copied.expires[place] = copied.expires[n]
                has_copies = has_copies or copied[n] ~= nil
            end
        end
        if #chosen == 0 then
            return nil
        end
        if first_left and #chosen == #drafts then
            left_copies.choose(first_left, chosen, its_copied)
        end
        local found = intake.accept_all(chosen, false, has_copies and its_copied or nil)
        for place, draft in ipairs(chosen) do
            local answer = found[place]
            if type(answer) == 'table' and answer[1] == 'refused' then
                undo.run()
                return { 'refused', draft.id, answer[5] or draft.topic, answer[2], answer[3],
                    answer[4] }
            end
        end
    end
end)
