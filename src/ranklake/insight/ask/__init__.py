"""What people ask in SQL: by names that columns had before, and of views that stand for metrics."""
