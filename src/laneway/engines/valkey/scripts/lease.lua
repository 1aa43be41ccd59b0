--@ allow-oom

-- Hand out. ARGV[3]: how many; [4]: the pool; [5]: the topics, or ""; [6]: how many can be started
-- at once; [7]: "1" if the hand-out of a suspect is its recorded start; [8]: how much housekeeping
-- this call may do; [9]: "1" if it is to hand out also where some is left to do; [10]: how soon, in
-- microseconds, something has to be due for another waiter to be rung. [11]: patterns of a caller
-- who takes nothing else, or ""; [12]: the place in the lanes' order where this call begins; [13]:
-- how many lanes it may pass
-- over. Answers {now, next wake or -1, whether to call again, the namespace's nonce, first fence,
-- messages, runs, bodies, whether lanes were passed over, where the next call begins or -1 if all
-- were looked at}, see serving.lease.

adopt_tiers(ARGV[2])
local room, pool = tonumber(ARGV[3]), ARGV[4]
local more = housekeeping.keep(tonumber(ARGV[8]))
if more and ARGV[9] ~= '1' then
    save()
    return { shard.now, -1, 1, shard.nonce, 0, {}, {}, {}, 0, -1 }
end
gates.save()
local only = ARGV[11] ~= '' and { values_of(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13]) }
    or nil
local found, runs, bodies, first, withheld, passed_over, goes_on =
    serving.lease(room, pool, ARGV[5] ~= '' and values_of(ARGV[5]) or nil, tonumber(ARGV[6]),
        ARGV[7] == '1', only)
messages.save()
gates.save()
local wake = wakes.next()
if withheld or (#found > 0 and (#found == 2 * room or (wake
    and wake < shard.now + tonumber(ARGV[10])))) then
    pools_to_notify[pool] = true -- there may be more, now or soon, and this worker may be busy then
end
save()
return { shard.now, wake or -1, 0, shard.nonce, first, found, runs, bodies, passed_over and 1 or 0,
    goes_on }
