-- Grain: one row per rank that held its peers up on a date, of late. Input: rank_health.
SELECT run, attempt, rank, date, excess_ratio, excess_s, steps_compared, cause, reason
FROM rank_health
WHERE is_straggler AND date >= {since_date}
ORDER BY excess_ratio DESC, run, attempt, rank, date
LIMIT 50
