-- Policies that code declares belong to programs. Those that exist already belong to a program
-- without a name, "program:".

INSERT INTO policy (layer, pattern, fields) SELECT 'program:', pattern, fields FROM policy
    WHERE layer = 'code';
UPDATE own_set SET layers = json_set(layers, '$."program:"', json_extract(layers, '$.code'))
    WHERE json_extract(layers, '$.code') IS NOT NULL;
UPDATE shard SET policy_version = policy_version + 1;
