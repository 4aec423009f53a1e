-- Events. body is the event as a line of JSON, the other columns are for questions; at is microseconds since the epoch.
-- key is what the process that writes an event calls it: one that is sent again, because its answer was lost, is not written twice.
CREATE TABLE event (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text NOT NULL UNIQUE,
  at bigint NOT NULL,
  session text NOT NULL, tool text NOT NULL, action text NOT NULL, outcome text,
  body text NOT NULL
);
CREATE INDEX event_at ON event (at);
CREATE INDEX event_session ON event (session);

-- Which version of the schema this is, and since which version programs can use it.
CREATE TABLE event_version (
  version int NOT NULL, readable_since int NOT NULL
);

-- Write events, and return the answers that they go with. The counters of one with a tail stand in the answer of its operation, which
-- may refuse it: a reservation that was not granted, or that a limit objects to, needs another event.
CREATE FUNCTION write_events(
  p_answers jsonb, p_keys text[], p_ats bigint[], p_sessions text[], p_tools text[], p_actions text[], p_outcomes text[],
  p_heads text[], p_tails text[], p_ops int[]
) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO event (key, at, session, tool, action, outcome, body)
    SELECT e.key, e.at, e.session, e.tool, e.action, e.outcome,
      CASE WHEN e.tail IS NULL THEN e.head
           ELSE e.head || (it.answer->'counters'->>0) || ', "session_execution_count": ' || (it.answer->'counters'->>1) || e.tail END
    FROM unnest(p_keys, p_ats, p_sessions, p_tools, p_actions, p_outcomes, p_heads, p_tails, p_ops) WITH ORDINALITY
      AS e(key, at, session, tool, action, outcome, head, tail, op, place), LATERAL (SELECT p_answers->e.op) AS it(answer)
    WHERE e.tail IS NULL OR (coalesce((it.answer->>'granted')::boolean, true) AND coalesce(it.answer->'breaches', '[]') = '[]')
    ORDER BY e.place
  ON CONFLICT (key) DO NOTHING;
  RETURN p_answers;
END $$;
