-- grain    one row per run, attempt, UTC date, epoch and part of a start; the rows of a run are contiguous in time
-- inputs   step_rollup, run_epochs, spans, events, runs and attempt_facts of the runs to compute (affected_runs), of
--          all dates
-- formula  The wall time of the attempt is cut at the ends of all intervals. Each piece gets the first of the kinds
--          below that covers it, so the kinds add up to wall time exactly, in nanoseconds. The timeline is rank 0's,
--          which usually saves the checkpoints (see step_rollup for steps without rank 0). The kinds are those of
--          Google's ML goodput measurement (2024).
--              1 checkpoint, 2 evaluation   times in the step's own columns, placed at the step's end
--              3 init, restart, 4 stall     the time of a step beyond $hang_factor medians: a start (compilation) for
--                                           the first step, a hang for a later one if it is longer than $stall_s
--                                           seconds
--              5 lost work, 6 productive    steps; lost if a later attempt began at or before the step again
--              7 checkpoint, 8 evaluation   spans and events between steps
--              9 init, restart              time until the first step; for a restart, also downtime since the last
--                                           record of the previous attempt
--             10 stall                      other pieces longer than $stall_s seconds
--             11 unattributed               all other time
--          A run with a span ``init`` (kind phase, outside of steps), as in imported logs, begins with this span, and
--          its start ends with it. Its spans ``train`` are productive, too. In such a run, recorded intervals take
--          precedence over those inferred from step times: kind 3 is the span, checkpoints and evaluations are kinds 1
--          and 2, and steps are productive only without spans ``train``. Evaluations with only an end, ``staging`` of
--          data, and steps that had not ended when a log with one line for several steps ended are spans of kind phase,
--          too, and
--             12 unattributed               of any length. So is all time after the first step of an attempt without
--                                           step times, such as one with only metrics by step (untimed), and all time
--                                           of an imported attempt without steps and spans ``train``
--          Pieces of init and restart have a part: rank 0's span ``init/<part>``, of several the one that begins last,
--          with sampled ones (stream ``sampled``) last. An attempt begins with the first of these spans. Without a
--          span, the part is ``downtime`` before the attempt, ``first_step`` within the first step, else
--          ``unexplained``. An imported profiler trace (event ``profiler_trace``) has a section of a run. It begins and
--          ends with its events, and time without steps is unattributed, not a start. Finally, pieces are cut at
--          midnight (UTC) and at the begin of epochs. A step counts on the date on which it began. Days in which no
--          piece begins or ends are quiet: more than $quiet_days consecutive ones are one row, on the first.
-- into timeline: the steps of rank 0; of an attempt that timed steps no others, such as one whose block raised
SELECT
    step_rollup.run, step_rollup.attempt, step,
    CAST(lead_ts AS BIGINT) * 1000 AS begin_ns,
    CAST(lead_ts AS BIGINT) * 1000 + lead_step_time_ns AS end_ns,
    lead_step_time_ns AS step_ns,
    least(coalesce(lead_checkpoint_time_ns, 0), lead_step_time_ns) AS checkpoint_ns,
    least(
        coalesce(lead_evaluation_time_ns, 0),
        lead_step_time_ns - least(coalesce(lead_checkpoint_time_ns, 0), lead_step_time_ns)
    ) AS evaluation_ns,
    tokens, mean_step_time_s IS NOT NULL AS is_timed
FROM step_rollup
INNER JOIN affected_runs ON affected_runs.run = step_rollup.run
LEFT ANTI JOIN (
    SELECT DISTINCT step_rollup.run, step_rollup.attempt
    FROM step_rollup
    INNER JOIN affected_runs ON affected_runs.run = step_rollup.run
    WHERE mean_step_time_s IS NOT NULL
) AS timed
    ON timed.run = step_rollup.run AND timed.attempt = step_rollup.attempt AND step_rollup.mean_step_time_s IS NULL;

-- into happened: events, which end at their time, but for those that whoever found the remains wrote, at whatever time
SELECT
    events.run, events.attempt, events.rank, events.event, events.step,
    CAST(events.ts AS BIGINT) * 1000 AS end_ns,
    CAST(events.ts AS BIGINT) * 1000 - greatest(coalesce(events.duration_ns, 0), 0) AS begin_ns
FROM events
INNER JOIN affected_runs ON affected_runs.run = events.run
WHERE events.event NOT IN ('abandoned', 'gap');

