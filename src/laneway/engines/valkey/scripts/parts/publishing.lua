-- Messages that settlements publish. Each has a sticky id: its own, or one of its parent's. Those
-- that could be published as plain messages come and are put as such, because that costs half.
--
-- uses: undo, policies, messages, putting, left_copies, intake, settling

local publishing = part(function(publishing)
    local ENDS = { ack = true, dead = true }
    local VALUES = 7 -- of each message in `packed_places`
    local BEFORE = 7 -- arguments before the messages
    -- of the messages whose settlements may succeed, by position: the settlement, the position of
    -- its topic among those of plain messages (-1: it is not plain), its record, its draft, its id
    local count, parents, order, stored, drafts, names
    local topics -- of plain messages
    local heads, expires -- by position: as in `copied`, see copies.lua
    local first_left     -- the position from which copies may be left; nil: all are put

    -- Limits read decoded drafts, and undoing knows the commands that put them.
    local function decode_all()
        for n = 1, count do
            if order[n] > 0 then
                drafts[n], order[n], stored[n] = putting.from_plain(stored[n]), -1, ''
            end
        end
        topics = {}
    end

    -- The position from which copies may be left, and whether they need to be decoded.
    local function first_left_of(places, has_limits)
        local lanes_of, copied = {}, { expires = {} }
        for n = 1, #places / VALUES do
            local _, _, is_copy, copies_of, is_stored, lane = unpack(places, VALUES * (n - 1) + 1,
                VALUES * n)
            if is_copy then
                copied.expires[n] = copies_of or nil
            elseif copies_of then
                copied[n] = { copies_of, is_stored, 0, has_limits }
            end
            lanes_of[n] = lane
        end
        local first = left_copies.first(lanes_of, copied)
        return first, first and left_copies.are_checked(copied)
    end

    -- Read what these settlements publish, see settle.lua. Returns an answer for the client if that
    -- is impossible.
    function publishing.read(settlements, client, packed_places)
        count, parents, order, stored, drafts, names, first_left = 0, {}, {}, {}, {}, {}, nil
        topics, heads, expires = {}, {}, {}
        if client == '' then
            return nil
        end
        local version, known, plain_topics, has_limits = unpack(values_of(client))
        if version ~= shard.version then
            return { 'stale', shard.version }
        end
        has_limits = has_limits or shard.max_backlog or shard.max_backlog_bytes
        local places, decoded = values_of(packed_places), {}
        local topics_left = {}
        local first, are_checked = first_left_of(places, has_limits)
        for n = 1, #places / VALUES do
            if places[VALUES * n - 1] < 0 then
                if first and n >= first and not are_checked then
                    topics_left[#topics_left + 1] = putting.topic_of(ARGV[BEFORE + n])
                else
                    decoded[n] = putting.decode(ARGV[BEFORE + n])
                end
            end
        end
        local unknown = policies.unknown_to(known, plain_topics, decoded, topics_left)
        if unknown then
            return { 'own', unpack(unknown) }
        end
        local mids, ids_of, counted, base, id, head_name = {}, {}, {}, nil, nil, nil
        for n, each in ipairs(settlements) do
            mids[n] = each[1]
        end
        local leases = settling.read(mids)
        topics = plain_topics
        for n = 1, #places / VALUES do
            local row, is_too_large, is_copy, copies_of, is_stored, lane, own_id = unpack(places,
                VALUES * (n - 1) + 1, VALUES * n)
            local settlement, lease = settlements[row], leases[row]
            if lease and lease.fence == settlement[2] and not lease.gone and ENDS[settlement[3]]
                then
                if is_too_large then
                    return { 'too large', n - 1 }
                end
                base = ids_of[row]
                if not base then
                    base = (lease.empty and generated_id(settlement[1])
                        or id_of(messages.read(settlement[1]))) .. ':'
                    ids_of[row] = base
                end
                if not is_copy then
                    id = base .. text(counted[row] or 0)
                    counted[row] = (counted[row] or 0) + 1
                end
                local draft, place = decoded[n], count + 1
                count, parents[place], order[place] = place, row, lane
                if draft then
                    names[place] = draft.id or id
                    putting.name(draft, names[place])
                    local refusal = putting.refusal(draft, n - 1)
                    if refusal then
                        return refusal
                    end
                    drafts[place], stored[place] = draft, ''
                elseif lane < 0 then -- a copy that is left
                    names[place], stored[place] = head_name, ARGV[BEFORE + n]
                    local refusal = putting.refusal_undecoded(stored[place], n - 1)
                    if refusal then
                        return refusal
                    end
                else
                    names[place] = own_id or id
                    stored[place] = own_id and ARGV[BEFORE + n]
                        or 'p' .. putting.named(ARGV[BEFORE + n], 2, topics[lane], id)
                end
                head_name = is_copy and head_name or names[place]
                if is_copy then
                    expires[place] = copies_of or nil
                elseif copies_of then
                    heads[place] = { copies_of, is_stored, draft.size, has_limits }
                end
            end
        end
        first_left = count == #places / VALUES and first or nil
        if has_limits then
            decode_all()
            undo.begin()
        end
    end

    -- The settlements that publish report the end of their messages.
    function publishing.mark(settlements)
        for n = 1, count do
            settlements[parents[n]].reports_end = true
        end
    end

    -- Put the messages of settlements with these answers. Returns an answer for the client if one
    -- is refused: everything is undone.
    function publishing.put(answers)
        if count == 0 then
            return nil
        end
        local its_order, its_stored, its_drafts, its_ids, places = {}, {}, {}, {}, {}
        local copied = next(heads) and { expires = {} }
        for n = 1, count do
            local answer = answers[parents[n]]
            if answer == 'acked' or answer == 'died' then
                local place = #places + 1
                places[place], its_order[place], its_stored[place] = n, order[n], stored[n]
                its_drafts[place], its_ids[place] = drafts[n], not drafts[n] and names[n]
                if copied then
                    copied[place], copied.expires[place] = heads[n], expires[n]
                end
            end
        end
        if #places == 0 then
            return nil
        end
        if first_left then
            left_copies.choose(first_left, copied, topics, its_order, its_stored, its_drafts,
                its_ids)
        end
        local found = intake.accept_batch(topics, its_order, its_stored, its_drafts, its_ids, false,
            copied)
        for place = 1, #places do
            local answer, n = found[place], places[place]
            if type(answer) == 'table' and answer[1] == 'refused' then
                undo.run()
                return { 'refused', names[n], answer[5] or drafts[n].topic, answer[2], answer[3],
                    answer[4] }
            end
        end
    end
end)
