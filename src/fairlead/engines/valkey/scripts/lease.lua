--@ allow-oom

-- Hand out. ARGV[3]: how many; [4]: the pool; [5]: the topics, or ""; [6]: how many can be started at once; [7]: "1" if the hand-out of a suspect is
-- its recorded start; [8]: how much housekeeping this call may do; [9]: "1" if it is to hand out also where some is left to do; [10]: how soon, in
-- microseconds, something has to be due for another waiter to be rung.
-- Answers {now, next wake or -1, whether to call again, the namespace's nonce, first fence, messages, runs, bodies}, see serving.lease.

adopt_tiers(ARGV[2])
local room, pool = tonumber(ARGV[3]), ARGV[4]
local more = housekeeping.keep(tonumber(ARGV[8]))
if more and ARGV[9] ~= '1' then
    save()
    return { shard.now, -1, 1, shard.nonce, 0, {}, {}, {} }
end
gates.save()
local found, runs, bodies, first, withheld = serving.lease(room, pool, ARGV[5] ~= '' and values_of(ARGV[5]) or nil, tonumber(ARGV[6]), ARGV[7] == '1')
messages.save()
gates.save()
local wake = wakes.next()
if withheld or (#found > 0 and (#found == 2 * room or (wake and wake < shard.now + tonumber(ARGV[10])))) then
    rang[pool] = true -- there may be more, now or soon, and this worker may be busy then
end
save()
return { shard.now, wake or -1, 0, shard.nonce, first, found, runs, bodies }
