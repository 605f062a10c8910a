-- grain    one row per job of a scheduler, on the UTC date on which it was submitted
-- inputs   jobs, of all dates with rows of jobs that were submitted on the date; a row's date is when its state was
--          seen
-- formula  Of the rows of a job (cluster, id and time of submission, since ids are reused), the one with an outcome,
--          else the latest. Times more than $max_days days from the row's own date are from a wrong clock, and NULL. A
--          job without a time of submission is identified by its start, else by when it was seen. Steps of a job
--          (123.batch, 123.0+1) belong to it.
WITH bounded AS (
    SELECT
        * EXCLUDE (submit_ts, start_ts, end_ts),
        CASE WHEN abs(CAST(submit_ts AS BIGINT) - CAST(ts AS BIGINT)) <= $max_days * 86400000000 THEN submit_ts END
            AS submit_ts,
        CASE
            -- for a job that was cancelled in the queue, Slurm reports its end as its start
            WHEN outcome = 'cancelled' AND start_ts = end_ts AND coalesce(elapsed_s, 0) = 0 THEN NULL
            WHEN abs(CAST(start_ts AS BIGINT) - CAST(ts AS BIGINT)) <= $max_days * 86400000000 THEN start_ts
        END AS start_ts,
        CASE WHEN abs(CAST(end_ts AS BIGINT) - CAST(ts AS BIGINT)) <= $max_days * 86400000000 THEN end_ts END AS end_ts
    FROM jobs
    WHERE NOT regexp_like(job_id, '^[0-9]+(_[0-9]+)?([+][0-9]+)?[.](batch|extern|interactive|[0-9]+)([+][0-9]+)?$')
),
anchored AS (
    SELECT *, coalesce(submit_ts, start_ts, ts) AS begin_ts, CASE WHEN outcome IS NULL THEN 0 ELSE 1 END AS is_over
    FROM bounded
),
ranked AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY "cluster", job_id, begin_ts
            ORDER BY is_over DESC, ts DESC, end_ts DESC NULLS LAST, incarnation, segment, slot
        ) AS place
    FROM anchored
    WHERE begin_ts >= $begin AND begin_ts < $begin + INTERVAL '24' HOUR
),
last_known AS (
    SELECT
        *,
        TRY_CAST(round((elapsed_s + coalesce(suspended_s, 0)) * 1e6) AS BIGINT) AS ran_us,
        CASE
            WHEN gpu_count >= 0 THEN gpu_count
            -- a scheduler that counts a resource leaves it out for jobs that have none of it
            WHEN gpu_count IS NULL AND gpu_type IS NULL AND cpu_count IS NOT NULL
                AND max(gpu_count) OVER (PARTITION BY "cluster") IS NOT NULL THEN 0
        END AS gpus
    FROM ranked
    WHERE place = 1
),
judged AS (
    SELECT
        *,
        CASE
            WHEN start_ts IS NULL OR end_ts < start_ts THEN NULL
            WHEN end_ts IS NOT NULL THEN CAST(end_ts AS BIGINT)
            WHEN is_over = 1 THEN CAST(start_ts AS BIGINT) + ran_us
            ELSE greatest(CAST(ts AS BIGINT), CAST(start_ts AS BIGINT) + coalesce(ran_us, 0))
        END AS held_until_us,
        CASE
            WHEN submit_ts IS NULL OR start_ts < submit_ts THEN NULL
            WHEN start_ts IS NOT NULL THEN CAST(start_ts AS BIGINT)
            WHEN is_over = 0 THEN greatest(CAST(ts AS BIGINT), CAST(submit_ts AS BIGINT))
            WHEN end_ts >= submit_ts THEN CAST(end_ts AS BIGINT)
        END AS wait_until_us
    FROM last_known
),
timed AS (
    SELECT
        *,
        CASE
            WHEN start_ts IS NULL AND (is_over = 0 OR coalesce(elapsed_s, 0) = 0) THEN 0
            WHEN gpus = 0 THEN 0
            WHEN held_until_us IS NOT NULL THEN gpus * (held_until_us - CAST(start_ts AS BIGINT)) / 1e6
            WHEN start_ts IS NULL THEN coalesce(gpus * elapsed_s, CASE WHEN gpu_time_s >= 0 THEN gpu_time_s END)
        END AS gpu_s
    FROM judged
)
SELECT
    "cluster", job_id, begin_ts,
    to_timestamp_micros(greatest(
        CAST(begin_ts AS BIGINT), held_until_us, wait_until_us, CAST(start_ts AS BIGINT), CAST(end_ts AS BIGINT)
    )) AT TIME ZONE 'UTC' AS until_ts,
    job_name, pool, team, "user", state, outcome, submit_ts, start_ts, end_ts,
    to_timestamp_micros(wait_until_us) AT TIME ZONE 'UTC' AS wait_until_ts,
    to_timestamp_micros(held_until_us) AT TIME ZONE 'UTC' AS held_until_ts,
    CASE WHEN start_ts >= submit_ts THEN (CAST(start_ts AS BIGINT) - CAST(submit_ts AS BIGINT)) / 1e6 END AS queue_time_s,
    gpus AS gpu_count, gpu_type, node_count, gpu_s,
    nullif(concat('{', concat_ws(', ',
        CASE WHEN gpus IS NULL THEN '"gpu_count": "the scheduler does not say"' END,
        CASE
            WHEN held_until_us IS NOT NULL OR (start_ts IS NULL AND is_over = 0) THEN NULL
            WHEN end_ts < start_ts THEN '"held_until_ts": "it ends before it begins"'
            WHEN start_ts IS NOT NULL THEN '"held_until_ts": "it is over, and nobody says when it ended"'
            WHEN elapsed_s > 0 THEN '"held_until_ts": "it ran, and nobody says when it started"'
        END,
        CASE
            WHEN start_ts < submit_ts THEN '"queue_time_s": "it starts before it was submitted"'
            WHEN submit_ts IS NULL THEN '"queue_time_s": "nobody says when it was submitted"'
        END,
        CASE WHEN gpu_s IS NULL THEN '"gpu_s": "its GPUs or its time are not known"' END
    ), '}'), '{}') AS unavailable,
    $date AS date
FROM timed
