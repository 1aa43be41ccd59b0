-- The store of one namespace: one shard, which is a file or a schema.
--
-- Design. *Lanes* decide what is served next. A lane has a row only while it has messages or
-- leases, and for a moment afterwards: an idle topic has no row anywhere. Two partial indexes serve
-- all lanes: `lane_runnable` by virtual time and `lane_timer` by the clock. Messages are read only
-- after their lane was chosen.
--
-- A message has two rows while it waits (`message`, appended; `ready`, the order in its lane) and
-- two while it is leased (`message`; `lease`, appended, because fences grow). Everything else
-- (keys, merges, own ids, ttls) has tables of its own, which only messages with these features
-- have rows in. The deadlines of a batch of leases are one row. messages.py has a table of the
-- rows that each state has.
--
-- `first_…`: from where an order is read. A database may keep what was deleted before (PostgreSQL
-- does as long as any transaction is open that began earlier), and would pass all of it each time.
--
-- Times are integer microseconds since 1970, rate clocks (tat) quarter microseconds: see
-- engines/shared/fairness.py.

CREATE TABLE shard (                     -- one row: counters, and the clock that never goes back
    one            INTEGER PRIMARY KEY CHECK (one = 1),
    nonce          TEXT NOT NULL,        -- the first part of generated ids
    seq            INTEGER NOT NULL DEFAULT 0,
    fence          INTEGER NOT NULL DEFAULT 0,
    now            INTEGER NOT NULL DEFAULT 0,
    policy_version INTEGER NOT NULL DEFAULT 0,
    waiting        INTEGER NOT NULL DEFAULT 0,
    bytes          INTEGER NOT NULL DEFAULT 0,
    leased         INTEGER NOT NULL DEFAULT 0,
    dead           INTEGER NOT NULL DEFAULT 0,
    published      INTEGER NOT NULL DEFAULT 0,
    delivered      INTEGER NOT NULL DEFAULT 0,
    done           INTEGER NOT NULL DEFAULT 0,
    retried        INTEGER NOT NULL DEFAULT 0,
    died           INTEGER NOT NULL DEFAULT 0,
    merged         INTEGER NOT NULL DEFAULT 0,
    expired        INTEGER NOT NULL DEFAULT 0,
    removed        INTEGER NOT NULL DEFAULT 0,
    lanes          INTEGER NOT NULL DEFAULT 0,
    own            INTEGER NOT NULL DEFAULT 0,  -- topics with own policies; 0: none are read
    -- no event, end of leases, timer, lane that is asleep or idle lane has an earlier time,
    first_event    INTEGER NOT NULL DEFAULT 0,
    first_end      INTEGER NOT NULL DEFAULT 0,
    first_timer    INTEGER NOT NULL DEFAULT 0,
    first_asleep   INTEGER NOT NULL DEFAULT 0,
    first_idle     INTEGER NOT NULL DEFAULT 0,
    -- no gate or key wakes earlier, and no known id, window or result ends earlier
    first_wake     INTEGER NOT NULL DEFAULT 0,
    first_sweep    INTEGER NOT NULL DEFAULT 4611686018427387904,  -- no sweep has a smaller number
    tallies        BLOB                  -- MessagePack, see tallies.py; NULL: nothing counted
);

-- tiers by layer, limits of the namespace (JSON)
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- policies of patterns
CREATE TABLE policy (layer TEXT NOT NULL, pattern TEXT NOT NULL, fields TEXT NOT NULL,
    PRIMARY KEY (layer, pattern)) WITHOUT ROWID;

-- Policies of exact topics: one row each, so that setting one costs the same at 1 topic and at
-- 1,000,000.
CREATE TABLE own_policy (topic TEXT PRIMARY KEY, own INTEGER NOT NULL) WITHOUT ROWID;

