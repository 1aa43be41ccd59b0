-- The limit of `concurrency="auto"`. The same as engines/shared/adaptive.py, number for number,
-- which has an example, the fields of a flow, and the source of the algorithm.

local FLOW_KEPT = 600000000 -- how long a lane without messages keeps its limit

local adaptive = part(function(adaptive)
    local FIRST_LIMIT = 2
    local SLOW, SLOW_WINDOWS = 2, 3
    local SHRINK_TO, SHRINK_OF = 7, 10
    local HOLD_WINDOWS = 20
    local FOLLOWS, FOLLOWS_OF = 17, 20
    local MEDIAN_STEP = 16
    local FIRST, GREW, SLOWER, UNAVAILABLE = 0, 1, 2, 5
    local OVERLOADS = { timeout = 3, answer = 4 }
    -- as they are stored
    adaptive.FIELDS = { 'limit', 'is_used', 'count', 'quick', 'median', 'best', 'slow',
        'slow_limit', 'slow_median', 'wall', 'held', 'fence', 'reason', 'changed' }

    function adaptive.begin(now)
        return { limit = FIRST_LIMIT, is_used = 0, count = 0, quick = 0, median = 0, best = 0,
            slow = 0, slow_limit = 0, slow_median = 0, wall = 0, held = 0, fence = 0, reason =
            FIRST, changed = now }
    end

    -- `policy`: `least` and `most` are the bounds of the limit.

    function adaptive.limit(flow, policy)
        local limit = flow and flow.limit or FIRST_LIMIT
        return math.max(policy.least, math.min(limit, policy.most))
    end

    -- A shard's part of a topic's limit. `out_of`: what the limit was when it was divided; false:
    -- it was not.
    function adaptive.part_of(limit, part, most, out_of)
        return out_of and math.floor(part * limit / out_of) or math.ceil(part * limit / most)
    end

    -- `here`: what the limit admits on this shard.

    function adaptive.delivered(flow, leased, here)
        if leased >= here then
            flow.is_used = 1
        end
    end

    local function end_slow_window(flow, policy, now)
        if flow.slow_limit == 0 then
            flow.slow_limit, flow.slow_median = flow.limit, flow.median
        end
        flow.slow = flow.slow + 1
        if flow.slow < SLOW_WINDOWS then
            return
        end
        flow.slow = 0
        if flow.limit > policy.least then
            flow.limit = flow.limit - 1
            flow.reason, flow.changed = SLOWER, now
        end
        if flow.limit > policy.least and flow.limit * SHRINK_OF > flow.slow_limit * SHRINK_TO then
            return
        end
        if flow.median * FOLLOWS_OF > flow.slow_median * FOLLOWS then
            flow.best = flow.median
            flow.slow_limit, flow.slow_median = 0, 0
        else
            flow.slow_limit, flow.slow_median = flow.limit, flow.median
        end
    end

    local function end_window(flow, policy, now)
        local is_slow, is_used = 2 * flow.quick < flow.count, flow.is_used
        flow.is_used, flow.count, flow.quick = 0, 0, 0
        if flow.median > 0 and (flow.best == 0 or flow.median < flow.best) then
            flow.best = flow.median
        end
        if is_slow then
            return end_slow_window(flow, policy, now)
        end
        flow.slow, flow.slow_limit, flow.slow_median = 0, 0, 0
        if is_used == 0 or flow.limit >= policy.most then
            return
        end
        if flow.limit == flow.wall - 1 and flow.held < HOLD_WINDOWS then
            flow.held = flow.held + 1
            return
        end
        flow.limit = flow.limit + 1
        flow.reason, flow.changed = GREW, now
        if flow.limit >= flow.wall then
            flow.wall, flow.held = 0, 0
        end
    end

    local function succeeded(flow, latency, policy, here, now)
        if latency > 0 then
            if flow.median == 0 then
                flow.median = latency
            elseif latency > flow.median then
                flow.median = flow.median + math.floor(flow.median / MEDIAN_STEP) + 1
            elseif latency < flow.median then
                flow.median = flow.median - math.floor(flow.median / MEDIAN_STEP)
            end
        end
        flow.count = flow.count + 1
        if flow.best == 0 or latency <= SLOW * flow.best then
            flow.quick = flow.quick + 1
        end
        if flow.count >= here then
            flow.limit = adaptive.limit(flow, policy)
            end_window(flow, policy, now)
        end
    end

    local function overloaded(flow, reason, fence, last_fence, policy, now)
        if fence <= flow.fence then
            return
        end
        local limit = adaptive.limit(flow, policy)
        flow.limit = math.max(policy.least, math.floor(limit * SHRINK_TO / SHRINK_OF))
        flow.wall = limit
        flow.is_used, flow.count, flow.quick, flow.slow, flow.slow_limit, flow.slow_median,
            flow.held = 0, 0, 0, 0, 0, 0, 0
        flow.fence, flow.reason, flow.changed = last_fence, reason, now
    end

    -- Whether a smaller limit is enough of an answer to an unavailable destination.
    function adaptive.bears(flow, fence, policy)
        return fence <= flow.fence or adaptive.limit(flow, policy) > policy.least
    end

    -- The lease `fence` ended with this action and overload ("timeout", "answer" or false) after
    -- its handler ran that long.
    function adaptive.settled(flow, policy, here, fence, last_fence, action, overload, latency,
        now)
        local reason = action == 'back_off' and UNAVAILABLE or overload and OVERLOADS[overload]
        if reason then
            overloaded(flow, reason, fence, last_fence, policy, now)
        elseif action == 'ack' then
            succeeded(flow, latency, policy, here, now)
        end
    end
end)
