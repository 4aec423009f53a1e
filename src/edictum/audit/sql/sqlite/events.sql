-- Events in the order in which they were committed. body is the event as a line of JSON, the other columns are for questions.
CREATE TABLE event (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,  -- microseconds since the epoch
  session TEXT NOT NULL, tool TEXT NOT NULL, action TEXT NOT NULL, outcome TEXT,
  body TEXT NOT NULL
);
CREATE INDEX event_at ON event (at);
CREATE INDEX event_session ON event (session);

-- The newest operation of each connection that writes here: one that is sent again, because its answer was lost, changes nothing.
CREATE TABLE event_writer (
  id TEXT PRIMARY KEY,
  number INTEGER NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;

-- Which version of the schema this is, and since which version programs can use it.
CREATE TABLE event_version (written_by INTEGER NOT NULL, readable_since INTEGER NOT NULL);
