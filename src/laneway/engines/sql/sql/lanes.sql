-- The shard, lanes, tier queues, gates, policies and settings.

-- name: shard_read
SELECT nonce, seq, fence, now, policy_version, waiting, bytes, leased, dead, published, delivered,
    done, retried, died, merged,
       expired, removed, lanes, own, first_event, first_end, first_timer,
       first_asleep, first_idle, first_wake, first_sweep, tallies
  FROM shard WHERE one = 1;

-- name: shard_write
UPDATE shard SET seq = ?, fence = ?, now = ?, policy_version = ?, waiting = ?, bytes = ?,
    leased = ?, dead = ?, published = ?,
       delivered = ?, done = ?, retried = ?, died = ?, merged = ?, expired = ?, removed = ?,
           lanes = ?, own = ?, first_event = ?, first_end = ?, first_timer = ?, first_asleep = ?,
           first_idle = ?, first_wake = ?, first_sweep = ?, tallies = ?
 WHERE one = 1;

-- name: lane_last
SELECT max(lane) FROM lane;

-- name: lanes_by_name
-- The list is JSON, so that one statement serves lists of any length.
SELECT {lane} FROM {array ?} j {join} lane l ON l.name = j.value;

-- name: lanes_by_number
SELECT {lane} FROM {array ?} j {join} lane l ON l.lane = j.value;

-- name: lane_by_name
SELECT {lane} FROM lane l WHERE l.name = ?;

-- name: lane_by_number
SELECT {lane} FROM lane l WHERE l.lane = ?;

-- name: lanes_in_range
-- By name, between two names: a topic's partitions, or a prefix.
SELECT {lane} FROM lane l WHERE l.name > ? AND l.name < ? ORDER BY l.name LIMIT ?;

-- name: lanes_between
-- By name, from one name up to another one.
SELECT {lane} FROM lane l WHERE l.name >= ? AND l.name < ? ORDER BY l.name LIMIT ?;

-- name: lane_exists_between
SELECT 1 FROM lane WHERE name > ? AND name < ? LIMIT 1;

-- name: lanes_runnable
-- The lanes of a tier queue in the order in which they are served; only the index is read.
SELECT lane, vt FROM lane WHERE tier_queue = ? AND place = 1 AND (vt, lane) > (?, ?)
    ORDER BY vt, lane LIMIT ?;

-- name: lanes_runnable_read
-- As above, with all that is stored of them, for a call that has not read them yet.
SELECT {lane} FROM lane l WHERE l.tier_queue = ? AND l.place = 1 AND (l.vt, l.lane) > (?, ?)
    ORDER BY l.vt, l.lane LIMIT ?;

-- name: lanes_at_gate
-- The lanes of a tier queue, or a group, that wait at a gate, by their turns there.
SELECT lane, turn FROM lane WHERE gate = ? AND tier_queue = ? AND place = 3
    AND (turn, lane) > (?, ?) ORDER BY turn, lane LIMIT ?;

-- name: lanes_to_wake
-- Lanes that are asleep. The place is a literal, because it is in the conditions of indexes: if it
-- were bound, SQLite would plan the statement again each time.
SELECT {lane} FROM lane l WHERE l.place = 2 AND l.wake BETWEEN ? AND ?
    ORDER BY l.wake, l.lane LIMIT ?;

-- name: lanes_to_wake_lately
-- Those that wake last.
SELECT {lane} FROM lane l WHERE l.place = 2 AND l.wake BETWEEN ? AND ?
    ORDER BY l.wake DESC, l.lane DESC LIMIT ?;

-- name: lanes_forget
DELETE FROM lane WHERE {row} IN (SELECT {row} FROM lane WHERE place = 0 AND wake BETWEEN ? AND ?
    ORDER BY wake, lane LIMIT ?) RETURNING lane, name, tier_queue;

-- name: next_wake
SELECT min(at) FROM (
    SELECT (SELECT at FROM event WHERE at >= ?1 ORDER BY at LIMIT 1) AS at
    UNION ALL SELECT (SELECT at FROM lease_end WHERE at >= ?2 ORDER BY at LIMIT 1)
    UNION ALL SELECT (SELECT turn FROM timer WHERE turn >= ?3 ORDER BY turn LIMIT 1)
    UNION ALL SELECT (SELECT wake FROM lane WHERE place = 2 AND wake >= ?4 ORDER BY wake LIMIT 1)
    UNION ALL SELECT (SELECT wake FROM lane WHERE place = 0 AND wake >= ?5 ORDER BY wake LIMIT 1)
    UNION ALL SELECT (SELECT wake FROM gate WHERE wake >= ?6 ORDER BY wake LIMIT 1)
    UNION ALL SELECT (SELECT wake FROM key_state WHERE wake >= ?6 ORDER BY wake LIMIT 1)
) next;

