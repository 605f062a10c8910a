-- Grain: one row per run, and one for hosts without one, of which the kernel or a cgroup killed processes for memory in
-- the last two days. Input: host_hourly.
SELECT holder_run AS run, count(DISTINCT host) AS hosts, max(kills) AS most_kills, sum(kills) AS kills,
  min(hour) AS first_hour, max(hour) AS last_hour
FROM (
  SELECT holder_run, host, hour, coalesce(oom_kill_count, 0) + coalesce(cgroup_oom_kill_count, 0) AS kills
  FROM host_hourly
  WHERE date >= {since_date} AND hour >= {since}
)
WHERE kills > 0
GROUP BY holder_run
ORDER BY kills DESC, run
LIMIT 50
