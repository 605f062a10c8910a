-- Grain: one row per step of a run, as its last attempt did it. Input: step_rollup. Tokens of all steps up to and with it,
-- NULL from the first step on whose tokens nobody counted; seconds from the first step's begin, idle time included.
SELECT step AS at_step, elapsed_s,
  CASE WHEN count(tokens) OVER so_far = count(*) OVER so_far THEN sum(CAST(tokens AS DOUBLE)) OVER so_far END AS tokens_seen
FROM (
  SELECT step, tokens,
    CAST(CAST(ts AS BIGINT) - min(CAST(ts AS BIGINT)) OVER () AS DOUBLE) / 1e6 AS elapsed_s,
    row_number() OVER (PARTITION BY step ORDER BY attempt DESC) AS newest
  FROM step_rollup
  WHERE run = $run
) AS every
WHERE newest = 1
WINDOW so_far AS (ORDER BY step)
