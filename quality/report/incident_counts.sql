-- Grain: one row. Input: rows of incidents.sql.
SELECT
  coalesce(sum(CASE WHEN state = 'open' AND severity IN ('critical', 'error') THEN 1 ELSE 0 END), 0) AS open_alarms,
  coalesce(sum(CASE WHEN state = 'open' AND severity NOT IN ('critical', 'error') THEN 1 ELSE 0 END), 0) AS open_others,
  coalesce(sum(CASE WHEN state = 'closed' THEN 1 ELSE 0 END), 0) AS closed,
  coalesce(sum(flaps), 0) AS flaps
FROM ({rows})
