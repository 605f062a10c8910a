"""What whoever is on call should look at: facts of the on-call page."""
