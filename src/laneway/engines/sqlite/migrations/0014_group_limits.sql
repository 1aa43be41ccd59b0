-- Groups with a rate or a concurrency: their lanes go through a gate, which is named U+001D and the
-- group's name.
ALTER TABLE group_queue ADD COLUMN limited INTEGER NOT NULL DEFAULT 0;
