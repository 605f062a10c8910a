"""Recording: the recorder of one process and the threads that look after it."""
