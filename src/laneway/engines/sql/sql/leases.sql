-- Leases: deliveries and their end.

-- name: heads
-- The first message of each of these lanes (JSON list of numbers), behind so many others. ?2 and
-- ?3, their first places, count where deleted rows are kept.
SELECT {head} FROM {array ?1} j
  {join} message m ON m.mid = (SELECT r.mid FROM ready r WHERE r.lane = j.value
      ORDER BY r.rank, r.pos, r.seq LIMIT 1 OFFSET ?4);

-- name: head_of
-- The first messages of one lane, from a place to the end of a rank, behind so many others.
SELECT {head} FROM ready r {join} message m ON m.mid = r.mid
    WHERE r.lane = ? AND (r.rank, r.pos) >= (?, ?) AND r.rank <= ?
    ORDER BY r.rank, r.pos, r.seq LIMIT ? OFFSET ?;

-- name: leases_read
SELECT fence, mid, lane, deadline, granted, charge, started, gate, empty, gone, slot
  FROM {array ?} j
    {join} lease l ON l.fence = j.value;

-- name: leases_and_messages
-- Leases, and what settle needs to know of their messages, see `rows.Ended`.
SELECT l.fence, l.mid, l.lane, l.deadline, l.granted, l.charge, l.started, l.gate, l.empty, l.gone,
       l.slot,
       m.mid, m.id, m.topic, m.key, m.serial, m.joined, m.parts, m.sticky, m.since,
       m.deliveries + m.odd
  FROM {array ?} j {join} lease l ON l.fence = j.value LEFT JOIN message m ON m.mid = l.mid;

-- name: leases_ended
SELECT fence, mid, lane, deadline, granted, charge, started, gate, empty, gone, slot
  FROM lease WHERE fence BETWEEN ? AND ? AND deadline <= ? ORDER BY fence LIMIT ?;

-- name: leases_left
-- The first fence of each of these ranges that has leases.
SELECT v.column1 FROM (VALUES (?, ?)) v
 WHERE EXISTS (SELECT 1 FROM lease l WHERE l.fence BETWEEN v.column1 AND v.column2);

-- name: leases_next_deadline
SELECT min(deadline) FROM lease WHERE fence BETWEEN ? AND ?;

-- name: lease_of_message
SELECT fence, mid, lane, deadline, granted, charge, started, gate, empty, gone, slot, holder
  FROM lease WHERE mid = ? AND empty IS NULL AND gone = 0;

-- name: is_ready
SELECT 1 FROM ready WHERE lane = ? AND rank = ? AND pos = ? AND seq = ?;

-- name: leases_end
-- The leases of a range of fences that are held.
DELETE FROM lease WHERE fence BETWEEN ? AND ? AND gone = 0;

-- name: leases_delete
DELETE FROM lease WHERE fence IN (SELECT value FROM {array ?} j);

-- name: lease_started
UPDATE lease SET started = 1 WHERE fence = ?;

-- name: lease_extend
UPDATE lease SET deadline = ? WHERE fence = ?;
