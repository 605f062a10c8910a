-- Grain: one row per rank that held its peers up on a date, of late. Input: rank_health, run_summary. injected: the fault
-- that whoever started the run says was made on purpose.
SELECT run, attempt, rank, date, excess_ratio, excess_s, steps_compared, cause, reason, injected
FROM rank_health
LEFT JOIN (
  SELECT run, attempt, max(injected) AS injected
  FROM run_summary
  GROUP BY run, attempt
) AS told USING (run, attempt)
WHERE is_straggler AND date >= {since_date}
ORDER BY excess_ratio DESC, run, attempt, rank, date
LIMIT 50
