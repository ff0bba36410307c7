-- The registry: live state that is looked up by something other than an id or a due time.
--
-- Every table has key columns, columns to search by, and one body: the msgpack of key, searched columns and value.
-- `crc` is the CRC-32C of the body, so that a flipped bit is found at the row it is in (SQLite does not look).

CREATE TABLE IF NOT EXISTS meta          (name TEXT PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;

-- Messages that were restarted, or are to be listed by owner: where their present version is.
CREATE TABLE IF NOT EXISTS live          (origin_seq INTEGER PRIMARY KEY, owner TEXT, due_at_ms INTEGER,
                            body BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS live_by_owner ON live (owner, due_at_ms, origin_seq) WHERE owner IS NOT NULL;

-- What became of messages, for as long as the retention says.
CREATE TABLE IF NOT EXISTS finalised     (origin_seq INTEGER PRIMARY KEY, owner TEXT, finalised_at_ms INTEGER,
                            body BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS finalised_by_time  ON finalised (finalised_at_ms, origin_seq);
CREATE INDEX IF NOT EXISTS finalised_by_owner ON finalised (owner, finalised_at_ms, origin_seq) WHERE owner IS NOT NULL;

-- Of owners: by namespace and owner. A namespace that is empty stands for rows of format 1, which did not say.
CREATE TABLE IF NOT EXISTS groups        (namespace TEXT, owner TEXT, name TEXT, closed_at_ms INTEGER,
                            body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (namespace, owner, name)) WITHOUT ROWID;
-- What several messages are about: the first versions of those that wait.
CREATE TABLE IF NOT EXISTS subjects      (subject TEXT PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS idempotency   (namespace TEXT, owner TEXT, key TEXT, accepted_at_ms INTEGER,
                            body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (namespace, owner, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idempotency_by_time ON idempotency (accepted_at_ms);
-- Lines of a request with an idempotency key: the answers of up to 64 neighbours.
CREATE TABLE IF NOT EXISTS lines         (namespace TEXT, owner TEXT, request TEXT, page INTEGER, accepted_at_ms INTEGER,
                            body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (namespace, owner, request, page)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lines_by_time ON lines (accepted_at_ms);
-- Names of messages: the first version of the message that was given a name last. A row goes with the outcome of that message.
CREATE TABLE IF NOT EXISTS names         (namespace TEXT, name TEXT, origin_seq INTEGER,
                            body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (namespace, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS names_by_message ON names (origin_seq);
CREATE TABLE IF NOT EXISTS owners        (namespace TEXT, owner TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (namespace, owner)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS policies      (scope TEXT, name TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (scope, name)) WITHOUT ROWID;

-- What has a name and is no message: tenants, namespaces, schemas.
CREATE TABLE IF NOT EXISTS catalogue     (sort TEXT, name TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (sort, name)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS topics        (name TEXT PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunks        (topic TEXT, number INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS waiting       (topic TEXT, number INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS subscriptions (topic TEXT, name TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS acks          (topic TEXT, subscription TEXT, number INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, subscription, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS producers     (topic TEXT, producer TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, producer)) WITHOUT ROWID;
-- Which messages of a producer are stored, by their sequence numbers; `producers` is what earlier versions kept of that.
CREATE TABLE IF NOT EXISTS sequences     (topic TEXT, producer TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL,
                            PRIMARY KEY (topic, producer)) WITHOUT ROWID;

-- Batches that were adopted: what is left of each, and apart from that, so that it is written once, its files.
CREATE TABLE IF NOT EXISTS batches       (name TEXT PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch_files   (name TEXT PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