-- into rank_0_spans: of rank 0's spans, those that tell more of its time than steps do
SELECT
    spans.run, spans.attempt, spans.kind, spans.name, spans.step, spans.stream,
    CAST(spans.ts AS BIGINT) * 1000 AS begin_ns,
    CAST(spans.ts AS BIGINT) * 1000 + spans.duration_ns AS end_ns
FROM spans
INNER JOIN affected_runs ON affected_runs.run = spans.run
WHERE spans.rank = 0
  AND (
      spans.kind IN ('checkpoint', 'evaluation')
      OR (spans.kind = 'other' AND spans.name LIKE 'init/_%')
      OR (
          spans.kind = 'phase' AND spans.step IS NULL
          AND (
              spans.name IN ('init', 'train', 'staging')
              OR (spans.name = 'evaluation' AND spans.attributes LIKE '%"begin":"not told"%')
              OR (spans.name = 'unlogged' AND spans.attributes LIKE '%"unfinished":true%')
          )
      )
  );

-- view told: what rank 0 itself says of an attempt's start and of its training
SELECT
    run, attempt, name, CASE WHEN name LIKE 'init/%' THEN substr(name, 6) END AS part,
    coalesce(stream = 'sampled', FALSE) AS is_sampled, begin_ns, end_ns
FROM rank_0_spans
WHERE kind IN ('other', 'phase');

-- into start_parts: where each part of a start begins, until the next one does; '' where nobody says what it is
SELECT
    edges.run, edges.attempt, edges.at_ns,
    coalesce(first_value(told.part ORDER BY is_sampled, told.begin_ns DESC, told.end_ns, told.part)
        FILTER (WHERE told.part IS NOT NULL), '') AS part
FROM (
    SELECT run, attempt, begin_ns AS at_ns FROM told WHERE part IS NOT NULL
    UNION
    SELECT run, attempt, end_ns FROM told WHERE part IS NOT NULL
) AS edges
LEFT JOIN told
    ON told.run = edges.run AND told.attempt = edges.attempt AND told.part IS NOT NULL
    AND told.begin_ns <= edges.at_ns AND told.end_ns > edges.at_ns
GROUP BY edges.run, edges.attempt, edges.at_ns;

-- view paused: checkpoints and evaluations that rank 0 tells as spans
SELECT run, attempt, kind, step, begin_ns, end_ns FROM rank_0_spans WHERE kind IN ('checkpoint', 'evaluation');

