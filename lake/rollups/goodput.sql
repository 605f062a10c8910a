-- grain    one row per run and attempt, on the UTC date on which the run began; the rows of a run are contiguous in
--          time
-- inputs   goodput_daily (which divides wall time), events, spans, runs and step_rollup of the runs to compute
--          (affected_runs)
-- formula  Sums over goodput_daily. There is no goodput if no step has a time. Checkpoints saved: the number by rank
--          0's events, spans, or times in steps, whichever is largest.
-- status   The first that applies: failed (a failure event of a main thread, or a run_end with an error), preempted
--          (every rank was told to end), interrupted (Ctrl-C), finished (a run_end), abandoned (an abandoned event, a
--          rank that ended by a signal, or a later attempt), imported (no rank ran with capture, and the imported files
--          have no end), running
WITH told AS (
    SELECT
        events.run, events.attempt,
        count(*) FILTER (
            WHERE (event = 'failure' AND coalesce(attributes, '') NOT LIKE '%"thread":%')
               OR (event = 'run_end' AND severity = 'error')
        ) AS failures,
        count(*) FILTER (WHERE event = 'interruption') AS interruptions,
        count(*) FILTER (WHERE event = 'run_end') AS ends,
        count(*) FILTER (
            WHERE event = 'abandoned' OR (event = 'rank_end' AND attributes LIKE '%"signal":%')
        ) AS abandoned,
        count(DISTINCT CASE WHEN event = 'preemption' THEN rank END) AS preempted_ranks,
        count(DISTINCT CASE WHEN event = 'rank_start' THEN rank END) AS started_ranks,
        count(*) FILTER (WHERE event = 'checkpoint' AND rank = 0) AS checkpoints
    FROM events
    INNER JOIN affected_runs ON affected_runs.run = events.run
    GROUP BY events.run, events.attempt
),
saved AS (
    SELECT
        spans.run, spans.attempt,
        count(*) FILTER (WHERE spans.kind = 'checkpoint') AS checkpoints,
        -- evaluations, and a start, with only a known end
        count(*) FILTER (WHERE name = 'evaluation' AND spans.attributes LIKE '%"begin":"not told"%')
            AS untold_evaluations,
        count(*) FILTER (WHERE name = 'init' AND coalesce(spans.attributes, '') NOT LIKE '%"begin":"not told"%') AS inits
    FROM spans
    INNER JOIN affected_runs ON affected_runs.run = spans.run
    WHERE spans.rank = 0
      AND (
          spans.kind = 'checkpoint'
          OR (spans.kind = 'phase' AND spans.step IS NULL AND spans.name IN ('evaluation', 'init'))
      )
    GROUP BY spans.run, spans.attempt
),
stepped AS (
    SELECT step_rollup.run, step_rollup.attempt, count(*) FILTER (WHERE lead_checkpoint_time_ns > 0) AS checkpoints
    FROM step_rollup
    INNER JOIN affected_runs ON affected_runs.run = step_rollup.run
    GROUP BY step_rollup.run, step_rollup.attempt
),
summed AS (
    SELECT
        goodput_daily.run, goodput_daily.attempt,
        min(ts) AS ts,
        max(end_ts) AS end_ts,
        sum(steps) AS steps,
        sum(steps_lost) AS steps_lost,
        exact_sum(tokens) AS tokens,
        exact_sum(tokens_lost) AS tokens_lost,
        sum(wall_ns) AS wall_ns,
        sum(init_ns) AS init_ns,
        sum(productive_ns) AS productive_ns,
        sum(checkpoint_ns) AS checkpoint_ns,
        sum(evaluation_ns) AS evaluation_ns,
        sum(restart_ns) AS restart_ns,
        sum(downtime_ns) AS downtime_ns,
        sum(lost_work_ns) AS lost_work_ns,
        sum(stall_ns) AS stall_ns,
        sum(unattributed_ns) AS unattributed_ns,
        max(device_count) AS device_count,
        count(untimed_ns) > 0 AS is_untimed
    FROM goodput_daily
    INNER JOIN affected_runs ON affected_runs.run = goodput_daily.run
    GROUP BY goodput_daily.run, goodput_daily.attempt
),
brought AS (
    SELECT DISTINCT runs.run, runs.attempt
    FROM runs
    INNER JOIN affected_runs ON affected_runs.run = runs.run
    LEFT ANTI JOIN (SELECT run, attempt FROM told WHERE started_ranks > 0) AS started
        ON started.run = runs.run AND started.attempt = runs.attempt
    WHERE runs.labels LIKE '%"imported":%' AND runs.labels LIKE '%"source_sha256":%'
),
known AS (
    SELECT
        summed.* EXCLUDE (init_ns, productive_ns, steps, steps_lost),
        -- a log without lines of steps does not mean that there were no steps
        CASE WHEN summed.steps > 0 OR brought.run IS NULL THEN summed.steps END AS steps,
        CASE WHEN summed.steps > 0 OR brought.run IS NULL THEN summed.steps_lost END AS steps_lost,
        CASE WHEN NOT is_untimed THEN productive_ns END AS productive_ns,
        CASE WHEN init_ns > 0 OR saved.inits > 0 OR brought.run IS NULL THEN init_ns END AS init_ns,
        brought.run IS NOT NULL AS is_imported, saved.untold_evaluations, saved.checkpoints AS saved_checkpoints
    FROM summed
    LEFT JOIN brought ON brought.run = summed.run AND brought.attempt = summed.attempt
    LEFT JOIN saved ON saved.run = summed.run AND saved.attempt = summed.attempt
)
SELECT
    known.run, known.attempt, affected_runs.date, known.ts, known.end_ts, known.steps, known.steps_lost,
    known.wall_ns, known.init_ns, known.productive_ns, known.checkpoint_ns,
    CASE WHEN coalesce(known.untold_evaluations, 0) = 0 THEN known.evaluation_ns END AS evaluation_ns,
    known.restart_ns,
    known.lost_work_ns, known.stall_ns, known.unattributed_ns,
    CAST(known.productive_ns AS DOUBLE) / nullif(known.wall_ns, 0) AS goodput_ratio,
    CASE
        WHEN told.failures > 0 THEN 'failed'
        WHEN told.preempted_ranks > 0 AND told.preempted_ranks >= told.started_ranks THEN 'preempted'
        WHEN told.interruptions > 0 THEN 'interrupted'
        WHEN told.ends > 0 AND told.preempted_ranks = 0 THEN 'finished'
        WHEN told.abandoned > 0 OR known.attempt < max(known.attempt) OVER (PARTITION BY known.run) THEN 'abandoned'
        WHEN told.preempted_ranks > 0 THEN 'preempted'
        WHEN is_imported THEN 'imported'
        ELSE 'running'
    END AS status,
    known.downtime_ns,
    greatest(
        coalesce(told.checkpoints, 0), coalesce(saved_checkpoints, 0), coalesce(stepped.checkpoints, 0)
    ) AS checkpoints,
    known.tokens, known.tokens_lost, known.device_count
FROM known
INNER JOIN affected_runs ON affected_runs.run = known.run
LEFT JOIN told ON told.run = known.run AND told.attempt = known.attempt
LEFT JOIN stepped ON stepped.run = known.run AND stepped.attempt = known.attempt
