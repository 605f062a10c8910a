-- grain    one row per run, attempt, rank and UTC date of the fact, on the attempt's first date
-- inputs   run_facts and attempt_facts of the runs to compute (affected_runs), of all dates
-- formula  The rows of run_facts, moved to the attempt's first date. An attempt without FLOPs gets those of the last
--          earlier attempt that has some.
WITH said AS (
    SELECT run_facts.*
    FROM run_facts
    INNER JOIN affected_runs ON affected_runs.run = run_facts.run
),
spoken AS (
    SELECT DISTINCT run, attempt FROM said
),
begun AS (
    SELECT attempt_facts.run, attempt_facts.attempt, attempt_facts.date
    FROM attempt_facts
    INNER JOIN affected_runs ON affected_runs.run = attempt_facts.run
),
attempts AS (
    SELECT run, attempt FROM begun
    UNION
    SELECT run, attempt FROM spoken
),
tellers AS (
    SELECT
        attempts.run, attempts.attempt, begun.date,
        last_value(spoken.attempt) IGNORE NULLS OVER (
            PARTITION BY attempts.run ORDER BY attempts.attempt ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS teller
    FROM attempts
    LEFT JOIN begun ON begun.run = attempts.run AND begun.attempt = attempts.attempt
    LEFT JOIN spoken ON spoken.run = attempts.run AND spoken.attempt = attempts.attempt
)
SELECT
    tellers.run, tellers.attempt, said.rank, said.date AS said_date,
    CASE WHEN tellers.attempt = teller THEN least(said.date, coalesce(tellers.date, said.date)) ELSE tellers.date END AS date,
    said.ts, said.ts AS end_ts, flops_per_token, flops_per_step, hardware_flops_per_step,
    CASE WHEN tellers.attempt = teller THEN measured_peak_flops_per_s END AS measured_peak_flops_per_s
FROM tellers
INNER JOIN said ON said.run = tellers.run AND said.attempt = teller
WHERE tellers.attempt = teller OR coalesce(flops_per_token, flops_per_step, hardware_flops_per_step) IS NOT NULL