-- name: housekeeping_due
-- When the first event is due, when the first leases run out, when the first lane's timer is due,
-- when the first lane that is asleep wakes, when the first idle one is forgotten, when the first
-- key and gate wake and the first known id, window and result end. One statement instead of one for
-- each kind.
SELECT (SELECT at FROM event WHERE at >= ?1 ORDER BY at LIMIT 1),
       (SELECT at FROM lease_end WHERE at >= ?2 ORDER BY at LIMIT 1),
       (SELECT turn FROM timer WHERE turn >= ?3 ORDER BY turn LIMIT 1),
       (SELECT wake FROM lane WHERE place = 2 AND wake >= ?4 ORDER BY wake LIMIT 1),
       (SELECT wake FROM lane WHERE place = 0 AND wake >= ?5 ORDER BY wake LIMIT 1),
       (SELECT wake FROM key_state WHERE wake >= ?6 ORDER BY wake LIMIT 1),
       (SELECT wake FROM gate WHERE wake >= ?6 ORDER BY wake LIMIT 1),
       (SELECT until FROM ident WHERE until >= ?6 ORDER BY until LIMIT 1),
       (SELECT until FROM edge WHERE until >= ?6 ORDER BY until LIMIT 1),
       (SELECT until FROM kept WHERE until >= ?6 ORDER BY until LIMIT 1);

-- name: lane_shrink
-- After acks that do not change the place of the lane.
UPDATE lane SET leased = ?, done = ? WHERE lane = ?;

-- name: lane_end
-- After acks of an idle lane.
UPDATE lane SET leased = ?, done = ?, wake = nullif(?, 0) WHERE lane = ?;

-- name: lane_delete
DELETE FROM lane WHERE lane = ?;

-- name: tier_queues
SELECT tier_queue, pool, tier, vt, carry, mean, delivered, first_vt, first_lane,
    first_group_vt, first_gate_vt FROM tier_queue;

-- name: tier_queue_insert
INSERT INTO tier_queue (pool, tier) VALUES (?, ?) RETURNING tier_queue;

-- name: tier_queue_write
UPDATE tier_queue SET vt = ?, carry = ?, mean = ?, delivered = ?, first_vt = ?,
    first_lane = ?, first_group_vt = ?, first_gate_vt = ? WHERE tier_queue = ?;

-- name: tier_queue_has_work
SELECT EXISTS (SELECT 1 FROM lane
         WHERE tier_queue = ?1 AND place = 1 AND (vt, lane) >= (?2, ?3))
    OR EXISTS (SELECT 1 FROM gate_entry WHERE owner = ?1 AND open = 1 AND vt >= ?5)
    OR EXISTS (SELECT 1 FROM group_queue WHERE tier_queue = ?1 AND open = 1)
    OR EXISTS (SELECT 1 FROM group_queue WHERE tier_queue = ?1 AND runnable > 0 AND vt >= ?4);

-- name: gate_read
SELECT {gate} FROM gate WHERE name = ?;

-- name: gates_read
SELECT {gate} FROM {array ?} j {join} gate ON gate.name = j.value;

-- name: gates
-- Without those of topics with partitions, which begin with U+001C.
SELECT {gate} FROM gate WHERE name < {char}(28) OR name >= {char}(29) ORDER BY name;

-- name: topic_gates_in_use
SELECT name FROM gate WHERE name >= {char}(28) AND name < {char}(29) AND leased > 0;

-- name: gate_write
INSERT INTO gate (name, code, operator, tat, leased, open, wake, need, held_until, owes, flow, turn,
    mean, holder, waiting, claimed, held_turn)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET code = excluded.code, operator = excluded.operator,
        tat = excluded.tat, leased = excluded.leased, open = excluded.open, wake = excluded.wake,
        need = excluded.need, held_until = excluded.held_until, owes = excluded.owes,
        flow = excluded.flow, turn = excluded.turn, mean = excluded.mean, holder = excluded.holder,
        waiting = excluded.waiting, claimed = excluded.claimed, held_turn = excluded.held_turn;

-- name: gate_delete
DELETE FROM gate WHERE name = ?;

-- name: gates_to_wake
SELECT {gate} FROM gate WHERE wake BETWEEN ? AND ? ORDER BY wake LIMIT ?;

-- name: gate_head
-- The first lane of a tier queue, or a group, at a gate: its turn, number and virtual time.
SELECT turn, lane, vt FROM lane WHERE gate = ? AND tier_queue = ? AND place = 3
    ORDER BY turn, lane LIMIT 1;