-- the own policies of topics, by layer (JSON); equal sets share a row
CREATE TABLE own_set (
    no     {numbered once},               -- never reused: processes cache sets by number
    layers TEXT NOT NULL UNIQUE,
    uses   INTEGER NOT NULL              -- the topics that have this set
);
-- Tiers change while programs run: these find an own policy that names a tier.
CREATE INDEX own_set_code_tier ON own_set ({code tier})
    WHERE {code tier} IS NOT NULL;
CREATE INDEX own_set_operator_tier ON own_set ({operator tier})
    WHERE {operator tier} IS NOT NULL;

-- a changed pattern whose lanes have not all been placed again yet
CREATE TABLE sweep (
    number  {numbered},
    pattern TEXT NOT NULL,
    after   TEXT NOT NULL DEFAULT ''     -- the name of the last lane that was placed
);

CREATE TABLE tier_queue (                -- one tier of one pool
    tier_queue {numbered},
    pool      TEXT NOT NULL,
    tier      TEXT NOT NULL,
    vt        INTEGER NOT NULL DEFAULT 0,   -- the virtual time of the lane that was served last
    carry     INTEGER NOT NULL DEFAULT 0,   -- of the tier's share, see fairness.carries
    mean      INTEGER NOT NULL DEFAULT 0,   -- a message's mean duration in microseconds, 0: unknown
    delivered INTEGER NOT NULL DEFAULT 0,
    first_vt  INTEGER NOT NULL DEFAULT 0,   -- none of its runnable lanes has an earlier one,
    first_lane INTEGER NOT NULL DEFAULT 0,  -- nor, at this virtual time, a smaller number
    first_group_vt INTEGER NOT NULL DEFAULT 0,  -- none of its groups with runnable lanes,
    first_gate_vt INTEGER NOT NULL DEFAULT 0,   -- and none that is first at an open gate
    UNIQUE (pool, tier)
);

-- Groups: lanes of a tier queue that compete as one.
--
-- A lane in a group has `lane.tier_queue` = -number of its group, so its group's lanes are in the
-- indexes of lanes as those of a tier queue are. The row lives as long as it has lanes.
CREATE TABLE group_queue (
    number     INTEGER PRIMARY KEY,      -- numbered together with lanes
    tier_queue INTEGER NOT NULL,
    name       TEXT NOT NULL,
    vt         INTEGER NOT NULL,         -- its own, among the lanes and groups of the tier queue
    inner_vt   INTEGER NOT NULL,         -- of the lane that was served last in it
    lanes      INTEGER NOT NULL,
    runnable   INTEGER NOT NULL,         -- how many of them are runnable
    weight     REAL NOT NULL,
    -- 1: it has a rate or a concurrency. Its lanes go through a gate, named U+001D and its name
    limited    INTEGER NOT NULL DEFAULT 0,
    first_vt   INTEGER NOT NULL DEFAULT 0,   -- none of its runnable lanes has an earlier one
    open       INTEGER NOT NULL DEFAULT 0,   -- whether it has an open gate
    UNIQUE (name, tier_queue)
);
CREATE INDEX group_runnable ON group_queue (tier_queue, vt, number) WHERE runnable > 0;
CREATE INDEX group_open ON group_queue (tier_queue, vt, number) WHERE open = 1;

CREATE TABLE gate (
    name        TEXT PRIMARY KEY,
    -- the limits that the code and the operator set (JSON); the operator's precede
    code        TEXT,
    operator    TEXT,
    tat         INTEGER NOT NULL DEFAULT 0,
    leased      INTEGER NOT NULL DEFAULT 0,
    open        INTEGER NOT NULL DEFAULT 1,
    -- the next permit of a shut gate; NULL: it is open, or opens at a settle
    wake        INTEGER,
    -- rates by cost: it is held until it has the permits that a delivery of a high cost needs
    need        INTEGER NOT NULL DEFAULT 0,
    held_until  INTEGER NOT NULL DEFAULT 0,
    owes        INTEGER NOT NULL DEFAULT 0,
    flow        TEXT,                    -- JSON, see shared/adaptive.py
    turn        INTEGER NOT NULL DEFAULT 0,  -- of the entry served last
    mean        INTEGER NOT NULL DEFAULT 0,  -- length of a lease, microseconds
    holder      INTEGER NOT NULL DEFAULT 0,  -- the lane that `need` is held for
    waiting     INTEGER NOT NULL DEFAULT 0,  -- lanes at gates that go through it
    claimed     INTEGER NOT NULL DEFAULT 0,  -- lanes that are runnable because it has spare, about
    held_turn   INTEGER NOT NULL DEFAULT 0   -- the holder's turn
) WITHOUT ROWID;
CREATE INDEX gate_timer ON gate (wake) WHERE wake IS NOT NULL;