-- into attempts: from where to where each attempt's account goes, and what its steps are like
WITH stepped AS (
    SELECT
        run, attempt,
        count(*) AS steps,
        min(step) AS first_step,
        min(begin_ns) AS first_ns,
        max(end_ns) AS last_ns,
        CAST(median(step_ns) FILTER (WHERE is_timed) AS BIGINT) AS typical_ns
    FROM timeline
    GROUP BY run, attempt
),
introduced AS (
    SELECT
        runs.run, runs.attempt, CAST(runs.ts AS BIGINT) * 1000 AS at_ns,
        coalesce(labels LIKE '%"imported":"table"%', FALSE) AS is_of_table,
        coalesce(labels LIKE '%"imported":%', FALSE) AS is_imported
    FROM runs
    INNER JOIN affected_runs ON affected_runs.run = runs.run
),
active AS (
    SELECT run, attempt, first_ns AS begin_ns, last_ns AS end_ns, CAST(NULL AS BIGINT) AS closed_ns FROM stepped
    UNION ALL
    SELECT run, attempt, begin_ns, end_ns, CASE WHEN event = 'run_end' THEN end_ns END FROM happened
    UNION ALL
    SELECT run, attempt, begin_ns, end_ns, NULL FROM paused
    UNION ALL
    SELECT run, attempt, at_ns AS begin_ns, at_ns AS end_ns, NULL FROM introduced WHERE NOT is_imported
),
signs AS (
    SELECT * FROM active
    UNION ALL
    -- an imported table may have any date
    SELECT introduced.run, introduced.attempt, at_ns AS begin_ns, at_ns AS end_ns, CAST(NULL AS BIGINT)
    FROM introduced
    LEFT SEMI JOIN active ON active.run = introduced.run AND active.attempt = introduced.attempt
    WHERE is_imported AND NOT is_of_table
    UNION ALL
    -- the time between files is not part of the attempt's duration
    SELECT introduced.run, introduced.attempt, min(at_ns) AS begin_ns, min(at_ns) AS end_ns, CAST(NULL AS BIGINT)
    FROM introduced
    LEFT ANTI JOIN active ON active.run = introduced.run AND active.attempt = introduced.attempt
    GROUP BY introduced.run, introduced.attempt
),
imported AS (
    SELECT DISTINCT introduced.run, introduced.attempt
    FROM introduced
    LEFT ANTI JOIN (SELECT run, attempt FROM happened WHERE event = 'rank_start') AS started
        ON started.run = introduced.run AND started.attempt = introduced.attempt
    WHERE is_imported
),
inits AS (
    SELECT run, attempt, min(begin_ns) AS begin_ns, max(end_ns) AS end_ns
    FROM told
    WHERE name = 'init'
    GROUP BY run, attempt
),
traced AS (
    SELECT DISTINCT run, attempt FROM happened WHERE event = 'profiler_trace'
),
trained AS (
    SELECT DISTINCT run, attempt FROM told WHERE name = 'train'
),
started AS (
    SELECT run, attempt, min(at_ns) AS begin_ns FROM start_parts GROUP BY run, attempt
),
extents AS (
    SELECT
        signs.run, signs.attempt,
        coalesce(min(inits.begin_ns), least(min(signs.begin_ns), min(started.begin_ns))) AS begin_ns,
        coalesce(max(closed_ns), max(signs.end_ns)) AS end_ns
    FROM signs
    LEFT JOIN inits ON inits.run = signs.run AND inits.attempt = signs.attempt
    LEFT JOIN started ON started.run = signs.run AND started.attempt = signs.attempt
    GROUP BY signs.run, signs.attempt
),
ordered AS (
    -- attempts begin in their order, even if the clocks of hosts differ
    SELECT run, attempt, end_ns, max(begin_ns) OVER (PARTITION BY run ORDER BY attempt) AS begin_ns FROM extents
),
bounded AS (
    SELECT
        run, attempt, begin_ns,
        greatest(begin_ns, least(end_ns, coalesce(lead(begin_ns) OVER (PARTITION BY run ORDER BY attempt), end_ns)))
            AS end_ns
    FROM ordered
)
SELECT
    bounded.run, bounded.attempt, bounded.end_ns, bounded.begin_ns AS own_begin_ns,
    coalesce(lag(bounded.end_ns) OVER following, bounded.begin_ns) AS begin_ns,
    row_number() OVER following > 1 AS is_restart,
    coalesce(stepped.steps, 0) AS steps, stepped.first_ns, stepped.typical_ns, inits.end_ns AS init_end_ns,
    inits.begin_ns AS init_begin_ns,
    inits.run IS NOT NULL AND trained.run IS NOT NULL AS is_told,
    traced.run IS NOT NULL AS is_traced,
    trained.run IS NULL AND stepped.typical_ns IS NULL AND coalesce(stepped.steps > 0, imported.run IS NOT NULL) AS is_untimed,
    -- the lowest step at which a later attempt began
    min(stepped.first_step) OVER (
        PARTITION BY bounded.run ORDER BY bounded.attempt ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
    ) AS resumed_step
FROM bounded
LEFT JOIN stepped ON stepped.run = bounded.run AND stepped.attempt = bounded.attempt
LEFT JOIN inits ON inits.run = bounded.run AND inits.attempt = bounded.attempt
LEFT JOIN traced ON traced.run = bounded.run AND traced.attempt = bounded.attempt
LEFT JOIN trained ON trained.run = bounded.run AND trained.attempt = bounded.attempt
LEFT JOIN imported ON imported.run = bounded.run AND imported.attempt = bounded.attempt
WINDOW following AS (PARTITION BY bounded.run ORDER BY bounded.attempt);

-- into marked: what each step is
SELECT
    timeline.run, timeline.attempt, timeline.step, timeline.begin_ns, timeline.end_ns,
    timeline.checkpoint_ns, timeline.evaluation_ns, timeline.tokens,
    coalesce(timeline.step >= attempts.resumed_step, FALSE) AS is_lost,
    CASE
        WHEN timeline.step_ns = 0 THEN 0
        WHEN coalesce(timeline.step >= attempts.resumed_step, FALSE) THEN 5
        WHEN NOT attempts.is_told THEN 6
        ELSE 0
    END AS kind,
    timeline.begin_ns >= attempts.begin_ns AND timeline.begin_ns < attempts.end_ns
        AND timeline.end_ns <= attempts.end_ns AS is_within,
    timeline.begin_ns = attempts.first_ns AS is_first,
    CASE
        WHEN attempts.is_told THEN 0
        WHEN timeline.step_ns - timeline.checkpoint_ns - timeline.evaluation_ns <= $hang_factor * attempts.typical_ns
        THEN 0
        WHEN timeline.begin_ns > attempts.first_ns AND timeline.step_ns <= $stall_s * 1000000000 THEN 0
        ELSE timeline.step_ns - timeline.checkpoint_ns - timeline.evaluation_ns - attempts.typical_ns
    END AS beyond_ns
