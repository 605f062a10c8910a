-- Grain: one row per run of a job that had another before it: the one that began last before it. Input: run_summary.
-- Runs of which nobody named the job are all called job: they have nothing else in common.
SELECT run, before
FROM (
  SELECT run, lag(run) OVER (PARTITION BY job ORDER BY ts, run) AS before
  FROM (
    SELECT run, last_value(job ORDER BY attempt) AS job, min(ts) AS ts FROM run_summary GROUP BY run
  ) AS runs
  WHERE job <> 'job'
) AS pairs
WHERE {where} AND before IS NOT NULL
