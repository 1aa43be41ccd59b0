--@ allow-oom

-- Correct the shard's totals after the doctor has added up the lanes, if nothing has changed
-- meanwhile.
--
-- ARGV[3]: the counters before
-- ARGV[4]: messages that wait
-- ARGV[5]: their bytes
-- ARGV[6]: leases
--
-- Answers 1; 0 if something has changed.

if call('GET', keys.shard) ~= ARGV[3] then
    return 0
end
shard.waiting, shard.bytes, shard.leased = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
shard.dead, shard.lanes = call('ZCARD', keys.dead), call('HLEN', keys.lanes)
save_shard()
return 1