FROM timeline
INNER JOIN attempts ON attempts.run = timeline.run AND attempts.attempt = timeline.attempt;

-- into epochs: where each epoch of an attempt begins: with its first step
SELECT
    firsts.run, firsts.attempt, firsts.epoch,
    coalesce(timeline.begin_ns, CAST(firsts.ts AS BIGINT) * 1000) AS begin_ns
FROM (
    SELECT
        run_epochs.run, run_epochs.attempt, epoch,
        min(run_epochs.ts) AS ts, min(run_epochs.first_step) AS first_step
    FROM run_epochs
    INNER JOIN affected_runs ON affected_runs.run = run_epochs.run
    GROUP BY run_epochs.run, run_epochs.attempt, epoch
) AS firsts
LEFT JOIN timeline
    ON timeline.run = firsts.run AND timeline.attempt = firsts.attempt AND timeline.step = firsts.first_step;

-- into allocated: which devices an attempt has, and whether its scheduler job is another than the last one's
SELECT
    attempt_facts.run, attempt_facts.attempt, coalesce(device_count, world_size) AS device_count, device_name,
    attempt_facts.cluster, pool, team,
    coalesce(
        scheduler_job_id <> lag(scheduler_job_id) OVER (PARTITION BY attempt_facts.run ORDER BY attempt_facts.attempt), FALSE
    ) AS is_new_job
FROM attempt_facts
INNER JOIN affected_runs ON affected_runs.run = attempt_facts.run;

-- into other_intervals: what other records than steps tell of the time
WITH told_by_steps AS (
    -- checkpoints and evaluations in a step's own columns; their events and spans differ by some microseconds
    SELECT run, attempt, step, end_ns, 'checkpoint' AS kind FROM marked WHERE checkpoint_ns > 0
    UNION ALL
    SELECT run, attempt, step, end_ns, 'evaluation' FROM marked WHERE evaluation_ns > 0
)
SELECT
    told.run, told.attempt, CASE told.name WHEN 'init' THEN 3 WHEN 'train' THEN 6 ELSE 12 END AS kind,
    told.begin_ns, told.end_ns
FROM told
INNER JOIN attempts ON attempts.run = told.run AND attempts.attempt = told.attempt
WHERE told.part IS NULL AND (attempts.init_end_ns IS NOT NULL OR told.name = 'unlogged')
UNION ALL
SELECT
    happened.run, happened.attempt, CASE happened.event WHEN 'checkpoint' THEN 7 ELSE 8 END,
    happened.begin_ns, happened.end_ns
FROM happened
LEFT ANTI JOIN told_by_steps
    ON told_by_steps.run = happened.run AND told_by_steps.attempt = happened.attempt
    AND told_by_steps.step = happened.step AND told_by_steps.kind = happened.event
    AND happened.begin_ns < told_by_steps.end_ns
WHERE happened.event IN ('checkpoint', 'evaluation') AND happened.rank = 0
UNION ALL
SELECT
    paused.run, paused.attempt,
    CASE paused.kind WHEN 'checkpoint' THEN 7 ELSE 8 END - CASE WHEN attempts.is_told THEN 6 ELSE 0 END,
    paused.begin_ns, paused.end_ns
FROM paused
INNER JOIN attempts ON attempts.run = paused.run AND attempts.attempt = paused.attempt
LEFT ANTI JOIN told_by_steps
    ON told_by_steps.run = paused.run AND told_by_steps.attempt = paused.attempt
    AND told_by_steps.step = paused.step AND told_by_steps.kind = paused.kind
    AND paused.begin_ns < told_by_steps.end_ns
