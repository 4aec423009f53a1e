-- Counters by account, which is a session or a scope, and tool ('' is the whole account), budgets, calls in flight, calls that ended, moments for windows.
-- Times are microseconds since the epoch, by the server's clock; amounts are millionths. Half-empty pages keep updates in place.
CREATE TABLE session (
  sid     text PRIMARY KEY,
  touched bigint NOT NULL,  -- 0: forgotten, the row is only the lock
  longest bigint NOT NULL DEFAULT 0  -- how far its longest window looks back: it is kept for at least as long
) WITH (fillfactor = 50);
CREATE INDEX session_touched ON session (touched);

CREATE TABLE tally (
  sid text NOT NULL, tool text NOT NULL,
  attempts bigint NOT NULL DEFAULT 0, executions bigint NOT NULL DEFAULT 0, successes bigint NOT NULL DEFAULT 0,
  failures bigint NOT NULL DEFAULT 0, consecutive_failures bigint NOT NULL DEFAULT 0, held bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (sid, tool)
) WITH (fillfactor = 50);

CREATE TABLE amount (
  sid text NOT NULL, tool text NOT NULL, name text NOT NULL,
  spent bigint NOT NULL DEFAULT 0, reserved bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (sid, tool, name)
) WITH (fillfactor = 50);

CREATE TABLE lease (
  sid text NOT NULL, call text NOT NULL,
  started bigint NOT NULL, expires bigint, step jsonb NOT NULL, answer jsonb NOT NULL,
  PRIMARY KEY (sid, call)
);

CREATE TABLE ended (
  sid text NOT NULL, call text NOT NULL,
  how text NOT NULL, counted jsonb, at bigint NOT NULL,
  PRIMARY KEY (sid, call)
);
CREATE INDEX ended_at ON ended (at);

CREATE TABLE moment (
  sid text NOT NULL, tool text NOT NULL, counter text NOT NULL,
  at bigint NOT NULL, value bigint NOT NULL
);
CREATE INDEX moment_of ON moment (sid, tool, counter, at);

-- The last batch of each process that writes here, and what was answered: a batch that is sent again changes nothing.
CREATE TABLE client (
  id text PRIMARY KEY,
  batch bigint NOT NULL, answers jsonb, at bigint NOT NULL
) WITH (fillfactor = 50);

-- Which version of the library's schema this is, and since which version programs can use it.
CREATE TABLE schema_version (
  version int NOT NULL, readable_since int NOT NULL
);
