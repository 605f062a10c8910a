-- grain    one row per run and attempt, on the UTC date on which the run began
-- inputs   attempt_facts, events, step_rollup, rank_health, mfu, goodput and run_goodput of the runs to compute
--          (affected_runs)
-- formula  Ratios are sums over sums of the finer rollups. Mean step time: over all ranks and steps. Tokens per second:
--          tokens divided by the sum of the steps' mean times. Last loss: of the last step with a loss, even if it is
--          NaN. Steps: those with a time; for an attempt without times, those with metrics. A metric of a step that
--          raised an error does not count as a step. The straggler is the rank that rank_health has as one on days with
--          more than half of the compared steps. Of several, it is the one with the largest excess: its self time over
--          that of its peers, sums over sums, over all days. run_*: values of the whole run, including restarts, equal
--          in all of its rows
WITH started AS (
    SELECT attempt_facts.run, attempt_facts.attempt, job, world_size, device_type, device_name, injected
    FROM attempt_facts
    INNER JOIN affected_runs ON affected_runs.run = attempt_facts.run
),
told AS (
    SELECT
        events.run, events.attempt,
        count(*) FILTER (WHERE event = 'checkpoint') AS checkpoints
    FROM events
    INNER JOIN affected_runs ON affected_runs.run = events.run
    GROUP BY events.run, events.attempt
),
stepped AS (
    SELECT
        step_rollup.run, step_rollup.attempt,
        CASE WHEN count(mean_step_time_s) > 0 THEN count(DISTINCT step) FILTER (WHERE mean_step_time_s IS NOT NULL)
             ELSE count(DISTINCT step) END AS steps,
        max(ranks) AS ranks,
        coalesce(sum(CAST(ranks AS BIGINT)) FILTER (WHERE mean_step_time_s IS NOT NULL), 0) AS rank_steps,
        coalesce(min(step) FILTER (WHERE mean_step_time_s IS NOT NULL), min(step)) AS first_step,
        coalesce(max(step) FILTER (WHERE mean_step_time_s IS NOT NULL), max(step)) AS last_step,
        exact_sum(tokens) AS tokens,
        CASE WHEN count(mean_step_time_s) > 0 THEN exact_sum(sum_step_time_ns) END AS sum_step_time_ns,
        CASE WHEN count(mean_step_time_s) > 0 THEN exact_sum(sum_step_time_ns / ranks) END AS stepping_ns,
        first_value(mean_loss ORDER BY step, ts) FILTER (WHERE mean_loss IS NOT NULL) AS first_loss,
        last_value(mean_loss ORDER BY step, ts) FILTER (WHERE mean_loss IS NOT NULL OR loss_flag IS NOT NULL) AS last_loss,
        last_value(loss_flag ORDER BY step, ts) FILTER (WHERE mean_loss IS NOT NULL OR loss_flag IS NOT NULL)
            AS last_loss_flag,
        min(step) FILTER (WHERE loss_flag IS NOT NULL) AS non_finite_loss_step,
        count(*) FILTER (WHERE non_finite_ranks > 0) AS non_finite_steps
    FROM step_rollup
    INNER JOIN affected_runs ON affected_runs.run = step_rollup.run
    GROUP BY step_rollup.run, step_rollup.attempt
),
health AS (
    SELECT
        rank_health.run, rank_health.attempt, rank,
        sum(steps_compared) AS steps_compared,
        sum(CASE WHEN is_straggler THEN steps_compared ELSE 0 END) AS steps_flagged,
        CASE
            WHEN count(sum_peer_ns) = count(sum_excess_ns)
                THEN CAST(sum(sum_excess_ns) AS DOUBLE) / nullif(CAST(sum(sum_peer_ns) AS DOUBLE), 0)
            ELSE sum(excess_ratio * steps_compared) / nullif(sum(steps_compared), 0)
        END AS excess_ratio,
        max(reason) FILTER (WHERE is_straggler) AS reason
    FROM rank_health
    INNER JOIN affected_runs ON affected_runs.run = rank_health.run
    GROUP BY rank_health.run, rank_health.attempt, rank
),
stragglers AS (
    SELECT
        run, attempt,
        count(*) AS stragglers,
        first_value(rank ORDER BY excess_ratio DESC, rank) AS straggler_rank,
        first_value(excess_ratio ORDER BY excess_ratio DESC, rank) AS straggler_excess_ratio,
        first_value(reason ORDER BY excess_ratio DESC, rank) AS straggler_reason
    FROM health
    WHERE 2 * steps_flagged > steps_compared
    GROUP BY run, attempt
),
used AS (
    SELECT
        mfu.run, mfu.attempt,
        CASE WHEN count(model_flops) = count(*) THEN sum(CAST(model_flops AS DECIMAL(38, 0))) END AS model_flops,
        CASE WHEN count(peak_flops) = count(*) THEN sum(CAST(round(peak_flops) AS DECIMAL(38, 0))) END AS peak_flops,
        min(peak_source) AS peak_source,
        min(peak_dtype) AS peak_dtype,
        min(flops_convention) AS flops_convention,
        max(n_convention) AS n_convention,
        min(reason) AS reason
    FROM mfu
    INNER JOIN affected_runs ON affected_runs.run = mfu.run
    GROUP BY mfu.run, mfu.attempt
)
SELECT
    goodput.run, goodput.attempt, goodput.date,
    started.job, goodput.ts, goodput.end_ts,
    goodput.status,
    started.world_size, stepped.ranks, started.device_type, started.device_name,
    CASE WHEN goodput.steps IS NULL THEN stepped.steps ELSE coalesce(stepped.steps, 0) END AS steps,
    CASE WHEN goodput.steps IS NULL THEN stepped.rank_steps ELSE coalesce(stepped.rank_steps, 0) END AS rank_steps,
    stepped.first_step, stepped.last_step, stepped.tokens,
    stepped.first_loss, stepped.last_loss, stepped.last_loss_flag, stepped.non_finite_loss_step,
    coalesce(stepped.non_finite_steps, 0) AS non_finite_steps,
    coalesce(told.checkpoints, 0) AS checkpoints,
    stepped.sum_step_time_ns,
    CAST(stepped.sum_step_time_ns AS DOUBLE) / nullif(stepped.rank_steps, 0) / 1e9 AS mean_step_time_s,
    stepped.stepping_ns,
    CAST(stepped.tokens AS DOUBLE) / nullif(stepped.stepping_ns, 0) * 1e9 AS tokens_per_s,
    CAST(used.model_flops AS DOUBLE) AS model_flops,
    CAST(used.peak_flops AS DOUBLE) AS peak_flops,
    CAST(used.model_flops AS DOUBLE) / nullif(CAST(used.peak_flops AS DOUBLE), 0) AS mfu_ratio,
    used.peak_source, used.peak_dtype, used.flops_convention, used.n_convention,
    CASE
        WHEN used.run IS NOT NULL THEN used.reason
        WHEN stepped.steps > 0 THEN 'no step was timed'
        ELSE 'no steps'
    END AS mfu_reason,
    goodput.productive_ns, goodput.wall_ns, goodput.goodput_ratio,
    coalesce(stragglers.stragglers, 0) AS stragglers,
    stragglers.straggler_rank, stragglers.straggler_excess_ratio, stragglers.straggler_reason,
    started.injected,
    goodput.init_ns, goodput.checkpoint_ns, goodput.evaluation_ns, goodput.restart_ns, goodput.lost_work_ns,
    goodput.stall_ns, goodput.unattributed_ns, goodput.steps_lost,
    run_goodput.restarts AS run_restarts, run_goodput.goodput_ratio AS run_goodput_ratio,
    run_goodput.ettr_ratio AS run_ettr_ratio, run_goodput.mttf_s AS run_mttf_s,
    run_goodput.time_to_train_ns AS run_time_to_train_ns
FROM goodput
INNER JOIN affected_runs ON affected_runs.run = goodput.run
LEFT JOIN run_goodput ON run_goodput.run = goodput.run
LEFT JOIN started ON started.run = goodput.run AND started.attempt = goodput.attempt
LEFT JOIN told ON told.run = goodput.run AND told.attempt = goodput.attempt
LEFT JOIN stepped ON stepped.run = goodput.run AND stepped.attempt = goodput.attempt
LEFT JOIN stragglers ON stragglers.run = goodput.run AND stragglers.attempt = goodput.attempt
LEFT JOIN used ON used.run = goodput.run AND used.attempt = goodput.attempt
