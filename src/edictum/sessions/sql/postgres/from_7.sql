-- What was called a scope of a session is a tool of an account, and a call names its accounts instead of the sessions above it.
ALTER TABLE session ADD COLUMN longest bigint NOT NULL DEFAULT 0;
ALTER TABLE tally RENAME COLUMN scope TO tool;
ALTER TABLE amount RENAME COLUMN scope TO tool;
ALTER TABLE moment RENAME COLUMN scope TO tool;

UPDATE lease SET step =
  CASE WHEN sid = step->>'sid' AND call = step->>'call' THEN
    step - '{scopes,parents}'::text[] || jsonb_build_object(
      'tools', step->'scopes',
      'name', sid || E'\x1f' || call,
      'accounts', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                       'sid', parent, 'tools', step->'scopes', 'limits', step->'limits', 'windows', step->'windows')), '[]')
                   FROM jsonb_array_elements_text(step->'parents') AS parent))
  ELSE
    jsonb_build_object('tools', step->'scopes', 'windows', step->'windows', 'amounts', step->'amounts', 'counts', step->'counts')
  END;
