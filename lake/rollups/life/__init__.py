"""Life of metrics: who asked for them, what took their place and until when; and series that go on across all that."""
