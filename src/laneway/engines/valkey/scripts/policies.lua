--@ allow-oom

-- The policies as they are: {version, nonce of the namespace, {field, what it holds, …}}.

return { shard.version, shard.nonce, call('HGETALL', keys.policies) }
