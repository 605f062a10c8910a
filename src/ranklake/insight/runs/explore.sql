-- Grain: one row per 1/{parts} of a range of an axis, of the part of a run that is within. Inputs: those of placed.sql.
-- Means of values; extremes of any rank and step: no spike is lost, whatever the count of parts. A part with n = 1 is a
-- value as it was recorded.
{placed}
SELECT least({parts} - 1, CAST((at - first_at) * {parts} / greatest(last_at - first_at, 1e-9) AS BIGINT)) AS part,
  min(x) AS x, avg(mean) AS mean, min(low) FILTER (WHERE abs(low) < 'Infinity') AS low,
  max(high) FILTER (WHERE abs(high) < 'Infinity') AS high, count(*) AS n
FROM within CROSS JOIN bounds
GROUP BY part
ORDER BY part
