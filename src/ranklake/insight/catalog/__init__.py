"""The catalog: what every table, column and metric is, and what they weigh."""
