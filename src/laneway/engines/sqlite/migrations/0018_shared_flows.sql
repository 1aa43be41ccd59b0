-- The partitions of a topic share a concurrency that adapts: its flow is in the topic's gate. Their
-- lanes have to be placed again, because they wait at this gate now.
ALTER TABLE gate ADD COLUMN flow TEXT;   -- JSON, see shared/adaptive.py
INSERT INTO sweep (pattern, after)
    SELECT '*', '' WHERE EXISTS (SELECT 1 FROM lane WHERE instr(name, char(31)) > 0)
    ON CONFLICT (pattern) DO UPDATE SET after = '';
