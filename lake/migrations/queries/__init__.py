"""Updates users' queries to the newest versions of the tables: texts in, edits and findings out."""
