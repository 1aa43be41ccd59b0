-- Recent counts of topics, and topics by dead letters.

-- name: recent_read
SELECT r.topic, r.score FROM {array ?2} j
 {join} recent r ON r.kind = ?1 AND r.topic = j.value;

-- name: recent_write
INSERT INTO recent (kind, topic, score) VALUES (?, ?, ?)
    ON CONFLICT (kind, topic) DO UPDATE SET score = excluded.score;

-- name: recent_trim
DELETE FROM recent WHERE kind = ?1 AND score < (
    SELECT score FROM recent WHERE kind = ?1 ORDER BY score DESC LIMIT 1 OFFSET ?2);

-- name: recent_forget
DELETE FROM recent WHERE kind = ?1 AND score < ?2;

-- name: recent_top
-- All rows of a kind are few.
SELECT topic, score FROM recent WHERE kind = ?1 AND topic >= ?2 AND topic < ?3
    ORDER BY score DESC LIMIT ?4;

-- name: dead_top
-- Limited before it is compared: the rows are as many as topics with dead letters.
SELECT topic, letters FROM (SELECT topic, letters FROM dead_count
                             ORDER BY letters DESC LIMIT ?1) first
    WHERE topic >= ?2 AND topic < ?3 LIMIT ?4;

-- name: dead_named
SELECT topic, letters FROM dead_count WHERE topic >= ?1 AND topic < ?2 LIMIT ?3;

-- name: dead_count_add
INSERT INTO dead_count (topic, letters) VALUES (?, ?)
    ON CONFLICT (topic) DO UPDATE SET letters = dead_count.letters + excluded.letters;

-- name: dead_count_forget
DELETE FROM dead_count WHERE letters <= 0;

-- name: check_dead_counts
-- The topics whose dead letters are counted wrongly, and by how many.
SELECT topic, sum(letters) FROM (SELECT topic, count(*) AS letters FROM dead GROUP BY topic
                                  UNION ALL SELECT topic, -letters FROM dead_count) each
    GROUP BY topic HAVING sum(letters) <> 0 LIMIT ?1;
