-- grain    one row per run, attempt and epoch, on each UTC date on which the trainer recorded the epoch
-- inputs   scalars of the date
-- formula  epoch: the integer part of train/epoch, which some trainers record as a fraction. The step with an integer
--          value is the first step of the next epoch.
SELECT
    run, attempt, CAST(floor(value) AS INT) AS epoch, $date AS date,
    min(ts) AS ts, max(ts) AS end_ts,
    min(step) AS first_step, max(step) AS last_step
FROM scalars
WHERE date = $date AND metric = 'train/epoch' AND value >= 0 AND value < 2147483647
GROUP BY run, attempt, CAST(floor(value) AS INT)
