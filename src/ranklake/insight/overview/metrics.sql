-- Grain: one row per metric, the unregistered first. Input: catalog_metrics.
SELECT metric, status, unit, kind, owner, stored_in, seen_values, last_ts, freshness_s, deprecated, replaced_by, doc
FROM catalog_metrics
WHERE date = (SELECT max(date) FROM catalog_metrics)
ORDER BY status = 'unregistered' DESC, metric
