-- A batch begins with its row in this table: those that are under way are waited for, later ones wait, and then find no function.
LOCK TABLE client IN ACCESS EXCLUSIVE MODE;
DO $$
DECLARE
  it regprocedure;
BEGIN
  FOR it IN SELECT oid FROM pg_proc WHERE pronamespace = to_regnamespace(current_schema()) AND proname IN (
    'now_us', 'totals', 'tallies', 'places_of', 'sessions_of', 'add_amounts', 'stamp', 'remember', 'count_call', 'finish_call', 'expire',
    'judge', 'reserve', 'settle_late', 'settle', 'renew', 'snapshot', 'forget', 'lock_sessions', 'run_op', 'run_batch', 'sweep')
  LOOP
    EXECUTE 'DROP FUNCTION ' || it;
  END LOOP;
END $$;
ALTER TABLE schema_version ADD COLUMN readable_since int NOT NULL DEFAULT 0;
