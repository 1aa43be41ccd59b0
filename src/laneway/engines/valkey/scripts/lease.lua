--@ allow-oom

-- Deliver messages of a pool; first do some housekeeping.
--
-- ARGV[2]: the record of the tiers, see parts/shard.lua
-- ARGV[3]: the most messages
-- ARGV[4]: the pool
-- ARGV[5]: the only topics, in the order in which they are served (packed); "": all
-- ARGV[6]: how many messages the worker can start at once: no more of limited topics are delivered
-- ARGV[7]: "1": the delivery of a suspect records its start
-- ARGV[8]: how much housekeeping of each kind this call does at most
-- ARGV[9]: "1": deliver also where housekeeping is left to do, or has taken long
-- ARGV[10]: microseconds: if an event is due within them, another waiting worker is notified
-- ARGV[11]: patterns of the only topics that are served; behind "\31" those that are left out,
--   behind "\30" the names of the only tiers (packed); "": all
-- ARGV[12]: where this call begins, as the last one with the same filter answered; "": at the first
-- ARGV[13]: the most lanes that it passes over because they have nothing for the worker
-- ARGV[14]: microseconds after which the leases end at the latest; "": as their policies say
-- ARGV[15]: the largest rank that is delivered; "": any
-- ARGV[16]: how many messages the other calls of the same lease ask for
-- ARGV[17]: the smallest rank that is delivered; "" if ARGV[15] is
-- ARGV[18]: who holds the leases; "": a worker, whose heartbeat says so
-- ARGV[19]: ranges of names that all lanes of ARGV[11] have (packed); "": not known, or not needed
--
-- Answers {now, the next wake time or -1, 1 to call again (2: lanes are swept), the namespace's
-- nonce, the first fence, messages, runs, bodies, 1 if lanes were passed over, where the next call
-- with the same filter begins or "", 1 if lanes are left that the last calls have not seen, the
-- processor time of this call in microseconds}; see `serving.lease`.

-- After longer housekeeping, in microseconds, the next call delivers: both together would keep
-- other clients waiting.
local HOUSE_US = 1500

local room, pool, topics = tonumber(ARGV[3]), ARGV[4], ARGV[5] ~= '' and values_of(ARGV[5]) or nil
local startable, records_start = tonumber(ARGV[6]), ARGV[7] == '1'
local most_housekeeping, delivers_anyway = tonumber(ARGV[8]), ARGV[9] == '1'
local soon, max_lease, others = tonumber(ARGV[10]), tonumber(ARGV[14]), tonumber(ARGV[16])
local only = (ARGV[11] ~= '' or ARGV[15] ~= '') and {
    patterns = ARGV[11] ~= '' and values_of(ARGV[11]),
    begins = ARGV[12] ~= '' and values_of(ARGV[12]) or {}, may_pass = tonumber(ARGV[13]),
    last_rank = tonumber(ARGV[15]), first_rank = tonumber(ARGV[17]),
    ranges = ARGV[19] ~= '' and values_of(ARGV[19]),
} or nil
local function call_again()
    save()
    return { shard.now, -1, shard.sweeping > 0 and 2 or 1, shard.nonce, 0, {}, {}, {}, 0, '', 0, 0 }
end

adopt_tiers(ARGV[2])
local more = housekeeping.run(most_housekeeping)
if (more or call_us() > HOUSE_US) and not delivers_anyway then
    return call_again()
end
local found, runs, bodies, first, withheld, passed_over, is_cut, begins, goes_on =
    serving.lease(room, pool, topics, startable, records_start, only, max_lease, others, ARGV[18])
if is_cut and #found == 0 then -- the next call goes on where this one has ended
    return call_again()
end
local wake = is_cut and shard.now or next_wake.time()
if withheld or (#found > 0 and (#found == 2 * room or (wake and wake < shard.now + soon))) then
    -- there may be more, now or soon, and this worker may be busy then
    pools_to_notify[pool] = pools_to_notify[pool] or ONE
end
save()
return { shard.now, wake or -1, 0, shard.nonce, first, found, runs, bodies, passed_over and 1 or 0,
    next(begins) ~= nil and packed(begins) or '', goes_on and 1 or 0, call_us() }
