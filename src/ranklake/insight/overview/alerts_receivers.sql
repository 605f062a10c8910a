-- Grain: one row per receiver that took a message: alerts that it was told of, and the last time. Input: alerts.
SELECT receiver, count(DISTINCT alert_id) AS alerts, max(ts) AS last_ts
FROM (SELECT alert_id, ts, unnest(string_to_array(receivers, ',')) AS receiver FROM alerts WHERE receivers IS NOT NULL)
GROUP BY receiver
ORDER BY receiver
