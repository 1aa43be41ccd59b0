-- The indexes of lanes, their top lists, and the order of their names. The changes of a call are
-- written together, before any index is read: a command for each change would cost more than
-- everything else that is done with most lanes.

local index_entries = part(function(index_entries)
    local standing -- by index: the score of each member; false: removed

    at_begin(function()
        standing = {}
    end)

    function index_entries.set(index, member, score)
        local members = standing[index]
        if not members then
            members = {}
            standing[index] = members
        end
        members[member] = score
    end

    function index_entries.write()
        if next(standing) == nil then
            return
        end
        for index, members in pairs(standing) do
            local added, gone = {}, {}
            for member, score in pairs(members) do
                if score then
                    added[#added + 1], added[#added + 2] = score, member
                else
                    gone[#gone + 1] = member
                end
            end
            call_many('ZADD', index, added, 2)
            call_many('ZREM', index, gone, 1)
        end
        standing = {}
    end
end)
