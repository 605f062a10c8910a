-- grain    one row per run, attempt and rank with an event since $since
-- inputs   segments (time of the last row, of any table) and events
-- formula  last times and last events; `ranklake.lake.ingest.status.liveness` derives the state from them
SELECT
    said.run, said.attempt, said.rank,
    greatest(said.ts, coalesce(life.ts, said.ts)) AS heard_ts,
    life.progress_ts, said.start_ts, said.end_ts, said.abandoned_ts, said.failure_ts, said.preemption_ts,
    said.beat_ts, said.beat, said.start, said.step
FROM (
    SELECT
        run, attempt, rank,
        max(ts) AS ts,
        max(CASE WHEN event = 'rank_start' THEN ts END) AS start_ts,
        max(CASE WHEN event = 'rank_end' THEN ts END) AS end_ts,
        max(CASE WHEN event = 'abandoned' THEN ts END) AS abandoned_ts,
        max(CASE WHEN event = 'failure' AND coalesce(attributes, '') NOT LIKE '%"thread":%' THEN ts END) AS failure_ts,
        max(CASE WHEN event = 'preemption' THEN ts END) AS preemption_ts,
        max(CASE WHEN event = 'heartbeat' THEN ts END) AS beat_ts,
        max(step) AS step,
        last_value(attributes ORDER BY ts) FILTER (WHERE event = 'heartbeat') AS beat,
        last_value(attributes ORDER BY ts) FILTER (WHERE event = 'rank_start') AS start
    FROM events
    WHERE date >= $since
      AND event IN ('rank_start', 'rank_end', 'abandoned', 'failure', 'preemption', 'heartbeat')
    GROUP BY run, attempt, rank
) said
LEFT JOIN (
    SELECT
        run, attempt, rank,
        max(ts_max) AS ts,
        max(CASE WHEN segments."table" IN ('steps', 'spans') THEN ts_max END) AS progress_ts
    FROM segments
    WHERE date >= $since AND unreadable IS NULL AND segments."table" <> 'annotations'  -- users write annotations, too
    GROUP BY run, attempt, rank
) life
ON life.run = said.run AND life.attempt = said.attempt AND life.rank = said.rank
ORDER BY said.run, said.attempt, said.rank
