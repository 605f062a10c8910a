-- grain    one row per pair of processes that recorded the same rank of the same attempt at the same time, since $since
-- inputs   events (start of each process) and segments (time of the last row of each process)
-- formula  the later process started more than a second before the last row of the earlier one; the second allows for
--          differences between clocks of hosts
WITH started AS (
    SELECT run, attempt, rank, incarnation, min(ts) AS first_ts
    FROM events WHERE date >= $since AND event = 'rank_start'
    GROUP BY run, attempt, rank, incarnation
),
heard AS (
    SELECT run, attempt, rank, incarnation, max(ts_max) AS last_ts
    FROM segments WHERE date >= $since AND unreadable IS NULL
    GROUP BY run, attempt, rank, incarnation
),
lives AS (
    SELECT started.run, started.attempt, started.rank, started.incarnation, first_ts, last_ts
    FROM started JOIN heard
    ON heard.run = started.run AND heard.attempt = started.attempt AND heard.rank = started.rank
        AND heard.incarnation = started.incarnation
)
SELECT a.run, a.attempt, a.rank, a.incarnation AS earlier, b.incarnation AS later, b.first_ts AS since
FROM lives a JOIN lives b
ON a.run = b.run AND a.attempt = b.attempt AND a.rank = b.rank
WHERE (a.first_ts < b.first_ts OR (a.first_ts = b.first_ts AND a.incarnation < b.incarnation))
  AND b.first_ts + INTERVAL '1 second' < a.last_ts
ORDER BY a.run, a.attempt, a.rank, b.first_ts
