"""SQL over the tables: DataFusion, as of any version, through the views of a role."""
