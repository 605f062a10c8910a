-- grain    one row per run, including restarts, on the UTC date on which it began
-- inputs   goodput and runs of the runs to compute (affected_runs)
-- formula  Sums over the attempts in goodput, and ratios of these sums:
--            goodput_ratio     = productive / wall time (Google, ML Goodput Measurement, 2024)
--            ettr_ratio        = productive runtime / available wall time: all time except starts, restarts and lost
--                                work, divided by wall time plus the first wait in the queue (Kokolis et al. 2024,
--                                Revisiting Reliability in Large-Scale Machine Learning Research Clusters, section
--                                II-D). Checkpoints and stalls count as productive there
--            mttf_s            = running time / failures; device_mttf_s likewise with device time, which is the inverse
--                                of the failure rate in that paper, per device instead of per node
--            checkpoint_*      = wall time, and time in checkpoints, per checkpoint; time in checkpoints over wall time
--            time_to_train_ns  = wall time from the end of the first start to the end of a finished run (MLPerf
--                                Training rules: run_start to run_stop)
WITH queued AS (
    -- from the first attempt with a time of submission; later waits are downtime
    SELECT
        runs.run,
        first_value(submitted_ts ORDER BY attempt, ts, incarnation) FILTER (WHERE submitted_ts IS NOT NULL)
            AS submitted_ts
    FROM runs
    INNER JOIN affected_runs ON affected_runs.run = runs.run
    GROUP BY runs.run
),
summed AS (
    SELECT
        goodput.run,
        min(ts) AS ts,
        max(end_ts) AS end_ts,
        last_value(status ORDER BY attempt) AS status,
        count(*) AS attempts,
        count(*) FILTER (WHERE status IN ('failed', 'abandoned')) AS failures,
        count(*) FILTER (WHERE status = 'preempted') AS preemptions,
        CASE WHEN count(steps) = count(*) THEN sum(steps) END AS steps,
        CASE WHEN count(steps_lost) = count(*) THEN sum(steps_lost) END AS steps_lost,
        exact_sum(tokens) AS tokens,
        exact_sum(tokens_lost) AS tokens_lost,
        sum(wall_ns) AS wall_ns,
        CASE WHEN count(init_ns) = count(*) THEN sum(init_ns) END AS init_ns,
        CASE WHEN count(productive_ns) = count(*) THEN sum(productive_ns) END AS productive_ns,
        sum(checkpoint_ns) AS checkpoint_ns,
        CASE WHEN count(evaluation_ns) = count(*) THEN sum(evaluation_ns) END AS evaluation_ns,
        sum(restart_ns) AS restart_ns,
        sum(downtime_ns) AS downtime_ns,
        sum(lost_work_ns) AS lost_work_ns,
        sum(stall_ns) AS stall_ns,
        sum(unattributed_ns) AS unattributed_ns,
        sum(checkpoints) AS checkpoints,
        CASE WHEN count(device_count) = count(*) THEN
            sum(CAST(wall_ns - downtime_ns AS DECIMAL(20, 0)) * CAST(device_count AS DECIMAL(10, 0)))
        END AS device_ns
    FROM goodput
    INNER JOIN affected_runs ON affected_runs.run = goodput.run
    GROUP BY goodput.run
),
known AS (
    SELECT
        summed.*,
        wall_ns - coalesce(init_ns, 0) - restart_ns - lost_work_ns AS effective_ns,
        CASE
            WHEN queued.submitted_ts IS NOT NULL
            THEN greatest((CAST(summed.ts AS BIGINT) - CAST(queued.submitted_ts AS BIGINT)) * 1000, 0)
        END AS queue_ns,
        CASE WHEN status = 'finished' THEN wall_ns - coalesce(init_ns, 0) END AS time_to_train_ns
    FROM summed
    LEFT JOIN queued ON queued.run = summed.run
)
SELECT
    known.run, affected_runs.date, ts, end_ts, status, attempts, attempts - 1 AS restarts, failures, preemptions,
    steps, steps_lost, tokens, tokens_lost,
    wall_ns, init_ns, productive_ns, checkpoint_ns, evaluation_ns, restart_ns, lost_work_ns, stall_ns, unattributed_ns,
    downtime_ns,
    CAST(productive_ns AS DOUBLE) / nullif(wall_ns, 0) AS goodput_ratio,
    queue_ns, effective_ns,
    wall_ns + coalesce(queue_ns, 0) AS available_ns,
    CASE WHEN productive_ns IS NOT NULL THEN CAST(effective_ns AS DOUBLE) / nullif(wall_ns + coalesce(queue_ns, 0), 0) END
        AS ettr_ratio,
    wall_ns - downtime_ns AS under_way_ns,
    CAST(wall_ns - downtime_ns AS DOUBLE) / nullif(failures, 0) / 1e9 AS mttf_s,
    CAST(device_ns AS DOUBLE) / 1e9 AS device_s,
    CAST(device_ns AS DOUBLE) / nullif(failures, 0) / 1e9 AS device_mttf_s,
    checkpoints,
    CAST(wall_ns AS DOUBLE) / nullif(checkpoints, 0) / 1e9 AS checkpoint_interval_s,
    CAST(checkpoint_ns AS DOUBLE) / nullif(checkpoints, 0) / 1e9 AS checkpoint_mean_s,
    CAST(checkpoint_ns AS DOUBLE) / nullif(wall_ns, 0) AS checkpoint_ratio,
    time_to_train_ns,
    nullif(concat('{', concat_ws(
        ',',
        CASE
            WHEN productive_ns IS NULL AND steps IS NOT NULL
            THEN '"goodput_ratio":"no step of an attempt was timed: metrics were logged by step alone"'
            WHEN productive_ns IS NULL
            THEN '"goodput_ratio":"the files that it was imported from do not say when it trained"'
            WHEN wall_ns = 0 THEN '"goodput_ratio":"nothing tells how long it was"'
        END,
        CASE WHEN init_ns IS NULL THEN '"init_ns":"the files that it was imported from do not say when it began"' END,
        CASE WHEN queue_ns IS NULL THEN '"queue_ns":"no submission time is recorded; available_ns has none"' END,
        CASE WHEN failures = 0 THEN '"mttf_s":"no attempt failed"' END,
        CASE
            WHEN device_ns IS NULL THEN '"device_mttf_s":"the devices of an attempt are not recorded"'
            WHEN failures = 0 THEN '"device_mttf_s":"no attempt failed"'
        END,
        CASE WHEN checkpoints = 0 THEN '"checkpoint_interval_s":"no checkpoint is recorded"' END,
        CASE WHEN steps IS NULL THEN '"steps":"the files that it was imported from tell no steps"' END,
        CASE
            WHEN evaluation_ns IS NULL
            THEN '"evaluation_ns":"ends of evaluations are recorded, not their begins; unattributed_ns has their time"'
        END,
        CASE WHEN time_to_train_ns IS NULL THEN concat('"time_to_train_ns":"the run is ', status, '"') END
    ), '}'), '{}') AS unavailable
FROM known
INNER JOIN affected_runs ON affected_runs.run = known.run
