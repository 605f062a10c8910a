"""SQL queries on the tables with DataFusion: time travel, and the views of a role."""
