-- grain    one row per run and attempt, on the UTC date on which the run began; rows of one run meet end to end
-- inputs   step_rollup, spans, events and runs of the runs to compute (affected_runs), whatever their dates
-- formula  Wall time of the attempt, cut at every boundary of every interval; each piece goes to the first of the kinds below
--          that covers it, so that the kinds add up to wall time to the nanosecond. The timeline is rank 0's, which as a rule
--          saves the checkpoints (step_rollup says what stands in where rank 0 recorded nothing). Kinds as in Google's
--          ML goodput measurement (2024).
--              1 checkpoint, 2 evaluation   what the step's own columns say, laid at the step's end
--              3 init, restart, 4 stall     what a step took beyond $hang_factor medians: of the first step it is the start
--                                           (compilation), of a later one a hang, if it is longer than $stall_s seconds
--              5 lost work, 6 productive    steps; lost if a later attempt began at or before that step again
--              7 checkpoint, 8 evaluation   spans and events between steps
--              9 init, restart              until the first step; of a restart also since the attempt before was last seen
--             10 stall                      what is left in one piece of more than $stall_s seconds
--             11 unattributed               what is left
WITH lead_rows AS (
    SELECT
        step_rollup.run, step_rollup.attempt, step,
        CAST(lead_ts AS BIGINT) * 1000 AS begin_ns,
        lead_step_time_ns AS step_ns,
        coalesce(lead_checkpoint_time_ns, 0) AS checkpoint_ns,
        coalesce(lead_evaluation_time_ns, 0) AS evaluation_ns
    FROM step_rollup
    INNER JOIN affected_runs ON affected_runs.run = step_rollup.run
),
happened AS (
    SELECT
        events.run, events.attempt, events.rank, events.event,
        CAST(events.ts AS BIGINT) * 1000 AS end_ns,
        CAST(events.ts AS BIGINT) * 1000 - greatest(coalesce(events.duration_ns, 0), 0) AS begin_ns
    FROM events
    INNER JOIN affected_runs ON affected_runs.run = events.run
    -- written by whoever found the remains, at whatever time that was
    WHERE events.event NOT IN ('abandoned', 'gap')
),
seen AS (
    SELECT run, attempt, begin_ns, begin_ns + step_ns AS end_ns FROM lead_rows
    UNION ALL
    SELECT run, attempt, begin_ns, end_ns FROM happened
    UNION ALL
    SELECT runs.run, runs.attempt, CAST(runs.ts AS BIGINT) * 1000, CAST(runs.ts AS BIGINT) * 1000
    FROM runs
    INNER JOIN affected_runs ON affected_runs.run = runs.run
),
closed AS (
    SELECT run, attempt, max(end_ns) AS end_ns FROM happened WHERE event = 'run_end' GROUP BY run, attempt
),
extents AS (
    SELECT
        seen.run, seen.attempt,
        min(seen.begin_ns) AS begin_ns,
        coalesce(max(closed.end_ns), max(seen.end_ns)) AS end_ns
    FROM seen
    LEFT JOIN closed ON closed.run = seen.run AND closed.attempt = seen.attempt
    GROUP BY seen.run, seen.attempt
),
ordered AS (
    -- attempts begin in their order, whatever their hosts' clocks say
    SELECT
        run, attempt, end_ns,
        max(begin_ns) OVER (PARTITION BY run ORDER BY attempt) AS begin_ns
    FROM extents
),
bounded AS (
    SELECT
        run, attempt, begin_ns,
        greatest(begin_ns, least(end_ns, coalesce(lead(begin_ns) OVER (PARTITION BY run ORDER BY attempt), end_ns)))
            AS end_ns
    FROM ordered
),
windows AS (
    SELECT
        run, attempt, begin_ns AS start_ns, end_ns,
        coalesce(lag(end_ns) OVER (PARTITION BY run ORDER BY attempt), begin_ns) AS begin_ns,
        row_number() OVER (PARTITION BY run ORDER BY attempt) > 1 AS is_restart
    FROM bounded
),
resumed AS (
    -- the first step of the attempts after each one
    SELECT
        run, attempt,
        min(first_step) OVER (
            PARTITION BY run ORDER BY attempt ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) AS step
    FROM (SELECT run, attempt, min(step) AS first_step FROM lead_rows GROUP BY run, attempt)
),
typical AS (
    SELECT run, attempt, CAST(median(step_ns) AS BIGINT) AS step_ns, min(begin_ns) AS first_ns
    FROM lead_rows
    GROUP BY run, attempt
),
timed AS (
    SELECT
        lead_rows.run, lead_rows.attempt, lead_rows.begin_ns,
        lead_rows.begin_ns + lead_rows.step_ns AS end_ns,
        least(lead_rows.checkpoint_ns, lead_rows.step_ns) AS checkpoint_ns,
        least(lead_rows.evaluation_ns, lead_rows.step_ns - least(lead_rows.checkpoint_ns, lead_rows.step_ns))
            AS evaluation_ns,
        coalesce(lead_rows.step >= resumed.step, FALSE) AS is_lost,
        lead_rows.begin_ns = typical.first_ns AS is_first,
        CASE
            WHEN lead_rows.step_ns - lead_rows.checkpoint_ns - lead_rows.evaluation_ns
                <= $hang_factor * typical.step_ns THEN 0
            WHEN lead_rows.begin_ns > typical.first_ns AND lead_rows.step_ns <= $stall_s * 1000000000 THEN 0
            ELSE lead_rows.step_ns - lead_rows.checkpoint_ns - lead_rows.evaluation_ns - typical.step_ns
        END AS beyond_ns
    FROM lead_rows
    INNER JOIN typical ON typical.run = lead_rows.run AND typical.attempt = lead_rows.attempt
    LEFT JOIN resumed ON resumed.run = lead_rows.run AND resumed.attempt = lead_rows.attempt
),
intervals AS (
    SELECT run, attempt, 1 AS kind, end_ns - checkpoint_ns AS begin_ns, end_ns FROM timed WHERE checkpoint_ns > 0
    UNION ALL
    SELECT run, attempt, 2, end_ns - checkpoint_ns - evaluation_ns, end_ns - checkpoint_ns
    FROM timed WHERE evaluation_ns > 0
    UNION ALL
    SELECT run, attempt, CASE WHEN is_first THEN 3 ELSE 4 END, begin_ns, begin_ns + beyond_ns
    FROM timed WHERE beyond_ns > 0
    UNION ALL
    SELECT run, attempt, CASE WHEN is_lost THEN 5 ELSE 6 END, begin_ns, end_ns FROM timed
    UNION ALL
    SELECT happened.run, happened.attempt, CASE happened.event WHEN 'checkpoint' THEN 7 ELSE 8 END,
        happened.begin_ns, happened.end_ns
    FROM happened
    WHERE happened.event IN ('checkpoint', 'evaluation') AND happened.rank = 0
    UNION ALL
    SELECT spans.run, spans.attempt, CASE spans.kind WHEN 'checkpoint' THEN 7 ELSE 8 END,
        CAST(spans.ts AS BIGINT) * 1000, CAST(spans.ts AS BIGINT) * 1000 + spans.duration_ns
    FROM spans
    INNER JOIN affected_runs ON affected_runs.run = spans.run
    WHERE spans.kind IN ('checkpoint', 'evaluation') AND spans.rank = 0
    UNION ALL
    -- without any step all of the attempt was a start
    SELECT windows.run, windows.attempt, 9, windows.begin_ns, coalesce(typical.first_ns, windows.end_ns)
    FROM windows
    LEFT JOIN typical ON typical.run = windows.run AND typical.attempt = windows.attempt
    UNION ALL
    SELECT run, attempt, 11, begin_ns, end_ns FROM windows
),
clipped AS (
    SELECT
        windows.run, windows.attempt, intervals.kind,
        greatest(intervals.begin_ns, windows.begin_ns) AS begin_ns,
        least(intervals.end_ns, windows.end_ns) AS end_ns
    FROM intervals
    INNER JOIN windows ON windows.run = intervals.run AND windows.attempt = intervals.attempt
    WHERE least(intervals.end_ns, windows.end_ns) > greatest(intervals.begin_ns, windows.begin_ns)
),
changes AS (
    SELECT run, attempt, at_ns, kind, sum(change) AS change
    FROM (
        SELECT run, attempt, kind, begin_ns AS at_ns, 1 AS change FROM clipped
        UNION ALL
        SELECT run, attempt, kind, end_ns, -1 FROM clipped
    )
    GROUP BY run, attempt, at_ns, kind
),
boundaries AS (
    SELECT
        run, attempt, at_ns,
        sum(CASE kind WHEN 1 THEN change ELSE 0 END) AS c1, sum(CASE kind WHEN 2 THEN change ELSE 0 END) AS c2,
        sum(CASE kind WHEN 3 THEN change ELSE 0 END) AS c3, sum(CASE kind WHEN 4 THEN change ELSE 0 END) AS c4,
        sum(CASE kind WHEN 5 THEN change ELSE 0 END) AS c5, sum(CASE kind WHEN 6 THEN change ELSE 0 END) AS c6,
        sum(CASE kind WHEN 7 THEN change ELSE 0 END) AS c7, sum(CASE kind WHEN 8 THEN change ELSE 0 END) AS c8,
        sum(CASE kind WHEN 9 THEN change ELSE 0 END) AS c9
    FROM changes
    GROUP BY run, attempt, at_ns
),
pieces AS (
    SELECT
        run, attempt, at_ns,
        lead(at_ns) OVER timeline - at_ns AS piece_ns,
        CASE
            WHEN sum(c1) OVER timeline > 0 THEN 1 WHEN sum(c2) OVER timeline > 0 THEN 2
            WHEN sum(c3) OVER timeline > 0 THEN 3 WHEN sum(c4) OVER timeline > 0 THEN 4
            WHEN sum(c5) OVER timeline > 0 THEN 5 WHEN sum(c6) OVER timeline > 0 THEN 6
            WHEN sum(c7) OVER timeline > 0 THEN 7 WHEN sum(c8) OVER timeline > 0 THEN 8
            WHEN sum(c9) OVER timeline > 0 THEN 9 ELSE 11
        END AS kind
    FROM boundaries
    WINDOW timeline AS (PARTITION BY run, attempt ORDER BY at_ns)
),
islands AS (
    -- neighbouring pieces of unattributed time are one piece
    SELECT
        run, attempt, kind, piece_ns,
        sum(CASE kind WHEN 11 THEN 0 ELSE 1 END) OVER (PARTITION BY run, attempt ORDER BY at_ns) AS island
    FROM pieces
    WHERE piece_ns > 0
),
joined AS (
    SELECT run, attempt, kind, sum(piece_ns) AS piece_ns
    FROM islands
    GROUP BY run, attempt, kind, CASE kind WHEN 11 THEN island ELSE 0 END
),
spent AS (
    SELECT
        run, attempt,
        sum(CASE WHEN kind IN (3, 9) THEN piece_ns ELSE 0 END) AS start_ns,
        sum(CASE WHEN kind = 6 THEN piece_ns ELSE 0 END) AS productive_ns,
        sum(CASE WHEN kind IN (1, 7) THEN piece_ns ELSE 0 END) AS checkpoint_ns,
        sum(CASE WHEN kind IN (2, 8) THEN piece_ns ELSE 0 END) AS evaluation_ns,
        sum(CASE WHEN kind = 5 THEN piece_ns ELSE 0 END) AS lost_work_ns,
        sum(CASE WHEN kind = 4 OR (kind = 11 AND piece_ns > $stall_s * 1000000000) THEN piece_ns ELSE 0 END)
            AS stall_ns,
        sum(CASE WHEN kind = 11 AND piece_ns <= $stall_s * 1000000000 THEN piece_ns ELSE 0 END) AS unattributed_ns
    FROM joined
    GROUP BY run, attempt
),
counted AS (
    SELECT run, attempt, count(*) AS steps, sum(CAST(is_lost AS INT)) AS steps_lost FROM timed GROUP BY run, attempt
)
SELECT
    windows.run, windows.attempt, affected_runs.date,
    to_timestamp_micros(windows.begin_ns / 1000) AT TIME ZONE 'UTC' AS ts,
    to_timestamp_micros(windows.end_ns / 1000) AT TIME ZONE 'UTC' AS end_ts,
    coalesce(counted.steps, 0) AS steps,
    coalesce(counted.steps_lost, 0) AS steps_lost,
    windows.end_ns - windows.begin_ns AS wall_ns,
    CASE WHEN windows.is_restart THEN 0 ELSE coalesce(spent.start_ns, 0) END AS init_ns,
    coalesce(spent.productive_ns, 0) AS productive_ns,
    coalesce(spent.checkpoint_ns, 0) AS checkpoint_ns,
    coalesce(spent.evaluation_ns, 0) AS evaluation_ns,
    CASE WHEN windows.is_restart THEN coalesce(spent.start_ns, 0) ELSE 0 END AS restart_ns,
    coalesce(spent.lost_work_ns, 0) AS lost_work_ns,
    coalesce(spent.stall_ns, 0) AS stall_ns,
    coalesce(spent.unattributed_ns, 0) AS unattributed_ns,
    CAST(spent.productive_ns AS DOUBLE) / nullif(windows.end_ns - windows.begin_ns, 0) AS goodput_ratio
FROM windows
INNER JOIN affected_runs ON affected_runs.run = windows.run
LEFT JOIN spent ON spent.run = windows.run AND spent.attempt = windows.attempt
LEFT JOIN counted ON counted.run = windows.run AND counted.attempt = windows.attempt
