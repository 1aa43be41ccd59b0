--@ allow-oom

-- The doctor has added up what the lanes hold, ARGV[4] to [6] (waiting, bytes, leased), while
-- nothing changed: the counters are ARGV[3] still.

if call('GET', keys.shard) ~= ARGV[3] then
    return 0
end
shard.waiting, shard.bytes, shard.leased = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
shard.dead, shard.lanes = call('ZCARD', keys.dead), call('HLEN', keys.lanes)
save_shard()
return 1