UNION ALL
-- an attempt without steps is a start as a whole
SELECT run, attempt, 9, begin_ns, coalesce(init_end_ns, first_ns, CASE WHEN NOT is_untimed THEN end_ns END)
FROM attempts
WHERE NOT is_traced
UNION ALL
SELECT run, attempt, 12, coalesce(first_ns, begin_ns), end_ns FROM attempts WHERE is_untimed;

-- into cuts: where something else begins, of few moments: the attempt's own start, parts of its start, epochs
SELECT run, attempt, own_begin_ns AS at_ns, CAST(NULL AS INT) AS epoch, CAST(NULL AS VARCHAR) AS part,
    CAST(NULL AS BIGINT) AS said_ns
FROM attempts
WHERE own_begin_ns > begin_ns AND own_begin_ns < end_ns
UNION ALL
SELECT start_parts.run, start_parts.attempt, greatest(start_parts.at_ns, attempts.begin_ns) AS from_ns,
    NULL, part, start_parts.at_ns AS said_ns
FROM start_parts
INNER JOIN attempts ON attempts.run = start_parts.run AND attempts.attempt = start_parts.attempt
WHERE start_parts.at_ns < attempts.end_ns
UNION ALL
SELECT epochs.run, epochs.attempt, greatest(epochs.begin_ns, attempts.begin_ns), epoch, NULL, epochs.begin_ns
FROM epochs
INNER JOIN attempts ON attempts.run = epochs.run AND attempts.attempt = epochs.attempt
WHERE epochs.begin_ns < attempts.end_ns;