-- The virtual times of a group at gates: its own and that of its lane served last there; and how
-- many of its lanes wait there.
CREATE TABLE group_turn (
    group_no   INTEGER NOT NULL,
    gate       TEXT NOT NULL,
    tier_queue INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    inner_turn INTEGER NOT NULL,
    waiting    INTEGER NOT NULL,
    PRIMARY KEY (group_no, gate)
) WITHOUT ROWID;
CREATE INDEX group_turn_order ON group_turn (gate, tier_queue, turn, group_no) WHERE waiting > 0;

-- One row for each gate and tier queue that has lanes there: the position of its first one in the
-- tier queue. A gate where a group is first stands in the order of that group, by the group's
-- first lane there. So the position of a group is only in its own row, however many gates its
-- lanes wait at.
CREATE TABLE gate_entry (
    tier_queue INTEGER NOT NULL,
    gate TEXT NOT NULL,
    vt   INTEGER NOT NULL,
    head INTEGER NOT NULL,
    open INTEGER NOT NULL,
    owner INTEGER NOT NULL DEFAULT 0,    -- tier queue, or -group
    -- the turn of its first lane; lanes that wait here as a group do not count
    first_turn INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tier_queue, gate)
) WITHOUT ROWID;
CREATE INDEX gate_entry_open ON gate_entry (owner, vt, head) WHERE open = 1;
CREATE INDEX gate_entry_gate ON gate_entry (gate, tier_queue);

CREATE TABLE lane (
    lane       INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,     -- the topic; topic ␟ partition; ␞ pattern ␟ bucket
    -- the topic or pattern that its policy is resolved for; NULL: its name
    rule       TEXT,
    tier_queue INTEGER NOT NULL,         -- or minus the number of its group
    -- 0 idle · 1 runnable · 2 asleep · 3 at its gate · 4 full · 5 paused
    place      INTEGER NOT NULL,
    wake       INTEGER,                  -- asleep: until then · idle: deleted then
    vt         INTEGER NOT NULL,
    gate       TEXT,                     -- where it waits, or waited last
    tat        INTEGER NOT NULL,
    ready      INTEGER NOT NULL,
    delayed    INTEGER NOT NULL,
    parked     INTEGER NOT NULL,
    leased     INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    published  INTEGER NOT NULL,
    delivered  INTEGER NOT NULL,
    done       INTEGER NOT NULL,
    -- recent deliveries, in windows: when the present window began,
    seen       INTEGER NOT NULL,
    lately     INTEGER NOT NULL,         -- the deliveries in it,
    before     INTEGER NOT NULL,         -- and in the one before
    -- no ready message of the lane has an earlier place
    first_rank INTEGER NOT NULL,
    first_pos  INTEGER NOT NULL,
    -- what few lanes have: back-off, rare counts, mean duration (JSON, see rows.Lane)
    more       TEXT,
    -- size classes for the top lists, see size_classes.py; NULL: too small
    big        INTEGER,
    old        INTEGER,
    busy       INTEGER,
    slow       INTEGER,
    -- the number of its topic's set of own policies (0: none), read together with the lane
    own        INTEGER NOT NULL DEFAULT 0,
    turn       INTEGER NOT NULL DEFAULT 0    -- its virtual time at its gate
);
CREATE INDEX lane_runnable ON lane (tier_queue, vt, lane) WHERE place = 1;
CREATE INDEX lane_timer ON lane (place, wake, lane) WHERE wake IS NOT NULL;
CREATE INDEX lane_gate ON lane (gate, tier_queue, turn, lane) WHERE place = 3;
CREATE INDEX lane_big ON lane (big) WHERE big IS NOT NULL;
CREATE INDEX lane_old ON lane (old) WHERE old IS NOT NULL;
CREATE INDEX lane_busy ON lane (busy) WHERE busy IS NOT NULL;
CREATE INDEX lane_slow ON lane (slow) WHERE slow IS NOT NULL;

