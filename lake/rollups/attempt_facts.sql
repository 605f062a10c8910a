-- grain    one row per run and attempt, on the first UTC date with a row of runs or a step of the attempt
-- inputs   runs and step_rollup of the runs to compute (affected_runs), of all dates
-- formula  The facts of an attempt, whenever they were recorded. For each column, the first recorded value is used.
--          Values that a user recorded for an imported log take precedence over the log, the latest such value first,
--          and are valid for later attempts that have none. World size: the largest recorded one, since processes may
--          know only a part of the run.
WITH said AS (
    SELECT
        runs.run, runs.attempt, runs.date, ts, job, "user", team, runs.cluster, pool, scheduler_job_id, world_size,
        device_type, device_name, device_count, compute_dtype, injected,
        coalesce(dtype, lower(trim(regexp_replace(replace(compute_dtype, 'torch.', ''), '[-_ ]+', ' ', 'g')))) AS dtype,
        coalesce(labels LIKE '%"said":"by hand"%', FALSE) AS by_hand,
        CASE WHEN labels LIKE '%"said":"by hand"%' THEN -CAST(ts AS BIGINT) ELSE CAST(ts AS BIGINT) END AS place,
        incarnation, segment, slot
    FROM runs
    INNER JOIN affected_runs ON affected_runs.run = runs.run
    LEFT JOIN dtypes
        ON dtypes.word = lower(trim(regexp_replace(replace(compute_dtype, 'torch.', ''), '[-_ ]+', ' ', 'g')))
),
told AS (
    SELECT
        run, attempt, min(date) AS date, min(ts) AS ts, max(ts) AS end_ts,
        first_value(job ORDER BY by_hand DESC, place, incarnation, segment, slot) FILTER (WHERE job IS NOT NULL) AS job,
        first_value("user" ORDER BY by_hand DESC, place, incarnation, segment, slot) FILTER (WHERE "user" IS NOT NULL) AS "user",
        first_value(team ORDER BY by_hand DESC, place, incarnation, segment, slot) FILTER (WHERE team IS NOT NULL) AS team,
        first_value(said.cluster ORDER BY by_hand DESC, place, incarnation, segment, slot)
            FILTER (WHERE said.cluster IS NOT NULL) AS "cluster",
        first_value(pool ORDER BY by_hand DESC, place, incarnation, segment, slot) FILTER (WHERE pool IS NOT NULL) AS pool,
        first_value(scheduler_job_id ORDER BY by_hand DESC, place, incarnation, segment, slot)
            FILTER (WHERE scheduler_job_id IS NOT NULL) AS scheduler_job_id,
        coalesce(
            first_value(world_size ORDER BY place, incarnation, segment, slot) FILTER (WHERE by_hand AND world_size IS NOT NULL),
            max(world_size)
        ) AS world_size,
        first_value(device_type ORDER BY by_hand DESC, place, incarnation, segment, slot)
            FILTER (WHERE device_type IS NOT NULL) AS device_type,
        first_value(device_name ORDER BY by_hand DESC, place, incarnation, segment, slot)
            FILTER (WHERE device_name IS NOT NULL) AS device_name,
        first_value(device_count ORDER BY by_hand DESC, place, incarnation, segment, slot)
            FILTER (WHERE device_count IS NOT NULL) AS device_count,
        first_value(compute_dtype ORDER BY by_hand DESC, place, incarnation, segment, slot)
            FILTER (WHERE dtype IS NOT NULL) AS compute_dtype,
        first_value(dtype ORDER BY by_hand DESC, place, incarnation, segment, slot) FILTER (WHERE dtype IS NOT NULL) AS dtype,
        CASE
            WHEN count(dtype) FILTER (WHERE by_hand) > 0 THEN FALSE
            ELSE count(DISTINCT dtype) > 1
        END AS has_dtypes,
        first_value(injected ORDER BY by_hand DESC, place, incarnation, segment, slot)
            FILTER (WHERE injected IS NOT NULL) AS injected
    FROM said
    GROUP BY run, attempt
),
by_hand AS (
    SELECT
        run, attempt,
        first_value(job ORDER BY place, incarnation, segment, slot) FILTER (WHERE job IS NOT NULL) AS job,
        first_value("user" ORDER BY place, incarnation, segment, slot) FILTER (WHERE "user" IS NOT NULL) AS "user",
        first_value(team ORDER BY place, incarnation, segment, slot) FILTER (WHERE team IS NOT NULL) AS team,
        first_value(said.cluster ORDER BY place, incarnation, segment, slot) FILTER (WHERE said.cluster IS NOT NULL) AS "cluster",
        first_value(pool ORDER BY place, incarnation, segment, slot) FILTER (WHERE pool IS NOT NULL) AS pool,
        first_value(device_type ORDER BY place, incarnation, segment, slot) FILTER (WHERE device_type IS NOT NULL) AS device_type,
        first_value(device_name ORDER BY place, incarnation, segment, slot) FILTER (WHERE device_name IS NOT NULL) AS device_name,
        first_value(device_count ORDER BY place, incarnation, segment, slot) FILTER (WHERE device_count IS NOT NULL) AS device_count,
        first_value(compute_dtype ORDER BY place, incarnation, segment, slot) FILTER (WHERE dtype IS NOT NULL) AS compute_dtype,
        first_value(dtype ORDER BY place, incarnation, segment, slot) FILTER (WHERE dtype IS NOT NULL) AS dtype
    FROM said
    WHERE by_hand
    GROUP BY run, attempt
),
stepped AS (
    SELECT step_rollup.run, step_rollup.attempt, min(step_rollup.date) AS date, min(step_rollup.ts) AS ts
    FROM step_rollup
    INNER JOIN affected_runs ON affected_runs.run = step_rollup.run
    GROUP BY step_rollup.run, step_rollup.attempt
),
attempts AS (
    SELECT run, attempt FROM told
    UNION
    SELECT run, attempt FROM stepped
),
known AS (
    SELECT
        attempts.run, attempts.attempt,
        least(told.date, stepped.date) AS date, least(told.ts, stepped.ts) AS ts, greatest(end_ts, stepped.ts) AS end_ts,
        told.job, told."user", told.team, told."cluster", told.pool, scheduler_job_id, world_size,
        told.device_type, told.device_name, told.device_count, told.compute_dtype, told.dtype, has_dtypes, injected,
        by_hand.job AS said_job, by_hand."user" AS said_user, by_hand.team AS said_team, by_hand."cluster" AS said_cluster,
        by_hand.pool AS said_pool, by_hand.device_type AS said_device_type, by_hand.device_name AS said_device_name,
        by_hand.device_count AS said_device_count, by_hand.compute_dtype AS said_compute_dtype, by_hand.dtype AS said_dtype
    FROM attempts
    LEFT JOIN told ON told.run = attempts.run AND told.attempt = attempts.attempt
    LEFT JOIN stepped ON stepped.run = attempts.run AND stepped.attempt = attempts.attempt
    LEFT JOIN by_hand ON by_hand.run = attempts.run AND by_hand.attempt = attempts.attempt
)
SELECT
    run, attempt, date, ts, end_ts,
    coalesce(job, last_value(said_job) IGNORE NULLS OVER so_far) AS job,
    coalesce("user", last_value(said_user) IGNORE NULLS OVER so_far) AS "user",
    coalesce(team, last_value(said_team) IGNORE NULLS OVER so_far) AS team,
    coalesce("cluster", last_value(said_cluster) IGNORE NULLS OVER so_far) AS "cluster",
    coalesce(pool, last_value(said_pool) IGNORE NULLS OVER so_far) AS pool,
    scheduler_job_id, world_size,
    coalesce(device_type, last_value(said_device_type) IGNORE NULLS OVER so_far) AS device_type,
    coalesce(device_name, last_value(said_device_name) IGNORE NULLS OVER so_far) AS device_name,
    coalesce(device_count, last_value(said_device_count) IGNORE NULLS OVER so_far) AS device_count,
    coalesce(compute_dtype, last_value(said_compute_dtype) IGNORE NULLS OVER so_far) AS compute_dtype,
    coalesce(dtype, last_value(said_dtype) IGNORE NULLS OVER so_far) AS dtype,
    coalesce(has_dtypes, FALSE) AS has_dtypes,
    injected
FROM known
WINDOW so_far AS (PARTITION BY run ORDER BY attempt ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
