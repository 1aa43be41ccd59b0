-- Change the tiers. ARGV[3]: the tiers as the client read them from the settings, [4]: as they are
-- to be stored there ("": this is not the first shard, which has no settings); [5]: their record,
-- see shard.lua; [6]: the version of the policies that the client knows, [7]: the one they have
-- then. Answers "changed" or "stale".

if tonumber(ARGV[6]) ~= shard.version or (ARGV[4] ~= '' and call('HGET', keys.settings,
    'tier_layers') ~= ARGV[3]) then
    return 'stale'
end
if ARGV[4] ~= '' then
    call('HSET', keys.settings, 'tier_layers', ARGV[4])
end
shard.version = tonumber(ARGV[7])
adopt_tiers(ARGV[5])
if shard.sweeping > 0 then
    housekeeping.sweep(POLICY_PAGE)
end
save(true)
return 'changed'