CREATE TABLE message (
    mid        INTEGER PRIMARY KEY,      -- its first sequence number; generated ids contain it
    lane       INTEGER NOT NULL,
    state      INTEGER NOT NULL,         -- 0 ready or leased · 1 delayed · 2 parked · 3 dead
    rank       INTEGER NOT NULL,         -- -2 · priority, + 1 unless it is at the front
    seq        INTEGER NOT NULL,
    since      INTEGER NOT NULL,         -- publish time, or due time
    published  INTEGER NOT NULL,
    expires    INTEGER,
    serial     INTEGER NOT NULL,         -- 0 no · 1 hold · 2 yield
    -- 1: its order may differ from that of its sequence number (cursors read these)
    odd        INTEGER NOT NULL,
    key        TEXT,
    id         TEXT,                     -- its own id; NULL: a generated one
    topic      TEXT,                     -- set if the lane is a bucket
    mkey       BLOB,                     -- merge key
    headers    TEXT,
    attempts   INTEGER NOT NULL DEFAULT 0,
    deliveries INTEGER NOT NULL DEFAULT 0,
    suspect    INTEGER NOT NULL DEFAULT 0,
    joined     INTEGER NOT NULL DEFAULT 0,   -- 1: other messages joined it, see ident
    parts      INTEGER NOT NULL DEFAULT 0,   -- bodies beyond the first
    sticky     INTEGER NOT NULL DEFAULT 0,
    body       BLOB NOT NULL
);
CREATE INDEX message_aside ON message (lane, state, rank, since) WHERE state IN (1, 2);
CREATE INDEX message_due ON message (lane, since, mid) WHERE state = 1;
CREATE INDEX message_odd ON message (lane, rank, seq) WHERE odd = 1;
-- of a bucket: those of one topic, in the order in which a full backlog drops them
CREATE INDEX message_topic ON message (topic, (rank >> 1) DESC, since, seq) WHERE topic IS NOT NULL;

CREATE TABLE ready (                     -- the order in which a lane's messages are delivered
    lane INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    pos  INTEGER NOT NULL,               -- since; at the front: minus the sequence number
    seq  INTEGER NOT NULL,
    mid  INTEGER NOT NULL,
    PRIMARY KEY (lane, rank, pos, seq)
) WITHOUT ROWID;

CREATE TABLE lease (
    fence    INTEGER PRIMARY KEY,
    mid      INTEGER NOT NULL,
    lane     INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    granted  INTEGER NOT NULL,
    -- the duration charged at delivery, in tiers that are fair by time
    charge   INTEGER NOT NULL,
    started  INTEGER NOT NULL,           -- 1: the start of this suspect is recorded
    gate     TEXT,
    -- at most once: no message is left; "" or the serial key that the lease holds
    empty    TEXT,
    gone     INTEGER NOT NULL DEFAULT 0, -- its topic was deleted
    slot     TEXT,                       -- the key that it holds a slot of
    holder   TEXT                        -- who has it; NULL: a worker, whose heartbeat says so
);

-- Messages that were published one at a time and are not in their lanes yet. Each is one row on one
-- page, where a message in its lane changes four pages. See inbox.py.
CREATE TABLE inbox (
    mid       INTEGER PRIMARY KEY,       -- as in `message`
    published INTEGER NOT NULL,
    topic     TEXT NOT NULL,
    rank      INTEGER NOT NULL,          -- as in `message`
    headers   TEXT,
    body      BLOB NOT NULL,
    fence     INTEGER                    -- under which it is leased; NULL: it waits
);

