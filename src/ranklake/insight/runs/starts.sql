-- Grain: one row per kind of start of a run (init: the first attempt's, restart: all others') and part of it, the longest
-- first. Input: goodput_daily. `starts` counts the attempts; the parts of a kind add up to its columns of run_goodput.
SELECT
  CASE WHEN init_ns > 0 THEN 'init' ELSE 'restart' END AS kind, start_part AS part,
  count(DISTINCT attempt) AS starts, sum(init_ns + restart_ns) AS duration_ns
FROM goodput_daily
WHERE run = $run AND start_part IS NOT NULL
GROUP BY 1, 2
ORDER BY kind, duration_ns DESC, part
