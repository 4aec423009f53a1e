-- Consecutive failures may have a window: the failures of the row that are inside it. The row is made of the latest failures, so
-- that is the smaller one of its length and of the failures inside. And who only looks, counting nothing and taking nothing, is
-- told about attempts as well. All else is as before.

-- What a limit has used and what running calls hold of it, if that leaves no room for this call.
CREATE OR REPLACE FUNCTION judge(p_sid text, p_limit jsonb, p_step jsonb, p_now bigint, OUT used bigint, OUT in_flight bigint, OUT is_full boolean)
LANGUAGE plpgsql AS $$
DECLARE
  l_scope text := p_limit->>0; l_counter text := p_limit->>1; maximum bigint := (p_limit->>2)::bigint;
  span bigint := (p_limit->>3)::bigint; l_amount text := p_limit->>6; asked bigint := (p_step->'amounts'->>l_amount)::bigint;
  t tally;
BEGIN
  in_flight := 0;
  IF l_amount <> '' THEN
    SELECT spent, reserved INTO used, in_flight FROM amount WHERE sid = p_sid AND scope = l_scope AND name = l_amount;
    in_flight := coalesce(in_flight, 0);
  ELSE
    SELECT * INTO t FROM tally WHERE sid = p_sid AND scope = l_scope;
    used := CASE l_counter WHEN 'attempts' THEN t.attempts WHEN 'executions' THEN t.executions WHEN 'successes' THEN t.successes
                           WHEN 'failures' THEN t.failures WHEN 'consecutive_failures' THEN t.consecutive_failures END;
    IF (p_limit->>5)::boolean THEN
      in_flight := coalesce(t.held, 0);
    END IF;
  END IF;
  IF span > 0 AND l_counter = 'consecutive_failures' THEN
    SELECT least(coalesce(used, 0), count(*)) INTO used
      FROM moment WHERE sid = p_sid AND scope = l_scope AND counter = 'failures' AND at > p_now - span;
  ELSIF span > 0 THEN
    SELECT CASE WHEN l_amount = '' THEN count(*) ELSE sum(value) END INTO used
      FROM moment WHERE sid = p_sid AND scope = l_scope AND counter = l_counter AND at > p_now - span;
  END IF;
  used := coalesce(used, 0);
  is_full := CASE
    WHEN l_counter = 'attempts' AND (p_step->>'attempt')::boolean THEN used > maximum
    WHEN l_counter = 'attempts' THEN NOT (p_step->>'hold')::boolean AND used >= maximum
    WHEN asked IS NOT NULL AND l_amount <> '' THEN used + in_flight + asked > maximum
    ELSE used + in_flight >= maximum END;  -- who does not say what it will use may go on while anything is left
END $$;
