-- Grain: one row. Input: inference_hourly.
SELECT max(hour) AS until FROM inference_hourly