-- name: gate_entries_open
-- Where lanes of a tier queue, or of a group (below 0), are first; by these lanes.
SELECT gate, vt, head FROM gate_entry WHERE owner = ? AND open = 1
    AND (vt, head) > (?, ?) ORDER BY vt, head LIMIT ?;

-- name: gates_exist
SELECT EXISTS (SELECT 1 FROM gate);

-- name: gates_waited_at
SELECT name FROM gate WHERE waiting > 0 ORDER BY random() LIMIT ?;

-- name: gate_entries_of
SELECT gate, tier_queue FROM {array ?} j {join} gate_entry ON gate = j.value;

-- name: gate_entry_read
-- The first lane of a tier queue, or of a group, at a gate: its turn, number and virtual time; and
-- the entry as it is stored. ?3: the earliest turn that this
-- transaction has written there.
SELECT l.turn, l.lane, l.vt, e.owner, e.vt, e.head, e.open, e.first_turn FROM (SELECT 1) one
    LEFT JOIN lane l ON l.lane = (SELECT lane FROM lane
        WHERE gate = ?1 AND tier_queue = ?2 AND place = 3 ORDER BY turn, lane LIMIT 1)
    LEFT JOIN gate_entry e ON e.tier_queue = ?4 AND e.gate = ?1;

-- name: gate_entry_write
INSERT INTO gate_entry (tier_queue, gate, owner, vt, head, open, first_turn)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (tier_queue, gate) DO UPDATE SET owner = excluded.owner, vt = excluded.vt,
        head = excluded.head, open = excluded.open, first_turn = excluded.first_turn;

-- name: gate_entry_delete
DELETE FROM gate_entry WHERE (tier_queue, gate) IN (SELECT * FROM (VALUES (?, ?)));

-- name: gate_entries_open_set
UPDATE gate_entry SET open = ?1 WHERE gate IN (SELECT value FROM {array ?2} j) AND open <> ?1
    RETURNING tier_queue, owner, vt;

-- name: policies
SELECT layer, pattern, fields FROM policy;

-- name: policy_write
INSERT INTO policy (layer, pattern, fields) VALUES (?, ?, ?) ON CONFLICT (layer, pattern)
    DO UPDATE SET fields = excluded.fields;

-- name: policy_delete
DELETE FROM policy WHERE layer = ? AND pattern = ?;

-- name: own_read
SELECT own FROM own_policy WHERE topic = ?;

-- name: own_read_many
SELECT p.topic, p.own FROM {array ?} j {join} own_policy p ON p.topic = j.value;

-- name: own_page
SELECT p.topic, s.layers FROM own_policy p JOIN own_set s ON s.no = p.own WHERE p.topic > ?
    ORDER BY p.topic LIMIT ?;

-- name: own_write
INSERT INTO own_policy (topic, own) VALUES (?, ?) ON CONFLICT (topic)
    DO UPDATE SET own = excluded.own;

-- name: own_delete
DELETE FROM own_policy WHERE topic = ?;

-- name: lane_own
UPDATE lane SET own = ? WHERE lane = ?;

-- name: own_set_read
SELECT layers FROM own_set WHERE no = ?;

-- name: own_sets_read
SELECT s.no, s.layers FROM {array ?} j {join} own_set s ON s.no = j.value;

-- name: own_set_find
SELECT no FROM own_set WHERE layers = ?;

-- name: own_set_insert
INSERT INTO own_set (layers, uses) VALUES (?, 0) RETURNING no;

-- name: own_set_use
UPDATE own_set SET uses = uses + ? WHERE no = ?;

-- name: own_set_forget
DELETE FROM own_set WHERE no = ? AND uses <= 0;

-- name: own_topic_of
-- One of the topics that share a set, for an error text; only the first ones are searched.
SELECT topic FROM (SELECT topic, own FROM own_policy LIMIT 10000) first WHERE own = ? LIMIT 1;

-- name: sweep_begin
INSERT INTO sweep (pattern) VALUES (?) RETURNING number;

-- name: sweeps
SELECT number, pattern, after FROM sweep WHERE number >= ? ORDER BY number;

-- name: sweep_go_on
UPDATE sweep SET after = ? WHERE number = ?;

-- name: sweep_end
DELETE FROM sweep WHERE number = ?;

-- name: setting_read
SELECT value FROM setting WHERE name = ?;

-- name: setting_delete
DELETE FROM setting WHERE name = ?;

-- name: settings_between
SELECT name FROM setting WHERE name > ? AND name < ? ORDER BY random() LIMIT ?;

-- name: settings_of_programs
SELECT substr(name, 9), value FROM setting WHERE name >= 'program:' AND name < 'program;';

-- name: setting_write
INSERT INTO setting (name, value) VALUES (?, ?) ON CONFLICT (name)
    DO UPDATE SET value = excluded.value;