-- into blocks: consecutive steps as one interval, since a sweep over single steps costs five times as much. The time
-- between steps of a block is unattributed: it has no other interval and no cut, is on the block's date, and no longer
-- than $stall_s.
WITH marks AS (
    -- where other intervals begin or end: one more, one less
    SELECT
        other_intervals.run, other_intervals.attempt,
        unnest(make_array(other_intervals.begin_ns, least(other_intervals.end_ns, attempts.end_ns))) AS at_ns,
        unnest(make_array(1, -1)) AS change
    FROM other_intervals
    INNER JOIN attempts ON attempts.run = other_intervals.run AND attempts.attempt = other_intervals.attempt
    WHERE least(other_intervals.end_ns, attempts.end_ns) > other_intervals.begin_ns
    UNION ALL
    SELECT run, attempt, at_ns, 0 FROM cuts
),
neighbours AS (
    SELECT
        *,
        lag(block_key) OVER so_far AS block_key_before,
        sum(change) OVER so_far AS others,
        at_ns - max(end_ns) OVER before AS since_ns,
        max(end_ns) OVER before > lag(end_ns) OVER so_far AS is_within_earlier
    FROM (
        SELECT
            run, attempt, TRUE AS is_step, kind, is_lost, tokens, 0 AS change,
            begin_ns AS at_ns, CASE WHEN kind > 0 THEN end_ns END AS end_ns,
            -- the same for all steps of a block; NULL for a step that is a block of its own, because the attempt's account
            -- has only part of it, or a sum of such tokens may not fit into 64 bits
            CASE
                WHEN is_within AND abs(coalesce(tokens, 0)) < 68719476736
                THEN begin_ns / 86400000000000 * 16 + kind * 2 + CASE WHEN is_lost THEN 1 ELSE 0 END
            END AS block_key
        FROM marked
        UNION ALL
        SELECT run, attempt, FALSE, 0, FALSE, NULL, change, at_ns, NULL, NULL FROM marks
    )
    WINDOW
        so_far AS (
            PARTITION BY run, attempt ORDER BY at_ns, is_step ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ),
        before AS (
            PARTITION BY run, attempt ORDER BY at_ns, is_step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
),
first_steps AS (
    SELECT
        *,
        block_key IS NULL OR (block_key IS DISTINCT FROM block_key_before) OR coalesce(is_within_earlier, FALSE)
        OR coalesce(since_ns > CASE WHEN others > 0 THEN 0 ELSE $stall_s * 1000000000 END, FALSE) AS is_new
    FROM neighbours
),
numbered AS (
    SELECT
        *,
        sum(CASE WHEN is_new THEN 1 ELSE 0 END) OVER (
            PARTITION BY run, attempt ORDER BY at_ns, is_step ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS block
    FROM first_steps
)
SELECT
    run, attempt, kind, is_lost,
    min(at_ns) AS begin_ns, max(at_ns) AS last_ns, max(end_ns) AS end_ns,
    sum(CASE WHEN is_new OR kind = 0 THEN 0 ELSE greatest(since_ns, 0) END) AS gap_ns,
    count(*) AS steps, sum(tokens) AS tokens
FROM numbered
WHERE is_step
GROUP BY run, attempt, block, kind, is_lost;

-- the account
WITH intervals AS (
    SELECT run, attempt, 1 AS kind, end_ns - checkpoint_ns AS begin_ns, end_ns FROM marked WHERE checkpoint_ns > 0
    UNION ALL
    SELECT run, attempt, 2, end_ns - checkpoint_ns - evaluation_ns, end_ns - checkpoint_ns
    FROM marked WHERE evaluation_ns > 0
    UNION ALL
    SELECT run, attempt, CASE WHEN is_first THEN 3 ELSE 4 END, begin_ns, begin_ns + beyond_ns
    FROM marked WHERE beyond_ns > 0
    UNION ALL
    SELECT run, attempt, kind, begin_ns, end_ns FROM blocks WHERE kind > 0
    UNION ALL
    SELECT run, attempt, kind, begin_ns, end_ns FROM other_intervals
    UNION ALL
    SELECT run, attempt, 11, begin_ns, end_ns FROM attempts
),
clipped AS (
    SELECT
        attempts.run, attempts.attempt, intervals.kind,
        greatest(intervals.begin_ns, attempts.begin_ns) AS begin_ns,
        least(intervals.end_ns, attempts.end_ns) AS end_ns
    FROM intervals
    INNER JOIN attempts ON attempts.run = intervals.run AND attempts.attempt = intervals.attempt
    WHERE least(intervals.end_ns, attempts.end_ns) > greatest(intervals.begin_ns, attempts.begin_ns)
),
weights(kind, weight) AS (
    -- one decimal counts what covers a moment, four digits a kind (two the last ones), the first kind in front: its size tells the kind
    VALUES
    (1, CAST('100000000000000000000000000000000' AS DECIMAL(38, 0))),
    (2, CAST('10000000000000000000000000000' AS DECIMAL(38, 0))),
    (3, CAST('1000000000000000000000000' AS DECIMAL(38, 0))),
    (4, CAST('100000000000000000000' AS DECIMAL(38, 0))),
    (5, CAST('10000000000000000' AS DECIMAL(38, 0))),
    (6, CAST('1000000000000' AS DECIMAL(38, 0))),
    (7, CAST('100000000' AS DECIMAL(38, 0))),
    (8, CAST('10000' AS DECIMAL(38, 0))),
    (9, CAST('100' AS DECIMAL(38, 0))),
    (12, CAST('1' AS DECIMAL(38, 0))),
    (11, CAST('0' AS DECIMAL(38, 0)))
),
begun AS (
    SELECT run, attempt, at_ns,
        -- of epochs that began before the attempt's account does, the last one
        last_value(epoch ORDER BY said_ns, epoch) FILTER (WHERE epoch IS NOT NULL) AS epoch,
        last_value(part ORDER BY said_ns) FILTER (WHERE part IS NOT NULL) AS part
    FROM cuts
    GROUP BY run, attempt, at_ns
),
changes AS (
    SELECT run, attempt, unnest(make_array(begin_ns, end_ns)) AS at_ns, unnest(make_array(weight, -weight)) AS change
    FROM clipped
    INNER JOIN weights ON weights.kind = clipped.kind
    UNION ALL
    SELECT run, attempt, at_ns, CAST(0 AS DECIMAL(38, 0)) FROM begun
),
summed AS (
    SELECT run, attempt, at_ns, sum(change) AS change FROM changes GROUP BY run, attempt, at_ns
),
boundaries AS (
    SELECT summed.run, summed.attempt, summed.at_ns, change, epoch, part
    FROM summed
    LEFT JOIN begun ON begun.run = summed.run AND begun.attempt = summed.attempt AND begun.at_ns = summed.at_ns
),
counted AS (
    SELECT
        run, attempt, at_ns,
        lead(at_ns) OVER timeline - at_ns AS piece_ns,
        CAST(sum(change) OVER so_far AS DOUBLE) AS cover,
        -- how many began: a count takes a third of what the last value that is not NULL does
        count(epoch) OVER so_far AS epoch_number,
        count(part) OVER so_far AS part_number
    FROM boundaries
    WINDOW
        timeline AS (PARTITION BY run, attempt ORDER BY at_ns),
        so_far AS (PARTITION BY run, attempt ORDER BY at_ns ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
numbered_epochs AS (
    SELECT run, attempt, epoch, row_number() OVER (PARTITION BY run, attempt ORDER BY at_ns) AS number
    FROM begun
    WHERE epoch IS NOT NULL
),
numbered_parts AS (
    SELECT run, attempt, part, row_number() OVER (PARTITION BY run, attempt ORDER BY at_ns) AS number
    FROM begun
    WHERE part IS NOT NULL
),
covered AS (
    SELECT counted.run, counted.attempt, at_ns, piece_ns, cover, epoch, part
    FROM counted
    LEFT JOIN numbered_epochs
        ON numbered_epochs.run = counted.run AND numbered_epochs.attempt = counted.attempt
        AND numbered_epochs.number = epoch_number
    LEFT JOIN numbered_parts
        ON numbered_parts.run = counted.run AND numbered_parts.attempt = counted.attempt
        AND numbered_parts.number = part_number
),
pieces AS (
    SELECT
        run, attempt, at_ns, piece_ns, epoch, part,
        -- a little below each weight, since the cast to double may round
        CASE
            WHEN cover >= 0.99999e32 THEN 1 WHEN cover >= 0.99999e28 THEN 2 WHEN cover >= 0.99999e24 THEN 3
            WHEN cover >= 0.99999e20 THEN 4 WHEN cover >= 0.99999e16 THEN 5 WHEN cover >= 0.99999e12 THEN 6
            WHEN cover >= 0.99999e8 THEN 7 WHEN cover >= 0.99999e4 THEN 8 WHEN cover >= 99.5 THEN 9 WHEN cover >= 0.5 THEN 12
            ELSE 11
        END AS kind
    FROM covered
    WHERE piece_ns > 0
),
islands AS (
    -- neighbouring pieces of unattributed time are one piece
    SELECT
        run, attempt, at_ns, piece_ns, epoch, part, kind,
        sum(CASE kind WHEN 11 THEN 0 ELSE 1 END) OVER (
            PARTITION BY run, attempt ORDER BY at_ns ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS island
    FROM pieces
),
judged AS (
    SELECT
        run, attempt, at_ns, piece_ns, epoch, part,
        CASE
            WHEN kind = 11
                AND sum(piece_ns) OVER (PARTITION BY run, attempt, kind, island) > $stall_s * 1000000000 THEN 10
            ELSE kind
        END AS kind
    FROM islands
),
dated AS (
    SELECT *, at_ns / 86400000000000 AS first_day, (at_ns + piece_ns - 1) / 86400000000000 AS last_day FROM judged
),
days AS (
    SELECT
        *,
        -- a wrong clock may be off by decades, and a day without records needs no partition
        unnest(CASE
            WHEN last_day - first_day - 1 > $quiet_days THEN make_array(first_day, first_day + 1, last_day)
            ELSE range(first_day, last_day + 1)
        END) AS day
    FROM dated
),
cut AS (
    SELECT
        run, attempt, epoch, part, kind,
        CASE WHEN day = first_day THEN at_ns ELSE day * 86400000000000 END AS begin_ns,
        CASE
            WHEN day = last_day THEN at_ns + piece_ns
            WHEN day > first_day AND last_day - first_day - 1 > $quiet_days THEN last_day * 86400000000000
            ELSE (day + 1) * 86400000000000
        END AS end_ns
    FROM days
),
stepped AS (
    -- the epoch of each block: the last one that began no later
    SELECT *, last_value(epoch_begun) IGNORE NULLS OVER so_far AS epoch
    FROM (
        SELECT *, TRUE AS is_block, CAST(NULL AS INT) AS epoch_begun FROM blocks
        UNION ALL
        SELECT run, attempt, 0, FALSE, begin_ns, NULL, NULL, 0, 0, NULL, FALSE, epoch FROM epochs
    )
    WINDOW so_far AS (
        PARTITION BY run, attempt ORDER BY begin_ns, is_block, epoch_begun
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
),
parts AS (
    SELECT
        cut.run, cut.attempt, epoch, cut.begin_ns, cut.end_ns, cut.end_ns - cut.begin_ns AS piece_ns, kind,
        CASE WHEN kind = 9 AND cut.begin_ns < own_begin_ns THEN cut.end_ns - cut.begin_ns ELSE 0 END AS downtime_ns,
        CASE
            WHEN kind NOT IN (3, 9) THEN NULL
            WHEN cut.begin_ns < own_begin_ns THEN 'downtime'
            WHEN part <> '' THEN part
            WHEN cut.begin_ns >= first_ns THEN 'first_step'
            ELSE 'unexplained'
        END AS start_part,
        0 AS gap_ns, 0 AS steps, 0 AS steps_lost, CAST(NULL AS BIGINT) AS tokens, CAST(NULL AS BIGINT) AS tokens_lost
    FROM cut
    INNER JOIN attempts ON attempts.run = cut.run AND attempts.attempt = cut.attempt
    UNION ALL
    SELECT
        stepped.run, stepped.attempt, epoch,
        least(greatest(stepped.begin_ns, attempts.begin_ns), attempts.end_ns) AS from_ns,
        least(greatest(last_ns, attempts.begin_ns), attempts.end_ns) AS to_ns,
        0, kind, 0, NULL, gap_ns, stepped.steps, CASE WHEN is_lost THEN stepped.steps ELSE 0 END,
        CASE WHEN NOT is_lost THEN tokens END, CASE WHEN is_lost THEN tokens END
    FROM stepped
    INNER JOIN attempts ON attempts.run = stepped.run AND attempts.attempt = stepped.attempt
    WHERE is_block
    UNION ALL
    SELECT run, attempt, NULL, begin_ns, end_ns, 0, 0, 0, NULL, 0, 0, 0, NULL, NULL
    FROM attempts
    WHERE begin_ns = end_ns
),
spent AS (
    SELECT
        run, attempt, epoch, start_part,
        CAST(to_timestamp_micros(begin_ns / 1000) AS DATE) AS date,
        min(begin_ns) AS begin_ns,
        max(end_ns) AS end_ns,
        sum(steps) AS steps,
        sum(steps_lost) AS steps_lost,
        exact_sum(tokens) AS tokens,
        exact_sum(tokens_lost) AS tokens_lost,
        sum(piece_ns) AS wall_ns,
        sum(downtime_ns) AS downtime_ns,
        sum(CASE WHEN kind IN (3, 9) THEN piece_ns ELSE 0 END) AS start_ns,
        sum(CASE WHEN kind = 6 THEN piece_ns - gap_ns ELSE 0 END) AS productive_ns,
        sum(CASE WHEN kind IN (1, 7) THEN piece_ns ELSE 0 END) AS checkpoint_ns,
        sum(CASE WHEN kind IN (2, 8) THEN piece_ns ELSE 0 END) AS evaluation_ns,
        sum(CASE WHEN kind = 5 THEN piece_ns - gap_ns ELSE 0 END) AS lost_work_ns,
        sum(CASE WHEN kind IN (4, 10) THEN piece_ns ELSE 0 END) AS stall_ns,
        sum(CASE WHEN kind IN (11, 12) THEN piece_ns ELSE gap_ns END) AS unattributed_ns,
        sum(CASE WHEN kind = 12 THEN piece_ns ELSE 0 END) AS under_way_ns
    FROM parts
    GROUP BY run, attempt, epoch, start_part, CAST(to_timestamp_micros(begin_ns / 1000) AS DATE)
)
SELECT
    spent.run, spent.attempt, spent.epoch, spent.date,
    to_timestamp_micros(spent.begin_ns / 1000) AT TIME ZONE 'UTC' AS ts,
    to_timestamp_micros(spent.end_ns / 1000) AT TIME ZONE 'UTC' AS end_ts,
    spent.steps, spent.steps_lost, spent.tokens, spent.tokens_lost, spent.wall_ns,
    CASE WHEN attempts.is_restart THEN 0 ELSE spent.start_ns END AS init_ns,
    spent.productive_ns, spent.checkpoint_ns, spent.evaluation_ns,
    CASE WHEN attempts.is_restart THEN spent.start_ns ELSE 0 END AS restart_ns,
    spent.downtime_ns, spent.lost_work_ns, spent.stall_ns, spent.unattributed_ns,
    allocated.cluster, pool, team, device_name, device_count,
    CASE WHEN is_new_job THEN spent.downtime_ns ELSE 0 END AS unallocated_ns,
    CASE WHEN attempts.is_untimed THEN spent.under_way_ns END AS untimed_ns,
    spent.start_part
FROM spent
INNER JOIN attempts ON attempts.run = spent.run AND attempts.attempt = spent.attempt
LEFT JOIN allocated ON allocated.run = spent.run AND allocated.attempt = spent.attempt