-- merge = all
CREATE TABLE part (mid INTEGER NOT NULL, n INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (mid, n)) WITHOUT ROWID;

CREATE TABLE note (                      -- what only failed or unhandled messages have
    mid       INTEGER PRIMARY KEY,
    unhandled INTEGER,                   -- when a worker first had no handler for it
    tries     INTEGER NOT NULL DEFAULT 0,
    history   TEXT NOT NULL DEFAULT '[]'
);

CREATE TABLE serial_key (                -- a key with a ready or leased message
    lane INTEGER NOT NULL,
    key  TEXT NOT NULL,
    head INTEGER NOT NULL,               -- that message
    held INTEGER NOT NULL,               -- 1: it is leased, or waits for a retry
    -- none of its parked messages has an earlier place
    first_rank INTEGER NOT NULL,
    first_pos  INTEGER NOT NULL,
    PRIMARY KEY (lane, key)
) WITHOUT ROWID;

CREATE TABLE parked (                    -- the messages behind the head of their key
    lane INTEGER NOT NULL,
    key  TEXT NOT NULL,
    rank INTEGER NOT NULL,
    pos  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    mid  INTEGER NOT NULL,
    PRIMARY KEY (lane, key, rank, pos, seq)
) WITHOUT ROWID;

-- Limits per key inside a topic.
CREATE TABLE key_state (                 -- what a key has used, see shared/key_limits.py
    lane   INTEGER NOT NULL,
    key    TEXT NOT NULL,
    leased INTEGER NOT NULL,
    parked INTEGER NOT NULL,             -- messages that its limits have parked
    tat    INTEGER NOT NULL,
    wake   INTEGER,
    -- none of its parked messages has an earlier place
    first_rank INTEGER NOT NULL,
    first_pos  INTEGER NOT NULL,
    PRIMARY KEY (lane, key)
) WITHOUT ROWID;
CREATE INDEX key_timer ON key_state (wake) WHERE wake IS NOT NULL;

CREATE TABLE key_parked (                -- the messages that the limits of their keys have parked
    lane INTEGER NOT NULL,
    key  TEXT NOT NULL,
    rank INTEGER NOT NULL,
    pos  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    mid  INTEGER NOT NULL,
    PRIMARY KEY (lane, key, rank, pos, seq)
) WITHOUT ROWID;

-- the waiting message of each merge key
CREATE TABLE merge_key (lane INTEGER NOT NULL, mkey BLOB NOT NULL, mid INTEGER NOT NULL,
    PRIMARY KEY (lane, mkey)) WITHOUT ROWID;

-- edge = leading: until when new messages of a key wait for the end of the window
CREATE TABLE edge (
    topic TEXT NOT NULL,
    mkey  BLOB NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (topic, mkey)
) WITHOUT ROWID;
CREATE INDEX edge_until ON edge (until);

-- own ids, joined ids, and ids of finished messages
CREATE TABLE ident (
    id    TEXT NOT NULL,
    topic TEXT NOT NULL,
    mid   INTEGER,                       -- NULL: finished
    alias INTEGER NOT NULL DEFAULT 0,    -- 1: the id of a message that joined `mid`
    until INTEGER,                       -- finished: when it is deleted; NULL: never
    PRIMARY KEY (id, topic)
) WITHOUT ROWID;
CREATE INDEX ident_alias ON ident (mid) WHERE alias = 1;
CREATE INDEX ident_until ON ident (until) WHERE until IS NOT NULL;
CREATE INDEX ident_topic ON ident (topic) WHERE mid IS NULL;

CREATE TABLE dead (
    no     {numbered},
    mid    INTEGER NOT NULL UNIQUE,
    topic  TEXT NOT NULL,
    died   INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    reason TEXT NOT NULL,
    error  TEXT
);
CREATE INDEX dead_topic ON dead (topic, no);

