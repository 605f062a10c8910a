"""What roles see, explained, compared and tested."""
