"""Recording: the recorder of one process, and the threads that seal, upload and recover."""
