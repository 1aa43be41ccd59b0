-- The namespace's own limits: ARGV[3] messages, ARGV[4] bytes ("": none), and ARGV[5], what happens
-- at them.

shard.max_backlog, shard.max_backlog_bytes, shard.on_full = tonumber(ARGV[3]) or false,
    tonumber(ARGV[4]) or false, ARGV[5]
save_shard()
return 1