CREATE TABLE dead_count (                -- the dead letters of each topic that has any
    topic   TEXT PRIMARY KEY,
    letters INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX dead_count_letters ON dead_count (letters);

CREATE TABLE event (                     -- what happens by the clock
    at   INTEGER NOT NULL,
    kind INTEGER NOT NULL,               -- 1 expires · 2 retention of a dead letter ends
    mid  INTEGER NOT NULL,
    PRIMARY KEY (at, kind, mid)
) WITHOUT ROWID;

CREATE TABLE lease_end (                 -- when leases of a batch run out, by its fences
    at    INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last  INTEGER NOT NULL,
    PRIMARY KEY (at, first)
) WITHOUT ROWID;

CREATE TABLE timer (                     -- of each lane with delayed messages
    lane INTEGER PRIMARY KEY,
    at   INTEGER NOT NULL,               -- none of them is due before
    turn INTEGER NOT NULL                -- as `at`; where that was due, when others arrived last
);
CREATE INDEX timer_turn ON timer (turn, lane);

-- What is stored of a message: its outcome (slot 0) and its last progress report (slot 1).
CREATE TABLE kept (
    id        TEXT NOT NULL,
    topic     TEXT NOT NULL,
    slot      INTEGER NOT NULL,
    until     INTEGER NOT NULL,
    generated INTEGER NOT NULL,          -- 1: an outcome that is found by its generated id alone
    body      BLOB NOT NULL,
    PRIMARY KEY (id, topic, slot)
) WITHOUT ROWID;
CREATE INDEX kept_until ON kept (until);

-- The signals that a blocked message has received; their bodies are in `part`.
CREATE TABLE came (mid INTEGER NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (mid, n)) WITHOUT ROWID;

-- The followers that a message's end notice carries.
CREATE TABLE follower (no {numbered}, id TEXT NOT NULL, topic TEXT NOT NULL,
    body BLOB NOT NULL);
CREATE INDEX follower_id ON follower (id, topic);

-- The programs that serve this namespace, and who leads what.
CREATE TABLE workers (                   -- one row each; every heartbeat replaces it
    id         TEXT PRIMARY KEY,
    pools      TEXT NOT NULL,            -- the names of the pools that it serves (JSON)
    started_us INTEGER NOT NULL,
    beat_us    INTEGER NOT NULL,         -- its last heartbeat
    dead_us    INTEGER NOT NULL,         -- when it counts as dead without another one
    until_us   INTEGER NOT NULL,         -- when its row may be deleted
    facts      TEXT NOT NULL             -- JSON, see engines/base/presence.py
) WITHOUT ROWID;
CREATE INDEX workers_until ON workers (until_us);

CREATE TABLE elections (                 -- one row each; it stays when nobody holds the term
    name   TEXT PRIMARY KEY,
    record TEXT NOT NULL                 -- JSON, see cluster/term_store.py
) WITHOUT ROWID;

-- The last batch that each spool of a producer has forwarded.
CREATE TABLE forwarded (
    spool TEXT PRIMARY KEY,
    batch TEXT NOT NULL,
    taken BLOB NOT NULL,                 -- its messages that this file has, see forwarding.py
    at_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX forwarded_at ON forwarded (at_us);

-- Top lists of topics by what arrived and failed lately.
CREATE TABLE recent (                    -- a bounded number of rows, see shared/recent.py
    kind  INTEGER NOT NULL,
    topic TEXT NOT NULL,
    score REAL NOT NULL,
    PRIMARY KEY (kind, topic)
) WITHOUT ROWID;
CREATE INDEX recent_score ON recent (kind, score);

CREATE TABLE history (                   -- what is made of tallies: few rows, which are replaced
    name   TEXT PRIMARY KEY,
    record BLOB NOT NULL                 -- see laneway/history/records.py
) WITHOUT ROWID;
