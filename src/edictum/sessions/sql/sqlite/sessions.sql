-- Counters by account, which is a session or a scope, and tool ('' is the whole session), budgets, calls in flight, calls that ended, moments for windows.
CREATE TABLE session (
  sid     TEXT PRIMARY KEY,
  touched REAL NOT NULL,
  longest REAL NOT NULL  -- seconds that its longest window looks back: it is kept for at least as long
) WITHOUT ROWID;
CREATE INDEX session_touched ON session (touched);

CREATE TABLE tally (
  sid TEXT NOT NULL, tool TEXT NOT NULL,
  attempts INTEGER NOT NULL, executions INTEGER NOT NULL, successes INTEGER NOT NULL, failures INTEGER NOT NULL,
  consecutive_failures INTEGER NOT NULL, held INTEGER NOT NULL,
  PRIMARY KEY (sid, tool)
) WITHOUT ROWID;

CREATE TABLE amount (
  sid TEXT NOT NULL, tool TEXT NOT NULL, name TEXT NOT NULL,
  spent INTEGER NOT NULL, reserved INTEGER NOT NULL,
  PRIMARY KEY (sid, tool, name)
) WITHOUT ROWID;

-- terms: what the call holds, see _wire.py; answer: what its reservation was answered, for a repetition.
CREATE TABLE lease (
  sid TEXT NOT NULL, call TEXT NOT NULL,
  started REAL NOT NULL, expires REAL, terms TEXT NOT NULL, answer TEXT NOT NULL,
  PRIMARY KEY (sid, call)
) WITHOUT ROWID;

CREATE TABLE ended (
  sid TEXT NOT NULL, call TEXT NOT NULL,
  how TEXT NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (sid, call)
) WITHOUT ROWID;
CREATE INDEX ended_at ON ended (at);

CREATE TABLE moment (
  sid TEXT NOT NULL, tool TEXT NOT NULL, counter TEXT NOT NULL,
  at REAL NOT NULL, value INTEGER NOT NULL
);
CREATE INDEX moment_of ON moment (sid, tool, counter, at);

-- Since which version of the schema programs can use this file; which version it has itself is its user_version.
CREATE TABLE readable (since INTEGER NOT NULL);
